"""Bringing the backlog of an nsqd topic into a topic of a node that serves nobody yet.

A message goes into the log once. A channel that had read it passes it as removed; one that had handed it out goes on
counting its attempts. What was brought is written beside the topic's log, so that nothing is ever brought twice.
Invariant: a message is noted as brought only once it survives a power loss and every channel knows what to do with it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np

from penstock.columns import Offsets, place_of
from penstock.delivery.cursor import Cursor
from penstock.delivery.journal import REMOVED
from penstock.delivery.subscription import Subscription
from penstock.dialects.nsq.choices import NsqChoices
from penstock.dialects.nsq.takeover.backlog import Backlog, Copies, Words
from penstock.dialects.nsq.takeover.diskqueue import Mask
from penstock.dialects.nsq.takeover.queues import Topic as Source
from penstock.errors import Refusal
from penstock.intake.receipt import Receipt
from penstock.message import Rows
from penstock.node.node import Node
from penstock.node.topic import Topic
from penstock.settings import SubscriptionSettings, TopicSettings

#: In the topic's directory: two words for each message that was brought.
BROUGHT = "nsq-brought"

#: Everything goes into the first shard: nsqd's messages have no key, and their order is worth keeping.
SHARD = 0

_KEY_BYTES = 16


class Brought:
    """The messages of a topic that were brought before."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, BROUGHT)
        try:
            with open(self._path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            content = b""
        # A write that was cut short names a message that is in no doubt: its batch is recognised by its sequence.
        self._whole = len(content) // _KEY_BYTES * _KEY_BYTES
        keys = np.frombuffer(content[: self._whole], "<u8").astype(np.uint64).reshape(-1, 2)
        self._keys = keys[np.argsort(keys[:, 0], kind="stable")]

    def among(self, keys: Words) -> Mask:
        """Tell which of these messages were brought."""
        if len(self._keys) == 0:
            return np.zeros(len(keys), np.bool_)
        at = np.minimum(np.searchsorted(self._keys[:, 0], keys[:, 0]), len(self._keys) - 1)
        found: Mask = (self._keys[at] == keys).all(axis=1)
        return found

    def add(self, keys: Words) -> None:
        """Write messages down."""
        content = keys.astype("<u8").tobytes()
        with open(self._path, "r+b" if os.path.exists(self._path) else "w+b") as file:
            file.truncate(self._whole)
            file.seek(self._whole)
            file.write(content)
            file.flush()
            os.fdatasync(file.fileno())
        self._whole += len(content)


class Transferred(msgspec.Struct, kw_only=True):
    """What came of one topic."""

    topic: str
    #: Messages stored now, and messages that an earlier import stored.
    messages: int = 0
    earlier: int = 0
    #: What differs here from what nsqd had, one sentence each.
    notes: list[str] = []


class Transfer:
    """One topic on its way."""

    def __init__(self, node: Node, source: Source, backlog: Backlog, told: Callable[[int], None]) -> None:
        self._node = node
        self._source = source
        self._backlog = backlog
        self._told = told
        self._done = Transferred(topic=source.name, notes=[])
        self._topic = self._make_topic()
        self._channels = [self._make_channel(name) for name in backlog.channels]
        self._shard = self._topic.shards[SHARD]
        self._brought = Brought(self._topic.path)
        #: Rows from here on are ours; those before it have a life of their own.
        self._since = self._shard.end

    async def run(self) -> Transferred:
        """Bring everything that was not brought before."""
        known = self._brought.among(self._backlog.keys)
        self._done.earlier = int(known.sum())
        for picked in self._backlog.batches(~known):
            if picked[0] >= self._backlog.own_from:
                self._close_gate()
            await self._bring(picked)
        self._close_gate()
        if self._done.messages == 0:  # whoever brings all of it again knows what changed since
            self._done.notes.clear()
        return self._done

    # --- names ----------------------------------------------------------------------------------------------------

    def _make_topic(self) -> Topic:
        name, node = self._source.name, self._node
        topic = node.topics.get(name)
        if topic is None:
            settings: TopicSettings = node.config.topic.settings()
            settings = NsqChoices(extend="on" if self._backlog.extended else "off").put(settings)
            settings = msgspec.structs.replace(settings, paused=self._source.paused)
            topic = node.create_topic(name, settings).now()  # nobody else uses this node
        elif self._backlog.extended and topic.chosen.of(NsqChoices).extend == "off":
            raise Refusal("conflict", f"topic {name} takes no headers, and messages in nsqd's files have some")
        elif self._source.paused and not topic.settings.paused:
            self._done.notes.append(f"topic {name} was paused in nsqd; here it was there already and is left running")
        if topic.settings.durability == "memory":
            raise Refusal(
                "conflict", f"topic {name} is kept in memory only; what is brought there would be gone at once"
            )
        return topic

    def _make_channel(self, name: str) -> Subscription:
        topic, paused = self._topic, self._source.channels.get(name, False)
        subscription = topic.subscriptions.get(name)
        if subscription is None:
            return topic.create_subscription(name, SubscriptionSettings(paused=paused)).now()
        if paused and not subscription.settings.paused:
            self._done.notes.append(
                f"channel {name} of {topic.name} was paused in nsqd; here it was there already and is left running"
            )
        return subscription

    def _close_gate(self) -> None:
        """Pause a topic that was paused in nsqd: what channels had is through, what only the topic had is not."""
        if self._topic.settings.paused:
            self._topic.pause(paused=True).now()

    # --- messages -------------------------------------------------------------------------------------------------

    async def _bring(self, picked: Offsets) -> None:
        backlog, topic = self._backlog, self._topic
        receipt = await self._publish(backlog.rows(picked))
        ids = receipt.ids()
        copies = dict(zip(backlog.channels, backlog.copies(picked), strict=True))
        everywhere = picked >= backlog.own_from
        nothing = Copies(everywhere, np.zeros(len(picked), np.int64))
        for subscription in topic.subscriptions.values():
            self._settle(subscription, ids, copies.get(subscription.name, nothing))
            subscription.flush()
        await self._survive()
        self._brought.add(backlog.keys[picked])
        self._done.messages += len(picked) - receipt.repeated
        self._done.earlier += receipt.repeated
        self._told(len(picked))

    async def _publish(self, rows: Rows) -> Receipt:
        stored: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()

        def done(receipt: Receipt | None, error: BaseException | None) -> None:
            if stored.done():
                return
            if receipt is not None:
                stored.set_result(receipt)
            else:
                stored.set_exception(error or Refusal("stopping", "the node stopped"))

        self._topic.publish(rows, self, done, SHARD)
        return await stored

    async def _survive(self) -> None:
        synced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._shard.sync(partial(_finish, synced))
        await synced

    def _settle(self, subscription: Subscription, ids: list[int], copies: Copies) -> None:
        """Let a channel pass what it had read, and count on where it had tried."""
        touched = np.flatnonzero(~copies.unread | (copies.attempts > 0))
        if len(touched) == 0:
            return
        cursor = subscription.cursors[SHARD]
        first = place_of(ids[0])[1]
        if not self._may_adopt(cursor, first):
            subscription.remove(np.array(ids)[~copies.unread].tolist())
            return
        # Rows before these are ours too, and nothing happened to them yet.
        ahead = first - cursor.position.offset
        stop = int(touched[-1]) + 1
        cursor.adopt(
            np.concatenate([np.ones(ahead, np.bool_), copies.unread[:stop]]),
            np.concatenate([np.zeros(ahead, np.int64), copies.attempts[:stop]]),
        )

    def _may_adopt(self, cursor: Cursor, first: int) -> bool:
        """Tell whether the next rows of a cursor are ours alone, so that nothing else has a say in them."""
        if (
            cursor.position.offset < self._since
            and cursor.source.rows_between(cursor.position.offset, self._since) == 0
        ):
            cursor.finish_below(self._since, REMOVED)
        return self._since <= cursor.position.offset <= first and cursor.rules.test is None


def _finish(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
