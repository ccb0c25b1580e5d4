"""The topics' directories as they stand on disk, whatever the registry knows of them.

Owns `topics/` and `lost/` as places: where a topic's data is, and where a directory goes that nobody knows.
Invariant: nothing here removes data but `remove`, and that asks for the record of the deletion.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Collection, Iterator

from penstock.disk import Disk
from penstock.log import label
from penstock.log.label import TOPICS
from penstock.log.manifest import DATA_SUFFIX
from penstock.registry.records import DeletedTopic

LOST = "lost"
#: The file that names the data directory of a cluster's member.
MEMBER = "cluster.disk"
#: `/readyz` and `doctor` name this many.
SHOWN_MAX = 20

_JOURNAL = re.compile(r"s([0-9]+)\.[0-9]+\.journal")

_log = logging.getLogger("penstock.rescue")


class Directories:
    """The directories of one node's topics."""

    def __init__(self, disk: Disk, data_dir: str) -> None:
        self.disk = disk
        self.topics = f"{data_dir}/{TOPICS}"
        self.lost = f"{data_dir}/{LOST}"
        self._data_dir = data_dir

    def of(self, number: int) -> str:
        """Return where a topic's data is."""
        return f"{self.topics}/{number}"

    def numbers(self) -> tuple[int, int]:
        """Return the largest number of a topic, and of a subscription, that is seen on disk."""
        topic = subscription = 0
        for place in (self.topics, self.lost):
            for name in self.disk.list(place):
                topic = max(topic, number_in(name))
                found = label.read(self.disk, f"{place}/{name}")
                if found is not None:
                    topic = max(topic, found.number)
                    subscription = max(subscription, *(each.get("number", 0) for each in found.subscriptions or ()), 0)
                subscription = max(subscription, *journals(self.disk, f"{place}/{name}"), 0)
        return topic, subscription

    def subscriptions(self, number: int) -> dict[int, str]:
        """Return the subscriptions of a topic that are seen on disk: number -> name, or how else to call it."""
        return subscriptions(self.disk, self.of(number))

    def remove(self, deleted: DeletedTopic) -> None:
        """Remove what is left of a deleted topic; a directory that holds another one is not touched."""
        path = self.of(deleted.number)
        if not self.disk.exists(path):
            return
        found = label.read(self.disk, path)
        if found is not None and found.incarnation != deleted.incarnation:
            self.set_aside(str(deleted.number))
        else:
            self.disk.remove(path)

    def sync(self) -> None:
        """Return once what was removed stays so after a power loss."""
        if self.disk.exists(self.topics):
            self.disk.sync_directory(self.topics)

    def set_aside(self, name: str) -> None:
        """Move a directory that nobody knows to where nobody touches it."""
        self.disk.make(self.lost)
        taken = set(self.disk.list(self.lost))
        target = next(each for each in variants(name) if each not in taken)
        self.disk.rename(f"{self.topics}/{name}", f"{self.lost}/{target}")
        self.disk.sync_directory(self.lost)
        self.disk.sync_directory(self.topics)
        _log.error("%s", self._sentence(target))

    def may_be_of(self, name: str, topics: Collection[str]) -> bool:
        """Tell whether a directory may hold one of these topics: it says so, or does not say what it holds."""
        found = label.read(self.disk, f"{self.topics}/{name}")
        return found is None or found.name in topics

    def take_back(self, number: int, incarnation: int) -> bool:
        """Move a topic's directory back that was set aside, if there is one and its place is free."""
        if self.disk.exists(self.of(number)):
            return False
        for name in self.disk.list(self.lost):
            found = label.read(self.disk, f"{self.lost}/{name}")
            if found is not None and (found.number, found.incarnation) == (number, incarnation):
                self.disk.make(self.topics)
                self.disk.rename(f"{self.lost}/{name}", self.of(number))
                self.disk.sync_directory(self.topics)
                self.disk.sync_directory(self.lost)
                _log.warning("%s/%s is topic %s: the registry knows it again", self.lost, name, found.name)
                return True
        return False

    def problems(self) -> list[str]:
        """Return a sentence on each directory that was set aside."""
        names = self.disk.list(self.lost)
        more = [f"{len(names) - SHOWN_MAX} more directories in {self.lost}"] if len(names) > SHOWN_MAX else []
        return [self._sentence(name) for name in names[:SHOWN_MAX]] + more

    def _sentence(self, name: str) -> str:
        found = label.read(self.disk, f"{self.lost}/{name}")
        what = f"topic {found.name!r}" if found is not None else "a directory without a label"
        if self.disk.exists(f"{self._data_dir}/{MEMBER}"):
            return (
                f"{self.lost}/{name} holds {what}, which etcd does not know. It comes back by itself when a snapshot "
                "of etcd is put back that does. To read it without one, copy it to NEW/lost, run `penstock registry "
                "rebuild --data NEW`, and start a node on NEW that is in no cluster; if it is not wanted, "
                "remove the directory"
            )
        return (
            f"{self.lost}/{name} holds {what}, which the registry does not know. To take it back, stop the node and "
            f"run `penstock registry rebuild --data {self._data_dir}`; if it is not wanted, remove the directory"
        )


def subscriptions(disk: Disk, directory: str) -> dict[int, str]:
    """Return the subscriptions that are seen in a topic's directory: number -> name, or how else to call it."""
    found = {each: f"number {each}" for each in journals(disk, directory)}
    written = label.read(disk, directory)
    for each in written.subscriptions or () if written is not None else ():
        found[each.get("number", 0)] = str(each.get("name"))
    return found


def journals(disk: Disk, directory: str) -> set[int]:
    """Return the numbers of the subscriptions that have a journal below a topic's directory."""
    names = [name for shard in shards(disk, directory) for name in disk.list(f"{directory}/{shard}")]
    return {int(found[1]) for name in names if (found := _JOURNAL.fullmatch(name))}


def shards(disk: Disk, directory: str) -> list[int]:
    """Return the numbers of the shards that have a directory of their own."""
    try:
        return sorted(int(name) for name in disk.list(directory) if name.isascii() and name.isdigit())
    except NotADirectoryError:
        return []


def filled(disk: Disk, directory: str) -> list[int]:
    """Return the numbers of the shards in which something was stored."""
    return [
        number
        for number in shards(disk, directory)
        if any(name.endswith(DATA_SUFFIX) for name in disk.list(f"{directory}/{number}"))
    ]


def number_in(name: str) -> int:
    """Return the topic's number that a directory's name begins with, 0 if it does not."""
    found = re.match("[0-9]+", name)
    return int(found[0]) if found else 0


def variants(name: str) -> Iterator[str]:
    """Yield a name and, without end, others like it."""
    yield name
    for count in itertools.count(2):
        yield f"{name}.{count}"
