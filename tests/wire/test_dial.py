"""The way out on a real loop: who is down, unknown or asks for a certificate; and one question over HTTP."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Coroutine
from random import Random
from typing import Any, TypeVar

import pytest

from penstock.clock import MILLISECOND, SECOND, LoopClock
from penstock.errors import ConfigError
from penstock.wire.dial import LoopDialler
from penstock.wire.fetch import ANSWER_BYTES_MAX, fetch
from penstock.wire.link import Backoff, Link
from penstock.wire.tls import client_context
from tests.nsq.certificates import certificates
from tests.served import PATIENCE_S

T = TypeVar("T")
FILES = certificates()
HEAD = b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n"


def in_loop(work: Coroutine[Any, Any, T]) -> T:
    async def patient() -> T:
        async with asyncio.timeout(PATIENCE_S):
            return await work

    return asyncio.run(patient())


async def failed(host: str, port: int) -> str:
    heard: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    dialler = LoopDialler()
    dialler.dial(host, port, asyncio.Protocol(), heard.set_result)
    assert not heard.done()
    why = await heard
    await dialler.close()
    return why


def test_who_is_down_is_told() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert "111" in in_loop(failed("127.0.0.1", port))


@pytest.mark.parametrize("host", ["no-such-host.invalid", "no such host." + "x" * 70])
def test_a_name_that_nobody_knows_is_told(host: str) -> None:
    assert in_loop(failed(host, 4160))


class Echo(asyncio.Protocol):
    """A server that says everything again, and remembers who came."""

    def __init__(self) -> None:
        self.names: list[object] = []
        self.transport: asyncio.Transport

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        shown = transport.get_extra_info("peercert") or {}
        self.names += [value for part in shown.get("subject", ()) for key, value in part if key == "commonName"]

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Caller:
    """Says hello and hangs up when it was heard."""

    def __init__(self) -> None:
        self.link: Link
        self.heard = b""
        self.done: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def opened(self) -> None:
        self.link.write(b"hello" * 10_000)

    def received(self, data: bytes) -> None:
        self.heard += data
        if len(self.heard) == 50_000:
            self.link.close()

    def beat(self) -> None:
        pass

    def hold(self, full: bool) -> None:
        pass

    def closed(self, why: str) -> None:
        self.done.set_result(why)


async def called(server: ssl.SSLContext | None, client: ssl.SSLContext | None) -> tuple[bytes, list[object]]:
    loop = asyncio.get_running_loop()
    echo = Echo()
    listening = await loop.create_server(lambda: echo, "127.0.0.1", 0, ssl=server)
    dialler, caller = LoopDialler(), Caller()
    backoff = Backoff(MILLISECOND, SECOND, Random(1))
    address = ("localhost", listening.sockets[0].getsockname()[1])
    log = logging.getLogger("test")
    caller.link = Link(
        "echo", address, caller, LoopClock(loop), dialler, backoff, beat_ns=60 * SECOND, log=log, tls=client
    )
    caller.link.connect()
    await caller.done
    await dialler.close()
    listening.close()
    return caller.heard, echo.names


def test_a_link_speaks_with_a_real_server() -> None:
    assert in_loop(called(None, None)) == (b"hello" * 10_000, [])


def test_a_link_speaks_tls_and_shows_its_certificate() -> None:
    client = client_context(str(FILES.authority), str(FILES.client), str(FILES.client_key))
    assert in_loop(called(FILES.server_context(ask=True), client)) == (b"hello" * 10_000, ["someone"])


@pytest.mark.parametrize(
    "files", [("/no/such/file",), (str(FILES.server_key),), (str(FILES.authority), str(FILES.client), "/no/such/file")]
)
def test_files_that_are_no_certificates_are_refused_by_name(files: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        client_context(*files)
    assert files[-1] in str(caught.value)


def test_closing_ends_what_is_under_way() -> None:
    async def work() -> bool:
        ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def wait() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set_result(True)

        dialler = LoopDialler()
        dialler.start(wait())
        await asyncio.sleep(0)
        await dialler.close()
        return ended.done()

    assert in_loop(work())


# --- over HTTP --------------------------------------------------------------------------------------------------------


async def asked(
    answer: bytes, path: str = "/", content: bytes | None = None, *, hang: bool = False
) -> tuple[bytes, bytes]:
    """Ask a server that answers with these bytes; return what was made of them, and what it heard."""
    heard: list[bytes] = []
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        heard.append(await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(len(content or b"")))
        writer.write(answer)
        if not hang:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{path}"
    try:
        found = await fetch(url, 0.2 if hang else PATIENCE_S, {"X-A": "b"}, content)
        return found, heard[0]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "answer", [HEAD + b"body", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"]
)
def test_a_question_is_sent_and_answered(answer: bytes) -> None:
    found, heard = in_loop(asked(answer, "/a%20b?c=d"))
    assert found == b"body"
    assert heard.startswith(b"GET /a%20b?c=d HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nX-A: b\r\n" in heard
    found, heard = in_loop(asked(answer, "", b"content"))
    assert found == b"body"
    assert heard.startswith(b"POST / HTTP/1.1\r\n")
    assert heard.endswith(b"Content-Length: 7\r\n\r\ncontent")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "no HTTP"),
        (b"junk\r\n\r\n", "."),
        (b"HTTP/1.0 404 Not Found\r\n\r\n", "status 404"),
        (HEAD + b" " * (ANSWER_BYTES_MAX + 1), "more than 1048576 bytes"),
    ],
)
def test_any_other_answer_is_an_error(answer: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        in_loop(asked(answer))


def test_an_answer_that_does_not_end_is_given_up() -> None:
    with pytest.raises(TimeoutError):
        in_loop(asked(HEAD[:10], hang=True))


@pytest.mark.parametrize("url", ["ftp://x/", "http://", "x"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="http"):
        in_loop(fetch(url, 1, {}))
