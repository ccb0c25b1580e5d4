"""What of a topic is not there although nobody deleted it: its record, while it is open, or its files.

Absence never deletes. Owns what is done instead: the topic is closed, or not opened, and what is left of it stays where
it can be taken back. Says so in the log and to whoever asks how the node is.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from penstock.clock import SECOND, Timer
from penstock.errors import Refusal
from penstock.log.kafka.disk import SharedDisk
from penstock.node.ending import Ending
from penstock.node.topic import Topic
from penstock.registry.answer import Answer
from penstock.registry.records import TopicRecord
from penstock.rescue.directories import shards

if TYPE_CHECKING:
    from penstock.node.node import Node

#: Topics that are made one after the other share the write that says so.
MARK_NS = SECOND // 4

_log = logging.getLogger("penstock.node")


class Absent:
    """The topics of a node of which something is missing."""

    def __init__(self, node: Node) -> None:
        self._node = node
        #: Why topics are not open whose files are gone, by name.
        self.missing: dict[str, str] = {}
        #: Topics that are open, and whose records do not say yet that their files were made.
        self._unmarked: dict[str, TopicRecord] = {}
        self._timer: Timer | None = None

    # --- its files ------------------------------------------------------------------------------------------------

    def has_files(self, record: TopicRecord) -> bool:
        """Tell whether a topic that the registry knows can be opened on this disk; one that never had files, too."""
        directories = self._node.directories
        path = directories.of(record.number)
        directories.take_back(record.number, record.incarnation)
        gone = set(range(record.settings.shards)) - set(shards(directories.disk, path))
        if not record.is_made or not gone:
            self.missing.pop(record.name, None)
            return True
        what = f"{path} is gone" if not directories.disk.exists(path) else f"shards of it are gone from {path}"
        self.missing[record.name] = (
            f"topic {record.name} is not open: {what}, and nobody deleted it. Put it back from a backup and start the "
            "node again, or delete the topic and make it anew"
        )
        _log.error("%s", self.missing[record.name])
        return False

    def check(self, name: str) -> None:
        """Refuse a topic whose files are gone."""
        if name in self.missing:
            raise Refusal("unavailable", self.missing[name])

    def delete(self, name: str) -> Answer[None]:
        """Delete a topic whose files are gone."""
        return self._node.catalog.delete_topic(name).then_make(lambda _: self._forgotten(name))

    def _forgotten(self, name: str) -> None:
        self.missing.pop(name, None)

    def opened(self, record: TopicRecord) -> None:
        """Take note of a topic whose files are there, to have that written down with others."""
        if record.settings.log == "local" and not record.settings.ephemeral and not record.is_made:
            self._unmarked[record.name] = record
            clock = self._node.clock
            self._timer = self._timer or clock.call_at(clock.monotonic() + MARK_NS, self.mark)

    def stop(self) -> None:
        """Write nothing more; what is not written down yet is with the next start."""
        if self._timer is not None:
            self._timer.cancel()

    def mark(self) -> None:
        """Write down of which topics files were made: if they are not there any more, somebody took them away."""
        self.stop()
        self._timer = None
        records, self._unmarked = list(self._unmarked.values()), {}
        if records:
            self._node.catalog.mark_made(records)  # if it is refused, the next start does it

    # --- its record -----------------------------------------------------------------------------------------------

    def is_deleted(self, topic: Topic) -> bool:
        """Tell whether somebody wrote down that a topic was deleted."""
        record = topic.record
        return any(
            (each.number, each.incarnation) == (record.number, record.incarnation)
            for each in self._node.catalog.deleted()
        )

    def let_go(self, topic: Topic) -> None:
        """Close a topic that the registry does not know any more, and set aside what this disk has of it."""
        node, record = self._node, topic.record
        if node.topics.get(topic.name) is not topic:
            return
        _log.error(
            "topic %s (number %d) is closed: the registry does not know it any more, and nobody deleted it. "
            "What it has on disk, or in Kafka, stays",
            topic.name,
            record.number,
        )
        del node.topics[topic.name]
        node.ticker.forget(topic)
        topic.begin_leaving()
        if isinstance(topic.disk, SharedDisk):
            topic.disk.close()  # somebody may have removed it in Kafka, too: what is sent there may fail the whole slot
            node.guarded(f"end of topic {topic.name}", topic.delete)
            node.disk.remove(topic.path)
            node.tell("left", topic)
        else:
            Ending(node, lambda: None).end([topic], partial(self._closed, topic))

    def heard(self, record: TopicRecord) -> None:
        """Open a topic again that was set aside, if the registry knows it again."""
        node, share = self._node, self._node.share
        if share is None or not share.is_home(record) or record.name in node.topics or node.stopping:
            return
        if node.directories.take_back(record.number, record.incarnation):
            node.lifecycle.open_again(record)

    def _closed(self, topic: Topic) -> None:
        node = self._node
        node.tell("left", topic)
        node.guarded(f"end of topic {topic.name}", partial(node.directories.set_aside, str(topic.record.number)))
        record = node.catalog.known(topic.name)
        if record is not None:
            self.heard(record)
