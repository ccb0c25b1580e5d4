"""One question to somebody's HTTP interface: a request, its answer of bounded size, in bounded time."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from urllib.parse import SplitResult, quote, urlsplit

import httptools

#: The answers that are asked for here are a few KB; more than this is something else.
ANSWER_BYTES_MAX = 1 << 20


async def fetch(url: str, limit_s: float, headers: Mapping[str, str], content: bytes | None = None) -> bytes:
    """Return what a GET, or with content a POST, is answered; OSError or ValueError where that is not status 200."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("its address is no http:// or https:// URL")
    secure = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if secure else 80)
    async with asyncio.timeout(limit_s):
        reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=secure)
        try:
            writer.write(_request(parts, headers, content))
            answer = _Answer()
            while not answer.done and (data := await reader.read(65536)):
                answer.feed(data)
        finally:
            writer.close()
    if answer.status != 200:
        raise ValueError(f"it answered with status {answer.status}" if answer.status else "it answered no HTTP")
    return bytes(answer.content)


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

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.content += body
        if len(self.content) > ANSWER_BYTES_MAX:
            raise ValueError(f"an answer of more than {ANSWER_BYTES_MAX} bytes")

    def on_message_complete(self) -> None:
        self.done = True
