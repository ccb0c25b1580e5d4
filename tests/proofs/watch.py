"""Names that appear in directories, as the kernel tells them (inotify): to act while another process writes.

Owns the kernel's handle. A wait has a deadline and costs nothing meanwhile.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

_IN_CREATE, _IN_MOVED_TO = 0x100, 0x80
_EVENT = struct.Struct("iIII")
_LIBC = ctypes.CDLL(None, use_errno=True)


class Watch:
    """Files made in, or renamed into, some directories since the watch began."""

    def __init__(self, directories: Iterable[Path]) -> None:
        self._fd = _LIBC.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._places: dict[int, Path] = {}
        self._found: deque[Path] = deque()
        for directory in directories:
            number = _LIBC.inotify_add_watch(self._fd, os.fsencode(directory), _IN_CREATE | _IN_MOVED_TO)
            if number < 0:
                raise OSError(ctypes.get_errno(), f"inotify_add_watch {directory}")
            self._places[number] = directory

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def wait(self, wanted: Callable[[Path], bool], patience_s: float) -> Path | None:
        """Return the first file that is wanted; None if none came in time."""
        end = time.monotonic() + patience_s
        while True:
            while self._found:
                path = self._found.popleft()
                if wanted(path):
                    return path
            left_s = end - time.monotonic()
            if left_s <= 0 or not select.select([self._fd], [], [], left_s)[0]:
                return None
            self._read()

    def _read(self) -> None:
        data = os.read(self._fd, 1 << 16)
        at = 0
        while at < len(data):
            number, _, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size
            name = data[at : at + length].rstrip(b"\0")
            at += length
            if number in self._places:
                self._found.append(self._places[number] / os.fsdecode(name))
