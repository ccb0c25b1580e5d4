"""Connections to lookup services elsewhere, on a real loop: what is down, slow, or something else altogether."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.clock import LoopClock
from penstock.dialects.nsq.lookup import network as module
from penstock.dialects.nsq.lookup.codec import Identity
from penstock.dialects.nsq.lookup.link import Link
from penstock.dialects.nsq.lookup.network import LoopNetwork

ME = Identity(version="1.3.0", tcp_port=1, http_port=2, hostname="h", broadcast_address="me")
HEAD = b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n"


class Ear(Link):
    """A link that only listens to what the network tells it."""

    def __init__(self, address: tuple[str, int], network: LoopNetwork) -> None:
        super().__init__(address, LoopClock(asyncio.get_running_loop()), network, ME, list)
        self.heard: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def failed(self, why: str) -> None:
        self.heard.set_result(why)


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
            assert request.startswith(b"GET /channels?topic=t%23ephemeral HTTP/1.0\r\n")
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


def test_a_service_that_is_down_is_told_to_the_link() -> None:
    async def work() -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        network = LoopNetwork()
        ear = Ear(("127.0.0.1", port), network)
        ear.connect()
        why = await ear.heard
        await network.close()
        return why

    assert "111" in in_loop(work)


def test_a_name_that_nobody_knows_is_told_to_the_link() -> None:
    async def work() -> str:
        network = LoopNetwork()
        ear = Ear(("no such host." + "x" * 70, 4160), network)
        ear.connect()
        why = await ear.heard
        await network.close()
        return why

    assert in_loop(work)


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
