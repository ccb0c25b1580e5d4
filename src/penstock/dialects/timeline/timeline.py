"""A timeline at work: a topic with buckets, its one subscription, and which row has which message id.

Owns creating, finding and counting; leases are `leases`' affair, who receives `consume`'s. Everything is done by
batches. Knows no wire.
Invariant: of messages that are not deleted, no two that were created here have the same id.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.callers import Caller
from penstock.client.timeline.wire import Kind, TopicStatus
from penstock.clock import SECOND
from penstock.columns import OFFSET_BITS, Offsets
from penstock.dealing.buckets import drawn
from penstock.dealing.table import Table
from penstock.dealing.windows import Windows
from penstock.delivery.oldest import Oldest
from penstock.delivery.policies.buckets import Buckets
from penstock.dialects.timeline import columns
from penstock.dialects.timeline.choices import TimelineChoices
from penstock.dialects.timeline.counting import Counting, Status
from penstock.dialects.timeline.filling import Filling
from penstock.dialects.timeline.index import ABSENT, COMING, Expected, Hashes, Index
from penstock.dialects.timeline.names import are_message_ids
from penstock.dialects.timeline.reading import Found, read
from penstock.errors import Refusal
from penstock.intake.receipt import PartRefusal, Receipt
from penstock.message import Rows
from penstock.node.admission import publish
from penstock.registry.answer import Answer
from penstock.settings import YEAR_NS, SubscriptionSettings

if TYPE_CHECKING:
    from penstock.delivery.subscription import Subscription
    from penstock.dialects.timeline.consume import Consumer
    from penstock.node.node import Node
    from penstock.node.topic import Topic

#: The subscription that consumers of a timeline share. A lease may be renewed for as long as somebody does so.
NAME = "timeline"

#: What was deleted would come back, and its ids with it, which others may have by then.
NO_SEEK = (
    "messages of a timeline come once; read the topic's log from there, or as another subscription, which may seek"
)

MS = 1_000_000
#: How a topic is is looked up no more often, however many ask.
STATUS_NS = 20 * MS
#: Later than this cannot be said in nanoseconds.
_DUE_MS_MAX = (1 << 63) // MS - 1

Kinds: TypeAlias = npt.NDArray[np.int32]


class Wanted(NamedTuple):
    """Messages that somebody wants to create."""

    #: Empty where one is to be made.
    ids: pa.BinaryArray
    due_ms: Offsets
    bodies: pa.BinaryArray


class Created(NamedTuple):
    """What became of messages that somebody wanted to create."""

    #: The id of each, also of those that had none.
    ids: pa.BinaryArray
    #: 0, or why not.
    kinds: Kinds


def subscription_settings(choices: TimelineChoices) -> SubscriptionSettings:
    """Return how the subscription of a timeline deals its messages."""
    return SubscriptionSettings(
        lease_ns=min(60, choices.max_seconds_lease) * SECOND,
        lease_max_ns=100 * YEAR_NS,
        policy=Buckets.name,
        dealer=choices.dealer,
        buckets=choices.bucket_count,
        prefetch_ns=choices.prefetch_max_ms * MS,
    )


class Timeline:
    """One of a running node."""

    def __init__(self, node: Node, topic: Topic, subscription: Subscription, key: int) -> None:
        self.node = node
        self.topic = topic
        self.subscription = subscription
        subscription.no_seek = NO_SEEK
        self.index = Index(key)
        #: Creates that are being written, and the ids of each.
        self._writing: dict[Answer[Created], Hashes] = {}
        #: Those that receive, by their ids.
        self.consumers: dict[str, Consumer] = {}
        #: Rows that were released: when they are due since, and the version by which nobody has had them yet.
        self.released: dict[int, tuple[int, int]] = {}
        self.delivered = 0
        self._status: TopicStatus | None = None
        self._status_ns = 0
        #: One per shard.
        self._oldest: list[Oldest] = []
        #: Of the leases that ended by themselves, those that were counted already.
        self.told_expired = subscription.expired_leases
        self._rates = Rates(node.clock.monotonic(), topic.published)
        self._random = np.random.default_rng(key)
        self._filling = Filling(topic, subscription, self.index, self.released)
        #: Given once every row that is not deleted can be found by its id.
        self.is_whole = self._filling.begin()

    @property
    def choices(self) -> TimelineChoices:
        """What was chosen of it."""
        return self.topic.chosen.of(TimelineChoices)

    def now_ms(self) -> int:
        """Return the time, as clients count it."""
        return self.node.clock.now() // MS

    def use_windows(self) -> None:
        """Deal buckets by tables that brokers agree on, each from its window on."""
        policy = self.subscription.chosen_policy
        if isinstance(policy, Buckets):
            policy.use_windows(Windows(self.choices.time_window_ms))
            policy.ahead_max = self._ahead_max

    def _ahead_max(self) -> int:
        """Return how many messages may be with consumers ahead of their time."""
        return self.choices.prefetch_max_count if self.node.health.may("prefetch") else 0

    def adopt(self, table: Table) -> None:
        """Deal by a table as soon as it holds."""
        policy = self.subscription.chosen_policy
        if isinstance(policy, Buckets):
            policy.adopt(table)
            self.subscription.wake()

    def close(self) -> None:
        """Follow the log no more."""
        self.subscription.no_seek = ""
        self._filling.close()

    # --- in -------------------------------------------------------------------------------------------------------

    def create(
        self, caller: Caller, publisher: object, group: bytes, wanted: Wanted, trace: int | None = None
    ) -> Answer[Created]:
        """Take messages in; each is stored or refused by itself. Budget: 1 us a row.

        An id that is being written is judged once that is over: who sent it again after its connection broke takes the
        answer that it is there for stored.
        """
        if self.is_whole.is_given:
            return self._create(caller, publisher, group, wanted, trace)
        return self.is_whole.then_ask(lambda _: self._create(caller, publisher, group, wanted, trace))

    def _create(
        self, caller: Caller, publisher: object, group: bytes, wanted: Wanted, trace: int | None
    ) -> Answer[Created]:
        due_ms, count = wanted.due_ms, len(wanted.ids)
        ids = _with_ids(wanted.ids)
        kinds = self._judged(ids, due_ms, wanted.bodies, self.now_ms())
        hashes = self.index.hashes(ids)
        if self._refuse_known(hashes, kinds):
            before = next(answer for answer, written in self._writing.items() if np.isin(written, hashes).any())
            return before.settled().then_ask(lambda _: self._create(caller, publisher, group, wanted, trace))
        good = kinds == 0
        created = Created(ids, kinds)
        stored = int(good.sum())
        if not stored:
            return Answer.of(created)
        names = {
            "body": wanted.bodies,
            "due": pa.array(due_ms * MS),
            "message_id": ids,
            "group": pa.repeat(pa.scalar(group, pa.binary()), count),
            "bucket": pa.array(drawn(count, self.choices.bucket_count, self._random)),
        }
        if trace is not None:
            names["trace"] = pa.repeat(pa.scalar(trace, pa.int64()), count)
        rows = pa.record_batch(names)
        if stored < count:
            rows, hashes = rows.filter(pa.array(good)), hashes[good]
        expected = self.index.expect(hashes)
        answer: Answer[Created] = Answer()
        self._writing[answer] = hashes
        publish(
            self.topic,
            caller,
            Rows.of_arrow(rows, columns.SOURCE),
            publisher,
            partial(self._created, answer, created, expected, hashes, np.flatnonzero(good)),
        )
        return answer

    def _judged(self, ids: pa.BinaryArray, due_ms: Offsets, bodies: pa.BinaryArray, now_ms: int) -> Kinds:
        choices = self.choices
        kinds = np.zeros(len(ids), np.int32)
        most = _DUE_MS_MAX
        if choices.max_seconds_future:
            most = min(most, now_ms + choices.max_seconds_future * 1000)
        kinds[(due_ms > most) | (due_ms < 0)] = Kind.TIME_OUT_OF_RANGE
        kinds[_sizes(bodies) > choices.max_body_bytes] = Kind.BODY_TOO_LARGE
        kinds[~are_message_ids(ids)] = Kind.PROTOCOL
        return kinds

    def _refuse_known(self, hashes: Hashes, kinds: Kinds) -> bool:
        """Refuse ids that are there already, or stand earlier in the batch; True where one is being written."""
        ordered = np.sort(hashes)
        if (ordered[1:] == ordered[:-1]).any():
            _, first = np.unique(hashes, return_index=True)
            again = np.ones(len(hashes), np.bool_)
            again[first] = False
            kinds[again & (kinds == 0)] = Kind.DUPLICATE_ID
        found = self.index.find(hashes)
        there = (found != ABSENT) & (kinds == 0)
        stored = there & (found != COMING)
        if stored.any():
            gone = ~np.isin(found, self.subscription.unfinished(np.unique(found[stored])))
            self.index.drop(hashes[stored & gone])
            there &= ~(stored & gone)
        kinds[there] = Kind.DUPLICATE_ID
        return bool((there & ~stored).any())

    def _created(
        self,
        answer: Answer[Created],
        created: Created,
        expected: Expected,
        hashes: Hashes,
        places: Offsets,
        receipt: Receipt | None,
        error: BaseException | None,
    ) -> None:
        del self._writing[answer]
        if receipt is not None:
            self.index.settle(expected, hashes, receipt.column())
            answer.give(created)
            return
        stored = error.ids if isinstance(error, PartRefusal) else {}
        kept = np.array(sorted(stored), np.int64)
        self.index.drop(np.delete(hashes, kept))
        if not stored:
            answer.refuse(error if isinstance(error, Exception) else Refusal("gone", f"topic {self.topic.name} went"))
            return
        self.index.put(hashes[kept], np.array([stored[row] for row in kept.tolist()], np.int64))
        created.kinds[np.delete(places, kept)] = Kind.STORAGE
        answer.give(created)

    # --- which row ------------------------------------------------------------------------------------------------

    def rows_of(self, ids: pa.BinaryArray) -> Answer[Offsets]:
        """Answer with the core ids of messages that are not deleted, 0 for the others."""
        if self.is_whole.is_given:
            return self._rows_of(ids)
        return self.is_whole.then_ask(lambda _: self._rows_of(ids))

    def _rows_of(self, ids: pa.BinaryArray) -> Answer[Offsets]:
        found = self.index.find(self.index.hashes(ids))
        found[found == ABSENT] = 0
        for at in np.flatnonzero(found == 0).tolist():
            found[at] = columns.core_id(ids[at].as_py())
        there = np.flatnonzero(found)
        known = np.isin(found[there], self.subscription.unfinished(np.unique(found[there])))
        found[there[~known]] = 0
        answer: Answer[Offsets] = Answer()
        there = np.flatnonzero(found)

        def compared(parts: list[Found]) -> None:
            same = np.zeros(len(there), np.bool_)
            for part in parts:
                stored = columns.message_ids(part.batch, part.shard, part.rows)
                same[part.at] = np.asarray(pa.compute.equal(stored, ids.take(pa.array(there[part.at]))))
            found[there[~same]] = 0
            answer.give(found)

        read(self.topic, found[there], compared)
        return answer

    def forget(self, ids: pa.BinaryArray) -> None:
        """Free the ids of messages that are deleted."""
        self.index.drop_soon(ids)

    def note_delivered(self, batch: pa.RecordBatch) -> None:
        """Count what was just pushed."""
        self.delivered += len(batch)

    # --- how many -------------------------------------------------------------------------------------------------

    def status(self) -> TopicStatus:
        """Return how it is, as consumers are told; a moment ago is good enough for all of them."""
        now_ns = self.node.clock.monotonic()
        if self._status is None or now_ns - self._status_ns >= STATUS_NS:
            self._status, self._status_ns = self._look(), now_ns
        return self._status

    def _look(self) -> TopicStatus:
        backlog = self.topic.backlog(self.subscription)
        created, delivered = self._rates.look(self.node.clock.monotonic(), self.topic.published, self.delivered)
        return TopicStatus(
            available=backlog.ready,
            oldest_lag_ms=self._oldest_lag_ms(),
            create_rate=created,
            deliver_rate=delivered,
            consumers=len(self.consumers),
            window=self.now_ms() // self.choices.time_window_ms,
        )

    def _oldest_lag_ms(self) -> int:
        """Return for how long what was due first could have gone out."""
        wall_ns = self.node.clock.now()
        cursors = self.subscription.cursors
        self._oldest += [Oldest() for _ in cursors[len(self._oldest) :]]
        looks = [oldest.ns(cursor, wall_ns) for oldest, cursor in zip(self._oldest, cursors, strict=True)]
        found = [time_ns for time_ns in looks if time_ns is not None]
        return (wall_ns - min(found)) // MS if found else 0

    def count(self, status: Status) -> int:
        """Return how many messages are in a state."""
        self.subscription.expire(self.node.now())
        backlog = self.topic.backlog(self.subscription)
        by_status = {"available": backlog.ready, "waiting": backlog.waiting, "processing": backlog.leased}
        return sum(by_status.values()) if status == "all" else by_status[status]

    def count_between(self, status: Status, from_ms: int | None, to_ms: int | None) -> Answer[int]:
        """Answer how many messages are in a state, of those whose position lies in a range of times."""
        self.subscription.expire(self.node.now())
        counting = Counting(self.subscription, status, from_ms, to_ms)
        return self.node.slices.do(counting.step).then_make(lambda _: counting.total)


class Rates:
    """How many a second, over the time since somebody looked that long ago."""

    #: Whoever looks again sooner sees what was seen then.
    PAUSE_NS = SECOND // 2

    def __init__(self, now_ns: int, created: int) -> None:
        self._at_ns, self._created, self._delivered = now_ns, created, 0
        self._rates = (0.0, 0.0)

    def look(self, now_ns: int, created: int, delivered: int) -> tuple[float, float]:
        """Return what was created and delivered a second, of these totals."""
        spent_ns = now_ns - self._at_ns
        if spent_ns >= self.PAUSE_NS:
            rates = (created - self._created) * SECOND / spent_ns, (delivered - self._delivered) * SECOND / spent_ns
            self._rates = rates
            self._at_ns, self._created, self._delivered = now_ns, created, delivered
        return self._rates


def _with_ids(given: pa.Array) -> pa.BinaryArray:
    """Return ids, made where a message has none."""
    ids = given if given.type == pa.binary() else given.cast(pa.binary())
    missing = _sizes(ids) == 0
    if ids.null_count:
        missing |= np.asarray(ids.is_null())
    if not missing.any():
        return ids
    made = columns.made_ids(int(missing.sum()))
    if missing.all():
        return made
    return pa.compute.replace_with_mask(ids, pa.array(missing), made)


def _sizes(array: pa.BinaryArray) -> npt.NDArray[np.int32]:
    count = len(array)
    _, ends, _ = array.buffers()
    if not count:
        return np.zeros(0, np.int32)
    cuts = np.frombuffer(ends, np.int32, count + 1, array.offset * 4)
    return cuts[1:] - cuts[:-1]


def shard_ids(shard: int, offsets: Offsets) -> Offsets:
    """Return the core ids of rows."""
    return (shard << OFFSET_BITS) + offsets + 1
