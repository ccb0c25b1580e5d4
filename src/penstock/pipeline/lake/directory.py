"""The directory a table is to be in: whether one can be there at all.

Owns the questions to the file system that come before any format. Changes nothing.
"""

from __future__ import annotations

import os

from penstock.errors import ConfigError


def checked(path: str) -> None:
    """Refuse a path that is no directory, cannot be written, or stands alone on its file system."""
    if os.path.lexists(path) and not os.path.isdir(path):
        raise ConfigError(f"table {path} is a file: name a directory")
    parent = os.path.dirname(path)
    there = parent
    while not os.path.exists(there):
        there = os.path.dirname(there)
    for each in (there, path):
        if os.path.exists(each) and not (os.path.isdir(each) and os.access(each, os.W_OK | os.X_OK)):
            raise ConfigError(f"table {path} cannot be written: {each} is not ours to write; change that, or the path")
    if os.path.isdir(path) and os.stat(path).st_dev != os.stat(parent).st_dev:
        raise ConfigError(
            f"table {path} is where a file system begins; files are prepared beside a table and moved into it, "
            f"so name a directory below it"
        )


def lost(path: str, home: str, what: str) -> ConfigError:
    """Return the error for a table that is not the one we wrote."""
    return ConfigError(
        f"table {path} {what} since Penstock last wrote to it: bring the old one back and start again, "
        f"or name another path; to begin a new table here, remove {home}, too"
    )


def same_partitions(path: str, found: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    """Refuse a table that is partitioned otherwise."""
    if found != wanted:
        raise ConfigError(
            f"table {path} is partitioned by {', '.join(found) or 'nothing'}, not by "
            f"{', '.join(wanted) or 'nothing'}: set partition_by so, or name another path"
        )


def empty(path: str) -> None:
    """Refuse a directory that holds something already."""
    if os.path.isdir(path):
        with os.scandir(path) as entries:
            for entry in entries:
                raise ConfigError(
                    f"table {path} holds {entry.name}, which Penstock did not write, and is no table: "
                    f"name an empty directory"
                )
