"""One question to somebody's HTTP interface: a request, its answer of bounded size, in bounded time.

Redirects are not followed: whoever allowed an address did not allow where that one points.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from urllib.parse import SplitResult, quote, urlsplit

import httptools

#: The answers that are asked for here are a few KB; more than this is something else.
ANSWER_BYTES_MAX = 1 << 20


#: Tells whether a host may be dialled at an address that its name leads to.
Allows = Callable[[str, str], bool]


async def fetch(url: str, limit_s: float, headers: Mapping[str, str], content: bytes | None = None) -> bytes:
    """Return what a GET, or with content a POST, is answered; OSError or ValueError where that is not status 200."""
    parts = _parts(url)
    secure = ssl.create_default_context() if parts.scheme == "https" else None
    async with asyncio.timeout(limit_s), _connected(parts, secure, None) as (reader, writer):
        writer.write(_request(parts, headers, content))
        answer = _Answer()
        while not answer.done and (data := await reader.read(65536)):
            answer.feed(data)
    if answer.status != 200:
        raise ValueError(f"it answered with status {answer.status}" if answer.status else "it answered no HTTP")
    return bytes(answer.content)


async def post(
    url: str, limit_s: float, headers: Mapping[str, str], content: bytes, allows: Allows, secure: ssl.SSLContext
) -> int:
    """Return the status that a POST is answered with, whatever else there is; OSError or ValueError for none.

    Only addresses that are allowed are dialled, so a name may lead elsewhere than when somebody looked at it first.
    """
    parts = _parts(url)
    context = secure if parts.scheme == "https" else None
    async with asyncio.timeout(limit_s), _connected(parts, context, allows) as (reader, writer):
        writer.write(_request(parts, headers, content))
        answer = _Answer()
        while not answer.status and (data := await reader.read(65536)):
            answer.feed(data)
    if not answer.status:
        raise ValueError("it answered no HTTP")
    return answer.status


def _parts(url: str) -> SplitResult:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("its address is no http:// or https:// URL")
    return parts


@asynccontextmanager
async def _connected(
    parts: SplitResult, secure: ssl.SSLContext | None, allows: Allows | None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    address = host if allows is None else await _allowed(host, port, allows)
    name = host if secure is not None else None
    reader, writer = await asyncio.open_connection(address, port, ssl=secure, server_hostname=name)
    try:
        yield reader, writer
    finally:
        writer.close()


async def _allowed(host: str, port: int, allows: Allows) -> str:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(each[4][0]) for each in found]
    for address in addresses:
        if allows(host, address):
            return address
    raise ValueError(f"{host} leads to {', '.join(addresses[:3])}, where nothing may be sent")


def _request(url: SplitResult, headers: Mapping[str, str], content: bytes | None) -> bytes:
    path = quote(url.path or "/", safe="/%:@!$&'()*+,;=~-._")
    lines = [
        f"{'GET' if content is None else 'POST'} {path}{'?' if url.query else ''}{url.query} HTTP/1.1",
        f"Host: {url.netloc.rpartition('@')[2]}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
        *(() if content is None else (f"Content-Length: {len(content)}",)),
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + (content or b"")


class _Answer:
    """One response."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.content = bytearray()
        self.status = 0
        self.done = False

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            # What a callback raised comes wrapped.
            raise ValueError(str(error.__context__ or error)) from None
        except httptools.HttpParserUpgrade:
            raise ValueError("it wants to speak another protocol") from None

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.content += body
        if len(self.content) > ANSWER_BYTES_MAX:
            raise ValueError(f"an answer of more than {ANSWER_BYTES_MAX} bytes")

    def on_message_complete(self) -> None:
        self.done = True
