"""Lines to the machine's syslog, one datagram each.

Nobody waits for it: a line is lost where nobody listens, or who listens does not keep up, because a node that stood
still for its own log would be worse. Knows nothing of the form of the lines.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

#: Who writes: programs that run in the background (LOG_DAEMON), in the upper bits of a line's priority.
FACILITY = 3 << 3
#: The least severity that a level has; syslog counts down.
SEVERITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
DEBUG = 7
#: What every syslog takes in one datagram.
LINE_BYTES_MAX = 8192


class Syslog(logging.Handler):
    """Writes to one socket, which may come and go."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._name = Path(sys.argv[0]).name or "penstock"
        self._socket: socket.socket | None = None

    @property
    def is_heard(self) -> bool:
        """Whether somebody listens now."""
        return self._socket is not None or self._connect()

    def emit(self, record: logging.LogRecord) -> None:
        """Send one line."""
        severity = next((number for level, number in SEVERITIES if record.levelno >= level), DEBUG)
        head = f"<{FACILITY | severity}>{self._name}[{os.getpid()}]: "
        line = (head + self.format(record)).encode()[:LINE_BYTES_MAX]
        # Once more over a new connection: a syslog that was started anew has another socket under the old name.
        if not self._sent(line) and self._connect():
            self._sent(line)

    def close(self) -> None:
        """Write nothing more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        super().close()

    def _sent(self, line: bytes) -> bool:
        if self._socket is None:
            return False
        try:
            self._socket.send(line)
        except BlockingIOError:
            pass
        except OSError:
            self._socket.close()
            self._socket = None
            return False
        return True

    def _connect(self) -> bool:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sock.setblocking(False)
        with suppress(OSError):
            sock.connect(self._path)
            self._socket = sock
            return True
        sock.close()
        return False
