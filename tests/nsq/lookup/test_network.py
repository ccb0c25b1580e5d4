"""Connections to lookup services elsewhere, on a real loop: what is down, slow, or something else altogether."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.dialects.nsq.lookup import network as module
from penstock.dialects.nsq.lookup.network import LoopNetwork

HEAD = b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n"


def asked(answer: bytes, *, hang: bool = False) -> list[str] | None:
    """Ask a server that answers with these bytes; None if nothing came of it."""

    async def talk() -> list[str] | None:
        got: list[str] | None = None
        writers: list[asyncio.StreamWriter] = []

        def done(channels: list[str]) -> None:
            nonlocal got
            got = channels

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            request = await reader.readuntil(b"\r\n\r\n")
            assert request.startswith(b"GET /channels?topic=t%23ephemeral HTTP/1.1\r\n")
            writer.write(answer)
            if not hang:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        network = LoopNetwork()
        network.ask("127.0.0.1", server.sockets[0].getsockname()[1], "t#ephemeral", done)
        await asyncio.wait(network._tasks)
        server.close()
        await network.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)
        return got

    return asyncio.run(talk())


def test_an_answer_is_a_list_of_channels() -> None:
    assert asked(HEAD + b'{"channels":["a","b"]}') == ["a", "b"]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\r\n\r\n",
        b"HTTP/1.0 404 Not Found\r\n\r\n{}",
        HEAD,
        HEAD + b"{}",
        HEAD + b'{"channels":[1]}',
        HEAD + b'{"channels":["a"]',
        HEAD + b" " * (1 << 20) + b'{"channels":[]}',
    ],
)
def test_any_other_answer_counts_for_nothing(answer: bytes) -> None:
    assert asked(answer) is None


def test_a_service_that_does_not_finish_its_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.05)
    assert asked(HEAD, hang=True) is None


def in_loop(work: Callable[[], Coroutine[Any, Any, str]]) -> str:
    return asyncio.run(work())


def test_closing_ends_what_is_under_way() -> None:
    async def work() -> str:
        network = LoopNetwork()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            network.ask("127.0.0.1", silent.getsockname()[1], "t", lambda channels: None)
            await asyncio.sleep(0)
            assert network._tasks
            await network.close()
        return f"{len(network._tasks)} left"

    assert in_loop(work) == "0 left"
