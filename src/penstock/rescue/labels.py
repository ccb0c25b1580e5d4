"""Keeps the label of every topic's directory as the registry has it, so that a lost registry can be made again.

Hears of changes by watching; writes in the executor, because nobody waits for a label.
Invariant: one label of a topic is written at a time, and the last one written is the newest.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import CorruptionError
from penstock.log import label
from penstock.log.label import Label
from penstock.registry.catalog import SUBSCRIPTIONS, TOPICS, Catalog
from penstock.registry.records import TopicRecord
from penstock.registry.registry import Event

if TYPE_CHECKING:
    from penstock.node.node import Node
    from penstock.node.topic import Topic

_log = logging.getLogger("penstock.rescue")


class Labels:
    """The labels of a running node's topics."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._by_number: dict[int, Topic] = {}
        #: Topics whose label is being written, and whether it is out of date already.
        self._writing: dict[Topic, bool] = {}
        registry = node.catalog.registry
        self._cancels = [registry.watch(prefix, registry.revision, self._changed) for prefix in (TOPICS, SUBSCRIPTIONS)]

    def close(self) -> None:
        """Hear no more."""
        for cancel in self._cancels:
            cancel()

    def _changed(self, events: Sequence[Event]) -> None:
        topics: dict[Topic, None] = {}
        for event in events:
            topic = self._topic(event.key)
            if topic is not None and not topic.deleted:
                topics[topic] = None
        for topic in topics:
            self._write(topic)

    def _topic(self, key: str) -> Topic | None:
        if key.startswith(TOPICS):
            return self._node.topics.get(key[len(TOPICS) :])
        text = key.split("/")[1]
        if not (text.isascii() and text.isdigit()):  # nobody's
            return None
        number = int(text)
        found = self._by_number.get(number)
        if found is None or self._node.topics.get(found.name) is not found:  # it may have gone, and come again
            self._by_number = {topic.record.number: topic for topic in self._node.topics.values()}
            found = self._by_number.get(number)
        return found

    def _write(self, topic: Topic) -> None:
        if topic in self._writing:
            self._writing[topic] = True
            return
        record = self._node.catalog.known(topic.name)
        if topic.deleted or record is None:
            return
        try:
            content = label_of(self._node.catalog, record)
        except CorruptionError as error:  # a subscription's record: the label stays as it was until that is another
            _log.warning("the label of topic %s is not written: %s", topic.name, error)
            return
        self._writing[topic] = False
        disk = topic.disk
        disk.submit("seal", partial(label.write, disk, topic.path, content), partial(self._written, topic))

    def _written(self, topic: Topic, _: None, error: BaseException | None) -> None:
        is_old = self._writing.pop(topic)
        if error is not None and not topic.deleted:
            _log.warning("the label of topic %s could not be written: %s", topic.name, error)
        if is_old:
            self._write(topic)


def label_of(catalog: Catalog, record: TopicRecord) -> Label:
    """Return the label of a topic as the registry has it now."""
    return Label(
        name=record.name,
        incarnation=record.incarnation,
        number=record.number,
        shards=record.settings.shards,
        durability=record.settings.durability,
        record=msgspec.to_builtins(record),
        subscriptions=[msgspec.to_builtins(each) for each in catalog.subscriptions(record)],
    )
