"""One process per data directory.

Owns the file `lock`. The kernel frees it when the process ends, however it ends; the pid inside is for people.
"""

from __future__ import annotations

import fcntl
import os

from penstock.disk import LocalDisk, private
from penstock.errors import ConfigError

FILE = "lock"


class Lock:
    """The right to write in a data directory, held until `release` or the end of the process."""

    def __init__(self, data: str, *, group: bool = False) -> None:
        disk = LocalDisk(group=group)
        disk.make(data)
        try:  # whoever made it, and whether or not he came so far
            disk.sync_directory(os.path.dirname(os.path.realpath(data)))
        except PermissionError:  # its parent is another's to look into, and then to keep
            pass
        self._path = os.path.join(data, FILE)
        self._fd = private(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise ConfigError(
                f"{data} is in use by another Penstock (pid {holder}). Stop it, or choose another data directory."
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        """Let another process have the directory; the file stays, so that nobody locks a removed one."""
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1
