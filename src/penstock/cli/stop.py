"""`penstock stop`: end the node of a data directory, and no other process.

Invariant: only the process that holds the directory's lock is sent a signal.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from typing import Annotated

import typer

from penstock.cli.command import Json
from penstock.cli.data import Directory, data_directory
from penstock.cli.failure import REFUSED, UNREACHABLE, Failure
from penstock.cli.printer import Printer
from penstock.units.quantity import format_duration, parse_duration

#: How often is looked whether it is gone.
STEP_S = 0.05
#: How often a lock is looked at whose holder does not show.
LOOKS = 10
#: The kernel's list of locks, with pids as this process sees them.
LOCKS = "/proc/locks"


def stop(
    data: Directory = None,
    kill: Annotated[
        bool, typer.Option("--kill", help="End it at once (SIGKILL); the next start recovers what it was at.")
    ] = False,
    wait: Annotated[str, typer.Option(help="How long it may take.", metavar="DURATION")] = "60s",
    json: Json = False,
) -> None:
    """Stop the node of a data directory on this machine, and wait until it is gone.

    Exits with 3 if none runs there, and with 1 if it still runs after the time that it may take.
    """
    directory, patience_ns = data_directory(data), parse_duration(wait)
    pid = holder(directory)
    if pid is None:
        raise Failure(f"no node runs on {directory}.", UNREACHABLE)
    try:
        os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
    except ProcessLookupError:
        pass  # it was on its way out
    except PermissionError as error:
        raise Failure(f"the node of {directory} (pid {pid}) belongs to another user; stop it as that one.") from error
    end_ns = time.monotonic_ns() + patience_ns
    while holder(directory) == pid:
        if time.monotonic_ns() >= end_ns:
            text = f"still runs {format_duration(patience_ns)} later; --kill ends it at once"
            raise Failure(f"the node of {directory} (pid {pid}) {text}.", REFUSED)
        time.sleep(STEP_S)
    said = "was killed" if kill else "has stopped"
    Printer(json=json).done(
        {"pid": pid, "data": os.path.abspath(directory), "killed": kill}, f"the node of {directory} (pid {pid}) {said}"
    )


def holder(directory: str) -> int | None:
    """Return the pid of the process that has a data directory; None if nobody has."""
    from penstock.log.lock import FILE

    path = os.path.join(directory, FILE)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise Failure(f"{path} cannot be read: it belongs to another user; be that one.") from error
    try:
        for _ in range(LOOKS):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None
            except BlockingIOError:
                pid = _pid(descriptor)
            if pid is not None:
                return pid
            time.sleep(STEP_S)  # it may have ended between the two
    finally:
        os.close(descriptor)
    raise Failure(f"{path} is held by a process that cannot be seen from here, in a container perhaps: stop it there.")


def _pid(descriptor: int) -> int | None:
    """Return who holds a lock: as the kernel says, because a pid in a file may be that of another container."""
    said = int(os.pread(descriptor, 32, 0) or b"0")
    if not os.path.exists(LOCKS):
        return said or None
    status = os.fstat(descriptor)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    with open(LOCKS) as locks:
        # 1: FLOCK  ADVISORY  WRITE 812 fd:01:1234 0 EOF; those that wait have an arrow behind the number
        held = [words for line in locks if (words := line.split())[1] == "FLOCK"]
    found = {int(words[4]): words[5] for words in held if words[5].rpartition(":")[2] == str(status.st_ino)}
    if said in found:  # whatever the device: some file systems show another one there
        return said
    for pid, place in found.items():
        if pid > 0 and place.startswith(device):
            return pid
    return None
