"""A small process between a node and a program it runs: no part of the program outlives the node.

Runs one command, writes what it says to a log of bounded size, passes SIGTERM on to it, and makes an end of everything
the command started, also if the node was killed. Standard library only, so that it is there in no time.
Invariant: when it exits, nothing it started is left; its exit code is the command's, 128 + n after signal n.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

#: From linux/prctl.h.
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
#: How long what a command leaves behind has to end by itself: a Java machine runs its own last steps.
REST_S = 2.0
#: Who does not die of SIGKILL within this long waits for a disk, and cannot be waited for.
FORCE_S = 10.0
#: The node comes first, for the processor and when the kernel has to choose whom to kill for memory (0 to 1000).
NICENESS = 5
OOM_SCORE = 500
SIGNALLED = 128
#: As shells say it.
NOT_RUN = 127


class Log:
    """A file that is moved aside once when it grows too large, so that both together stay within twice its bound."""

    def __init__(self, path: str, bytes_max: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._file = self._open()

    def write(self, content: bytes) -> None:
        """Add to it; a full disk loses lines, never the command."""
        with suppress(OSError):
            if self._file.tell() + len(content) > self._bytes_max and self._file.tell():
                os.replace(self._path, self._path + ".1")
                full, self._file = self._file, self._open()
                full.close()
            self._file.write(content)

    def close(self) -> None:
        """Write nothing more."""
        self._file.close()

    def _open(self) -> io.FileIO:
        return open(self._path, "ab", buffering=0)


class Keeper:
    """One command and everything it starts."""

    def __init__(self, command: list[str], log: Log, parent: int, stop_s: float) -> None:
        self._log = log
        self._parent = parent
        self._stop_s = stop_s
        self._wake, waker = socket.socketpair()
        for end in (self._wake, waker):
            end.setblocking(False)
        self._waker = waker
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        # A signal only wakes the loop below, which looks at what happened.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        # Its own parent is this process, which dies only by force: then it shall not be left alone.
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )
        assert self._child.stdout is not None
        self._output = self._child.stdout.fileno()
        os.set_blocking(self._output, False)

    def run(self) -> int:
        """Return the exit code once the command, and what it started, has ended."""
        end_s: float | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            selector.register(self._output, selectors.EVENT_READ)
            while self._child.poll() is None:
                now_s = time.monotonic()
                if end_s is not None and now_s >= end_s:
                    self._child.kill()
                for key, _ in selector.select(None if end_s is None else max(end_s - now_s, 0.1)):
                    if key.fd == self._output and not self._copy():
                        selector.unregister(self._output)
                    elif key.fd != self._output:
                        end_s = self._told(end_s)
        self._clear()
        self._copy_rest()
        code = self._child.returncode
        return code if code >= 0 else SIGNALLED - code

    def _told(self, end_s: float | None) -> float | None:
        """Look at the signals that came; return when the command must have ended."""
        numbers = self._wake.recv(4096)
        if any(number != signal.SIGCHLD for number in numbers):
            if self._is_orphan():  # nobody is left it could commit to, and the next node wants to start its own
                self._child.kill()
            else:
                self._child.terminate()
            return end_s or time.monotonic() + self._stop_s
        # Orphans of the command have become children of this process; it alone can let them go.
        for pid in descendants(os.getpid()):
            if pid != self._child.pid:
                reap(pid)
        return end_s

    def _is_orphan(self) -> bool:
        return os.getppid() != self._parent

    def _copy(self) -> bool:
        """Write down what the command said; False at the end of it."""
        try:
            content = os.read(self._output, 65536)
        except BlockingIOError:
            return True
        self._log.write(content)
        return bool(content)

    def _copy_rest(self) -> None:
        with suppress(BlockingIOError):
            while content := os.read(self._output, 65536):
                self._log.write(content)

    def _clear(self) -> None:
        """End what the command left behind: first it is asked to, then it is made to."""
        end_s = time.monotonic() + (0 if self._is_orphan() else REST_S)
        asked: set[int] = set()
        while left := [pid for pid in descendants(os.getpid()) if not reap(pid)]:
            is_over = time.monotonic() >= end_s
            if time.monotonic() >= end_s + FORCE_S:
                return
            for pid in left:
                if is_over or pid not in asked:
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL if is_over else signal.SIGTERM)
                    asked.add(pid)
            time.sleep(0.02)


def descendants(pid: int) -> Iterator[int]:
    """Yield every process below one, as /proc tells it at this moment."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", "rb") as file:
                    # Its name, in parentheses, may hold anything.
                    parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    below = children.get(pid, [])
    while below:
        one = below.pop()
        below += children.get(one, [])
        yield one


def reap(pid: int) -> bool:
    """Let go of a child that has ended; False for one that has not, or that is another's to let go."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return not os.path.exists(f"/proc/{pid}")


def prctl(option: int, value: int) -> None:
    """Set something about this process."""
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


_LIBC = ctypes.CDLL(None, use_errno=True)


def stand_back() -> None:
    """Let others go first; where that is forbidden, it goes on without."""
    with suppress(OSError):
        os.nice(NICENESS)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(OOM_SCORE))


def main(arguments: list[str]) -> int:
    """Run a command until it ends, SIGTERM comes or its parent dies."""
    parser = argparse.ArgumentParser(prog="python -m penstock.cli.keeper", description=main.__doc__)
    parser.add_argument("--parent", type=int, required=True, help="the process whose death ends the command")
    parser.add_argument("--log", required=True, help="file for everything the command says")
    parser.add_argument("--log-bytes", type=int, default=16 << 20, help="its bound; one older file is kept")
    parser.add_argument("--stop-s", type=float, default=20.0, help="seconds from SIGTERM to SIGKILL")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(arguments)
    stand_back()
    log = Log(given.log, given.log_bytes)
    try:
        keeper = Keeper(given.command, log, given.parent, given.stop_s)
    except OSError as error:
        log.write(f"{given.command[0]} cannot be run: {error.strerror}\n".encode())
        return NOT_RUN
    if os.getppid() != given.parent:  # it died before its death could be told
        os.kill(os.getpid(), signal.SIGTERM)
    return keeper.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
