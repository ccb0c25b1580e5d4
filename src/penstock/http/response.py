"""What is sent back."""

from __future__ import annotations

from http import HTTPStatus
from typing import NamedTuple

_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}

#: These have no content, and say no length of it.
_BARE = frozenset((204, 304))

#: What a 401 says: how to show who one is.
CHALLENGE = (b"www-authenticate", b'Bearer realm="penstock", Basic realm="penstock"')

TEXT = (b"content-type", b"text/plain; charset=utf-8")


class Response(NamedTuple):
    """Status, headers and content."""

    content: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    status: int = 200

    def wire(self, *, is_last: bool = False, is_head: bool = False) -> bytes:
        """Return its bytes; `is_last` says that the connection ends with it, `is_head` leaves the content out."""
        parts = [_LINES[self.status], *(b"%b: %b\r\n" % header for header in self.headers)]
        if is_last:
            parts.append(b"connection: close\r\n")
        if self.status not in _BARE:
            parts.append(b"content-length: %d\r\n" % len(self.content))
        parts.append(b"\r\n" if is_head or self.status in _BARE else b"\r\n" + self.content)
        return b"".join(parts)
