"""What went wrong with a table, in words: a full disk, a file system that refuses, a name that is no file's name.

Owns the way from errors of Spark, delta-rs and the system to ours. Whatever it does not know passes unchanged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from penstock.errors import ConfigError, CorruptionError, PenstockError, Refusal

_FULL = ("No space left on device", "Disk quota exceeded")
_REFUSED = ("Read-only file system", "Permission denied", "Operation not permitted")
_LONG = "File name too long"
#: What Java says of it, whatever the reason.
_UNMADE = re.compile(r"Mkdirs failed to create (.+) \(exists=")
#: Of one part of a path, on the file systems of Linux.
NAME_BYTES_MAX = 255
_UNMAPPABLE = "unmappable characters"


class Damaged(CorruptionError):
    """A file of a table that cannot be read."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.path = path
        self.why = why

    def __str__(self) -> str:
        return f"{self.path} is damaged: {self.why}; put a copy of it back, or take it out of the table"


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Have whatever goes wrong with a file name it."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise Damaged(path, _first(error)) from error


def found(path: str) -> None:
    """Refuse a file of a table that is not there, or empty, which Spark passes over in silence."""
    with reading(path):
        if not os.path.getsize(path):
            raise Damaged(path, "it is empty")


@contextmanager
def told(path: str) -> Iterator[None]:
    """Say in words what goes wrong with a table."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        # Spark's, Py4J's, delta-rs's and the system's own have nothing in common but their text.
        _tell(path, str(error), error)
        raise


def mangled(path: str) -> ConfigError:
    """Return the error for a Java that cannot write names outside ASCII."""
    return ConfigError(
        f"table {path}: this Spark's Java cannot name directories after values outside ASCII; "
        f"start driver and executors with LC_ALL=C.UTF-8"
    )


def _tell(path: str, text: str, cause: BaseException) -> None:
    if any(each in text for each in _FULL):
        raise Refusal(
            "disk_full", f"table {path}: the disk is full; make room and start again, and the batch will be added, once"
        ) from cause
    if any(each in text for each in _REFUSED):
        raise ConfigError(
            f"table {path} cannot be written: {_line(text, _REFUSED)}; let Spark's user write there"
        ) from cause
    names = [name for unmade in _UNMADE.findall(text) for name in unmade.split("/")]
    if _LONG in text or any(len(name.encode()) > NAME_BYTES_MAX for name in names):
        raise ConfigError(
            f"table {path}: a partition's value is too long for the name of a directory, which has at most "
            f"{NAME_BYTES_MAX} bytes; partition by another column, or leave that topic out"
        ) from cause
    if _UNMAPPABLE in text:
        raise mangled(path) from cause


def _first(error: BaseException) -> str:
    """Return what an error says, in one line, without the path."""
    if isinstance(error, FileNotFoundError):
        return "it is not there"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".:")[:300] if lines else type(error).__name__


def _line(text: str, parts: tuple[str, ...]) -> str:
    """Return the first line that holds one of these."""
    lines = (line.strip() for line in text.splitlines())
    return next(line for line in lines if any(part in line for part in parts))[:300]
