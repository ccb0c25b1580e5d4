"""Ports of loopback: free ones to start a server on, and whose a port is.

Invariant: a number measured on a port is the server's own; several runs may share this machine.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

from bench.supply import Missing

#: Below the ports that the kernel gives to outgoing connections, which would take one while its server restarts.
OFFSETS = range(10_000, 25_000)
#: The state of a listening socket in /proc/net/tcp.
LISTENING = "0A"


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    return free_offset((0,))


def free_ports(count: int) -> list[int]:
    """Return so many of them, all different."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return sorted(found)


def free_offset(ports: tuple[int, ...]) -> int:
    """Return a number that, added to each port, gives free ones; drawn, so that two runs at once do not meet."""
    for _ in range(100):
        offset = random.choice(OFFSETS)
        with contextlib.ExitStack() as held:
            try:
                for port in ports:
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port + offset))
            except OSError:
                continue
            return offset
    raise Missing("no free ports on loopback")


def owns_port(pid: int, port: int) -> bool:
    """Return whether this process, and not somebody else, listens on a port."""
    listening = {f"socket:[{inode}]" for inode in _listeners(port)}
    return bool(listening) and any(name in listening for name in _open_files(pid))


def _open_files(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):  # the process has gone
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed since the directory was listed
                yield os.readlink(entry)


def _listeners(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]
