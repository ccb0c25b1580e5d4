"""What the world knows about messages and subscriptions from the outside: the state the rules are checked against.

Nothing here is read from the node. Where the outside cannot know (a reply that was lost, an ack that may not have
been written when the process died), the state says so: `MAYBE`, `either`, a range of attempts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from penstock.columns import place_of
from penstock.dialect import Chosen
from penstock.dialects import DIALECTS
from penstock.dialects.nsq.choices import Extend, NsqChoices
from penstock.settings import SubscriptionSettings, TopicSettings
from tests.simulation.extras import NOTHING, Extras
from tests.simulation.taste import Taste

if TYPE_CHECKING:
    from tests.simulation.connection import Connection


class Presence(Enum):
    """Whether a message is in the log."""

    MAYBE = "maybe"
    MUST = "must"
    GONE = "gone"
    REFUSED = "refused"


class Belongs(Enum):
    """Whether a subscription is to deliver a message."""

    MUST = "must"
    MAY = "may"
    NO = "no"


class State(Enum):
    """Where a message is in a subscription."""

    NEW = "new"
    LEASED = "leased"
    READY = "ready"
    DONE = "done"


@dataclass(eq=False, slots=True)
class Message:
    """One published message; its body tells it from all others."""

    body: bytes
    topic: TopicModel
    publisher: str
    order: int
    offered_ns: int
    life: int
    due_ns: int = 0
    expires_ns: int = 0
    extras: Extras = NOTHING
    presence: Presence = Presence.MAYBE
    answered: bool = False
    #: When it was first known to be in the log.
    stored_ns: int | None = None
    id: int | None = None
    time_ns: int | None = None
    #: No later first subscription gets it: the topic was emptied, or its last subscription went.
    orphaned: Belongs = Belongs.MUST
    #: Its shard, if the publisher named one.
    shard: int | None = None
    #: Its idempotence key.
    dedup: bytes = b""
    #: Where it stands in the queue files that NSQ would have, as the node last said.
    place: tuple[int, int] | None = None
    #: The node itself put it here, with more in its header than it had.
    is_letter: bool = False
    #: Nobody was told that it is stored, its sync failed, and the process died before it made up for that: the next one
    #: finds it in the page cache, cannot know, and a power loss takes it.
    is_ghost: bool = False

    @property
    def name(self) -> str:
        """What a trace calls it."""
        return self.body[:7].decode("ascii", "replace")

    @property
    def is_placed(self) -> bool:
        """Whether its key chose its shard."""
        return self.shard is None and not self.is_letter

    def is_before(self, time_ns: int) -> bool:
        """Tell whether it was known to be in the log before a time."""
        return self.stored_ns is not None and self.stored_ns < time_ns

    @property
    def stored(self) -> bool:
        """Whether it is known to be in the log."""
        return self.presence is Presence.MUST


@dataclass(eq=False, slots=True)
class Row:
    """One message in one subscription."""

    message: Message
    belongs: Belongs = Belongs.MUST
    state: State = State.NEW
    #: How often it was handed out: as seen, and the least the node may believe, which differs after a crash only.
    attempts: int = 0
    low: int = 0
    #: The most it ever came to, also before a seek that a power loss may undo.
    peak: int = 0
    #: The attempts that are in the journal for certain, and those that the last release wrote there a moment ago.
    floor: int = 0
    released_attempts: int = 0
    released_ns: int = -1
    due_ns: int = 0
    due_maybe: bool = False
    holder: Connection | None = None
    session: bool = False
    #: The version of the last lease to a session: what its receipt names.
    version: int = 0
    #: The receive that found it; 0 where it was sent to a connection.
    look: int = 0
    leased_ns: int = 0
    expires_ns: int = 0
    done_ns: int = 0
    #: It may be delivered again although it was finished: that was not written down for certain.
    maybe: bool = False
    certain: bool = False
    #: A clean stop has brought that to the disk.
    safe: bool = False
    #: It was finished once, and a seek that a power loss may undo took it up again.
    was_done: bool = False
    seeked_ns: int = 0

    def release(self, now_ns: int, due_ns: int = 0) -> None:
        """Be ready again."""
        self.released_attempts, self.released_ns = self.attempts, now_ns
        self.state, self.due_ns, self.due_maybe = State.READY, due_ns, False
        self.let_go()

    def settle(self, written_ns: int, full_ns: int) -> None:
        """Take the last release for written down if it was before a time, and the disk was not full since."""
        if max(0, full_ns + 1) <= self.released_ns < written_ns:
            self.floor = self.released_attempts

    def lease(self, attempts: int, since_ns: int, lease_ns: int, holder: Connection | None) -> None:
        """Be out at a connection or, without one, at a session."""
        self.let_go()
        self.state = State.LEASED
        self.attempts = self.low = attempts
        self.peak = max(self.peak, attempts)
        self.leased_ns, self.expires_ns = since_ns, since_ns + lease_ns
        self.holder, self.session = holder, holder is None
        if holder is not None:
            holder.held[self] = None

    def finish(self, now_ns: int) -> None:
        """Be done."""
        self.state, self.done_ns, self.maybe = State.DONE, now_ns, False
        self.certain = self.safe = False
        self.let_go()

    def is_open(self) -> bool:
        """Tell whether something the holder said about it may have been accepted or not."""
        return self.holder is not None and self.holder.leaves_open(self)

    def let_go(self) -> None:
        """Belong to no holder."""
        if self.holder is not None:
            self.holder.held.pop(self, None)
        self.holder, self.session = None, False


class Handed(NamedTuple):
    """A message as it was handed out."""

    id: int
    attempts: int
    time_ns: int
    body: bytes
    #: It was made between this time and now.
    since_ns: int
    lease_ns: int
    #: Its time is told in steps of this; 0 where it is not told.
    grain_ns: int = 1
    #: The receive that found it; 0 where it was sent to a connection.
    look: int = 0


@dataclass(eq=False, slots=True)
class Rule:
    """A subscription's filter and the mapping it is read with, from a time on."""

    since_ns: int
    allowed: tuple[str, ...] | None
    is_default: bool
    mapping: dict[str, int]

    def takes(self, bits: int) -> bool:
        """Judge one message as the numbered rules of the routing policy say."""
        if self.allowed is None:
            return True
        if bits == 0 or not self.mapping or any(name not in self.mapping for name in self.allowed):
            return self.is_default
        return any(bits >> self.mapping[name] & 1 for name in self.allowed)


@dataclass(eq=False, slots=True)
class SubscriptionModel:
    """One subscription."""

    name: str
    topic: TopicModel
    settings: SubscriptionSettings
    rules: list[Rule]
    rows: dict[Message, Row] = field(default_factory=dict)
    #: What was asked for, and may hold or not.
    unsettled: list[Rule] = field(default_factory=list)
    #: Frames may have been written for nobody: attempts are then higher than seen.
    hidden: bool = False
    #: When somebody last seeked, emptied, paused or changed it.
    upheaval_ns: int = 0
    paused_ns: int | None = None
    #: Since when it keeps the order that its settings say; what was there before may be out in another.
    ordered_ns: int = -1
    #: Tastes of consumers that may have finished what they refused.
    pickies: dict[Taste, None] = field(default_factory=dict)
    #: Per publisher, shard, tag and key: the order of the last message first delivered, in this life.
    last_first: dict[tuple[str, int, str, bytes], int] = field(default_factory=dict)
    #: Acks the node accepted since it was made; None once that cannot be compared any more.
    acked: int | None = 0
    #: What it counted as filtered when this life of the node began; None if it began to count anew since.
    filtered_from: int | None = 0
    #: A crash happened while it was being made or deleted.
    doubtful: bool = False
    deleted: bool = False

    @property
    def is_queue(self) -> bool:
        """Whether clients of queues receive from it."""
        return self.name == "queue"

    def row(self, message: Message) -> Row:
        """Return the state of a message here."""
        row = self.rows.get(message)
        if row is None:
            row = self.rows[message] = Row(message)
        return row

    def takes(self, message: Message, now_ns: int, grace_ns: int) -> tuple[bool, bool]:
        """Return whether a filter that held since the message was offered takes it: (any of them, all of them)."""
        verdicts = [rule.takes(message.extras.traffic) for rule in self.unsettled]
        for number, rule in enumerate(self.rules):
            last = number + 1 == len(self.rules)
            if last or self.rules[number + 1].since_ns + grace_ns >= message.offered_ns:
                verdicts.append(rule.takes(message.extras.traffic))
        return any(verdicts), all(verdicts)

    def may_be_refused(self, message: Message) -> bool:
        """Tell whether a consumer may have finished a message because its own filter refuses it."""
        extras = message.extras
        for taste in self.pickies:
            if taste.tag not in ("", extras.tag) or self._is_elsewhere(taste, message):
                continue
            if message.id is None or not taste.wants(message.id, extras.header, extras.members):
                return True
        return False

    @staticmethod
    def _is_elsewhere(taste: Taste, message: Message) -> bool:
        return taste.shard is not None and message.id is not None and place_of(message.id)[0] != taste.shard

    def companions(self, message: Message) -> Iterator[Row]:
        """Go through the rows that the order of the subscription ties to a message, all of its own shard."""
        order = self.settings.order
        if message.id is None or order == "none" or (order == "key" and not message.extras.key):
            return
        shard = place_of(message.id)[0]
        topic = self.topic
        others = topic.keyed.get(message.extras.key, ()) if order == "key" else topic.messages.values()
        for other in others:
            if other is not message and other.id is not None and place_of(other.id)[0] == shard:
                row = self.rows.get(other)
                yield row if row is not None else self.row(other)

    def moved(self, message: Message) -> Iterator[tuple[Row, bool]]:
        """Go through rows of a message's key in other shards, from before the topic grew (True) or from after it."""
        if self.settings.order != "key" or not message.extras.key or not message.is_placed:
            return
        for other in self.topic.keyed.get(message.extras.key, ()):
            if not other.is_placed or other.id is None or message.id is None:
                continue
            if place_of(other.id)[0] == place_of(message.id)[0]:
                continue
            for grown_ns in self.topic.grown_ns:
                if other.is_before(grown_ns) and message.offered_ns > grown_ns:
                    yield self.row(other), True
                    break
                if message.is_before(grown_ns) and other.offered_ns > grown_ns:
                    yield self.row(other), False
                    break

    def may_be_revoked(self, row: Row, now_ns: int) -> bool:
        """Tell whether an earlier row of the key may have come back unseen, and taken this one with it."""
        if self.settings.order != "key" or row.message.id is None:
            return False
        for other in self.companions(row.message):
            early = other.message.id is not None and other.message.id < row.message.id
            here = early and other.state is State.LEASED and other.holder is row.holder
            if here and (other.maybe or now_ns >= other.expires_ns or other.is_open()):
                return True
        return False

    def revoke_behind(self, row: Row, now_ns: int, *, surely: bool = True) -> None:
        """Note that a row came back, or may have: later rows of its key are taken from whoever has them."""
        if self.settings.order != "key" or row.message.id is None:
            return
        for other in self.companions(row.message):
            if other.state is not State.LEASED or other.message.id is None or other.message.id < row.message.id:
                continue
            if surely and min(other.message.offered_ns, row.message.offered_ns) > self.ordered_ns:
                other.release(now_ns)
            else:  # they may have been out before anybody asked for order
                other.maybe, other.expires_ns = True, min(other.expires_ns, now_ns)


@dataclass(eq=False, slots=True)
class TopicModel:
    """One incarnation of a topic."""

    name: str
    settings: TopicSettings = field(default_factory=TopicSettings)
    #: Its number in the registry; None until the node is known to have it.
    number: int | None = None
    messages: dict[bytes, Message] = field(default_factory=dict)
    ids: dict[int, Message] = field(default_factory=dict)
    #: Messages by key, where they have one.
    keyed: dict[bytes, list[Message]] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionModel] = field(default_factory=dict)
    #: Rows offered in this life.
    offered: int = 0
    gate_ns: int | None = None
    #: So many shards it was asked to have: many are made in a thread, and are there in their own time.
    asked_shards: int = 0
    #: When it was given more shards.
    grown_ns: list[int] = field(default_factory=list)
    #: Bits of its files were turned around.
    shaken: bool = False
    cut_unseen: bool = False
    was_shaken: bool = False
    #: When a sync of one of its files last failed, until when the node may not have heard of it, and whether it died
    #: before it could make up for that.
    spoiled_ns: int = -1
    unheard_ns: int = -1
    spoiled: bool = False
    #: Somebody emptied it, or its last subscription went.
    emptied: bool = False
    #: Retention may drop what nobody needs.
    tight: bool = False
    #: Idempotence keys and the messages that came with each, none of which is known not to be stored.
    dedups: dict[bytes, list[Message]] = field(default_factory=dict)
    #: A crash happened while it was being made or deleted.
    doubtful: bool = False
    deleted: bool = False

    @property
    def extend(self) -> Extend:
        """Whether its messages may carry headers."""
        return Chosen(self.settings, DIALECTS).of(NsqChoices).extend

    @property
    def shards(self) -> int:
        """How many shards it may have."""
        return max(self.settings.shards, self.asked_shards)

    def identify(self, message: Message, id_: int) -> str:
        """Note that an id names a message; return what is wrong with that, or nothing."""
        other = self.ids.get(id_)
        if other is not None and other is not message:
            return f"id {id_:x} of {self.name} names {other.name} and {message.name}"
        if message.id is not None and message.id != id_:
            return f"{message.name} in {self.name} has the ids {message.id:x} and {id_:x}"
        shard, _ = place_of(id_)
        if not 0 <= shard < self.shards or (message.shard is not None and message.shard != shard):
            return f"{message.name} in {self.name} is in shard {shard}"
        self.ids[id_] = message
        message.id = id_
        return ""


def is_spread(messages: list[Message]) -> bool:
    """Tell whether the rows of a publish may go to several shards, of which one may refuse and another not."""
    if len(messages) < 2 or messages[0].topic.shards < 2 or messages[0].shard is not None:
        return False
    return any(message.extras.key for message in messages)
