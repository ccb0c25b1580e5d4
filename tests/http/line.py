"""An HTTP connection without a socket: bytes in, what was written out."""

from __future__ import annotations

from typing import Any, cast

from penstock.http import Listener


class Line:
    """The far end of a connection; it is also the transport."""

    def __init__(self, listener: Listener, port: int = 1) -> None:
        self.connection = listener.connect()
        self.out = b""
        self.closed = False
        #: So much it takes before it is read; None for any.
        self.high_water: int | None = None
        self._unread = 0
        self._reading = True
        self._port = port
        self.connection.connection_made(cast(Any, self))

    # what the connection asks of a transport

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return ("127.0.0.1", self._port) if name == "peername" else None

    def write(self, data: bytes) -> None:
        self.out += data
        was, self._unread = self._unread, self._unread + len(data)
        if self.high_water is not None and was <= self.high_water < self._unread:
            self.connection.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.out) if self.high_water is None else self._unread

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.connection.connection_lost(None)

    abort = close

    # what a test does with it

    def send(self, data: bytes) -> None:
        """Bring bytes, as far as the connection still takes any."""
        if not self.closed:
            self.connection.data_received(data)

    def drain(self) -> None:
        """Read all that was written."""
        was, self._unread = self._unread, 0
        if self.high_water is not None and was > self.high_water:
            self.connection.resume_writing()

    def is_read(self) -> bool:
        """Tell whether the connection wants more."""
        return self._reading

    def stop_sending(self) -> None:
        """Say that nothing more comes."""
        if not self.connection.eof_received():
            self.close()

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Take the next answer: status, headers, content."""
        head, mark, rest = self.out.partition(b"\r\n\r\n")
        assert mark, f"no whole answer: {self.out!r}"
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        size = int(headers.get("content-length", "0"))
        assert len(rest) >= size
        self.out = rest[size:]
        return int(first.split()[1]), headers, rest[:size]
