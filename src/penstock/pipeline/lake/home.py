"""What is remembered about a table beside it: whose table it is, batches half done, files not yet in it, and the lock.

It is a hidden directory next to the table's, so that the table's own holds nothing but what its readers want. Knows
nothing of formats. Invariant: a note is there whole or not at all, and outlives a power loss once it is written.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from penstock.errors import CorruptionError, Refusal

#: Longest wait for another writer, which holds the lock for some renames and one commit.
LOCK_S = 120.0
LOOK_S = 0.01
#: Longer than any batch is written.
STAGED_S_MAX = 7 * 86_400
#: Apps whose name can be a part of a file's name as it is; all others get a hash.
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Which table this is."""

    format: str
    #: What the format calls it; empty where it has no name for it.
    id: str = ""
    #: How many batches were added, where the format does not count them.
    version: int = 0
    partition_by: tuple[str, ...] = ()
    #: The columns as Spark writes them down, where the format does not keep them.
    schema: dict[str, Any] = {}


class Move(msgspec.Struct, frozen=True, array_like=True):
    """A file on its way into the table."""

    #: Below the directory of staged files.
    staged: str
    #: Below the table.
    final: str


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """The last batch of an app."""

    app: str
    version: int
    done: bool
    moves: list[Move] = []


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """A batch that is in the table, if the app's last one is not below it."""

    version: int
    rows: int
    mark: str


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """The last batches of an app."""

    app: str
    batches: list[Batch]


class Swap(msgspec.Struct, frozen=True, kw_only=True):
    """A merge that takes effect: one file comes, several go."""

    move: Move
    removed: list[str]


Kept = TypeVar("Kept", bound=msgspec.Struct)


class Home:
    """The directory beside one table."""

    def __init__(self, table: str) -> None:
        parent, name = os.path.split(table)
        self.table = table
        self.directory = os.path.join(parent, f".{name}.penstock")
        self.staging = os.path.join(self.directory, "staging")

    def made(self) -> None:
        """Make the directory."""
        os.makedirs(self.staging, exist_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only one who moves files; the lock ends with the process."""
        with self._holding("lock", LOCK_S) as held:
            if not held:
                raise Refusal(
                    "conflict",
                    f"table {self.table} has been locked for {LOCK_S:.0f} s by another process, "
                    f"through {self.directory}/lock: end that process, and start again",
                )
            yield

    @contextmanager
    def compacting(self) -> Iterator[bool]:
        """Try to be the only one who compacts."""
        with self._holding("compacting", 0) as held:
            yield held

    @contextmanager
    def _holding(self, name: str, patience_s: float) -> Iterator[bool]:
        self.made()
        end = time.monotonic() + patience_s
        with open(os.path.join(self.directory, name), "ab") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= end:
                        yield False
                        return
                time.sleep(LOOK_S)
            yield True

    def identity(self) -> Identity | None:
        """Return which table was here, or None if none is known."""
        return self._read("table.json", Identity)

    def identify(self, identity: Identity) -> None:
        """Remember which table is here."""
        self._write("table.json", identity)

    def note(self, app: str) -> Note | None:
        """Return what an app did last."""
        return self._read(f"{key(app)}.batch", Note)

    def notes(self) -> list[Note]:
        """Return what every app did last."""
        if not os.path.isdir(self.directory):
            return []
        names = [name for name in sorted(os.listdir(self.directory)) if name.endswith(".batch")]
        return [note for name in names if (note := self._read(name, Note)) is not None]

    def write(self, note: Note) -> None:
        """Remember what an app does."""
        self._write(f"{key(note.app)}.batch", note)

    def forget(self, app: str) -> None:
        """Remember nothing of an app."""
        _unlink(os.path.join(self.directory, f"{key(app)}.batch"))

    def past(self, app: str) -> list[Batch]:
        """Return the last batches of an app, the last of them last."""
        found = self._read(f"{key(app)}.past", Past)
        return [] if found is None else found.batches

    def remember(self, app: str, batches: list[Batch]) -> None:
        """Remember the last batches of an app."""
        self._write(f"{key(app)}.past", Past(app=app, batches=batches))

    def swap(self) -> Swap | None:
        """Return the merge that is taking effect."""
        return self._read("swap.json", Swap)

    def begin(self, swap: Swap) -> None:
        """Remember that a merge takes effect."""
        self._write("swap.json", swap)

    def end(self) -> None:
        """Remember that it did."""
        _unlink(os.path.join(self.directory, "swap.json"))

    def fresh(self, app: str, version: int) -> str:
        """Return a name for the staged files of a batch, below `staging`; what earlier tries left there is removed."""
        self.swept(app)
        os.makedirs(os.path.join(self.staging, key(app)), exist_ok=True)
        return os.path.join(key(app), f"{version}-{os.urandom(4).hex()}")

    def swept(self, app: str) -> None:
        """Remove all staged files of an app."""
        shutil.rmtree(os.path.join(self.staging, key(app)), ignore_errors=True)

    def aged(self) -> None:
        """Remove staged files of apps that never came back; the caller holds the lock."""
        kept = {move.staged.split("/")[0] for note in self.notes() if not note.done for move in note.moves}
        with os.scandir(self.staging) as entries:
            for entry in entries:
                if entry.name not in kept and time.time() - entry.stat().st_mtime > STAGED_S_MAX:
                    shutil.rmtree(entry.path, ignore_errors=True)

    def place(self, moves: list[Move]) -> None:
        """Move staged files into the table; those that are gone were moved before."""
        directories = set()
        for move in moves:
            final = os.path.join(self.table, move.final)
            directories.update(_made(os.path.dirname(final)))
            try:
                os.replace(os.path.join(self.staging, move.staged), final)
            except FileNotFoundError:
                if not os.path.exists(final):
                    raise CorruptionError(
                        f"table {self.table} lacks {move.final}, and {self.staging} does not have it either: "
                        f"somebody removed it; archive the rows again into a new table"
                    ) from None
            directories.add(os.path.dirname(final))
        for directory in sorted(directories):
            synced(directory)

    def _read(self, name: str, kind: type[Kept]) -> Kept | None:
        path = os.path.join(self.directory, name)
        try:
            with open(path, "rb") as file:
                return msgspec.json.decode(file.read(), type=kind)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise CorruptionError(f"{path} is not what was written: {error}") from None

    def _write(self, name: str, value: msgspec.Struct) -> None:
        self.made()
        path = os.path.join(self.directory, name)
        with open(f"{path}.new", "wb") as file:
            file.write(msgspec.json.encode(value))
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)
        synced(self.directory)


def key(app: str) -> str:
    """Return a name for an app that can be a part of a file's."""
    return app if _PLAIN.fullmatch(app) else hashlib.blake2b(app.encode(), digest_size=16).hexdigest()


def synced(path: str) -> None:
    """Have a file or a directory on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _made(directory: str) -> list[str]:
    """Make a directory, and return those that got a new entry thereby."""
    changed = []
    missing = directory
    while not os.path.isdir(missing):
        missing = os.path.dirname(missing)
        changed.append(missing)
    os.makedirs(directory, exist_ok=True)
    return changed


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
