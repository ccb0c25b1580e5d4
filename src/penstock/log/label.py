"""The label of a topic's directory: whose log it is, for readers that have the files and no node or no registry.

Owns the file `topic.json`. The registry stays the truth; the label follows it.
Invariant: it is replaced by rename, so a reader finds a whole one or none.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from penstock.disk import Disk, is_full, replace_file
from penstock.errors import CorruptionError

FILE = "topic.json"
TOPICS = "topics"
#: A file of this name tells that a directory is a cache of what is elsewhere: what is not in it reads as zeros.
CACHED = "cached-from-kafka"


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader must know of a topic before it opens a shard."""

    name: str
    incarnation: int
    number: int
    shards: int
    durability: str
    #: What the registry says of the topic and its subscriptions, to make another registry of; None where an older
    #: version wrote the label. The log does not look into them.
    record: dict[str, Any] | None = None
    subscriptions: list[dict[str, Any]] | None = None


#: Made here, by one thread: msgspec learns a type when it first reads one, and dies where two threads do at once.
DECODER = msgspec.json.Decoder(Label)


def write(disk: Disk, directory: str, label: Label) -> None:
    """Put a label on a topic's directory, unless it has this one; on a full disk the next start does it."""
    path = f"{directory}/{FILE}"
    content = msgspec.json.encode(label) + b"\n"
    if disk.exists(path):
        file = disk.open(path)
        try:
            if file.read(0, file.size()) == content:
                return
        finally:
            file.close()
    try:
        replace_file(disk, path, content)
    except OSError as error:
        if not is_full(error):
            raise


def read(disk: Disk, directory: str) -> Label | None:
    """Return the label of a directory, or None where there is none that can be read."""
    try:
        file = disk.open(f"{directory}/{FILE}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return DECODER.decode(file.read(0, file.size()))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    finally:
        file.close()


def labels(data_dir: str) -> list[tuple[str, Label]]:
    """Return (directory, label) of every topic below a data directory, sorted by name."""
    topics = os.path.join(data_dir, TOPICS)
    if not os.path.isdir(topics):
        raise FileNotFoundError(f"{data_dir} is no data directory: there is no {TOPICS} in it")
    found = []
    for number in os.listdir(topics):
        directory = os.path.join(topics, number)
        try:
            with open(os.path.join(directory, FILE), "rb") as file:
                content = file.read()
        except (FileNotFoundError, NotADirectoryError):
            continue  # being made, or being deleted
        try:
            found.append((directory, DECODER.decode(content)))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CorruptionError(f"{directory}/{FILE} is not a label: {error}") from error
    return sorted(found, key=lambda each: each[1].name)
