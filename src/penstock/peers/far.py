"""A topic that another node has, to those who only publish: it takes rows as a topic here does, or says why not.

Owns nothing: rows go to the line to its node. Rights were looked at before, quotas are whoever publishes'.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from penstock.dialect import Chosen
from penstock.errors import Elsewhere, Refusal
from penstock.intake.receipt import Published, Receipt
from penstock.message import Rows
from penstock.peers.line import Line
from penstock.peers.rows import Head
from penstock.registry.answer import Answer
from penstock.registry.records import TopicRecord
from penstock.settings import TopicSettings

if TYPE_CHECKING:
    from penstock.node.node import Node
    from penstock.node.topic import Topic


#: Topics of others that are remembered; beyond it, it begins anew.
TOPICS_MAX = 10_000


@runtime_checkable
class Patient(Protocol):
    """A publisher that can be held back."""

    def hold_back(self, line: Line) -> None:
        """Publish nothing more until the line has room."""


class FarIntake:
    """What of an intake publishers need beside `publish`."""

    def __init__(self, topic: FarTopic | Unreached) -> None:
        self._topic = topic
        #: The window of keys ends when the rows come that are published next.
        self.passes_time = False

    def refuse(self, refusal: Refusal, count: int, done: Published) -> None:
        """Count rows that are not taken and tell their publisher."""
        self.passes_time = False
        node = self._topic.node
        node.ledger.add(refusal.code, self._topic.name, count, node.clock.now(), str(refusal))
        done(None, refusal)

    def pass_time(self) -> None:
        """Let the window of keys end when what is published next comes to the node that has them."""
        self.passes_time = True


class FarTopic:
    """One topic of another node."""

    def __init__(self, node: Node, record: TopicRecord, owner: str) -> None:
        self.node = node
        self.record = record
        self.name = record.name
        self.owner = owner
        self.chosen = Chosen(record.settings, node.dialects)
        self.intake = FarIntake(self)
        self._line: Line | None = None
        #: It moved, or is gone: whoever wants to publish asks anew.
        self.deleted = False

    @property
    def settings(self) -> TopicSettings:
        """What the user chose."""
        return self.record.settings

    @property
    def incarnation(self) -> int:
        """What tells it from a deleted one of the same name."""
        return self.record.incarnation

    @property
    def shards(self) -> range:
        """As many as it has."""
        return range(self.record.settings.shards)

    def publish(
        self, rows: Rows, publisher: object, done: Published, shard: int | None = None, *, synced: bool = False
    ) -> None:
        """Have rows taken in where the topic is; `done` hears as from a topic here."""
        passes_time, self.intake.passes_time = self.intake.passes_time, False
        line = self._line
        if line is None or line.is_over:
            if self.node.peers is None:
                self.intake.refuse(Refusal("unavailable", f"there is no way to node {self.owner}"), rows.count, done)
                return
            line = self._line = self.node.peers.line(self.owner)
        number = id(publisher) >> 4
        head = Head(
            0,
            number,
            self.name,
            self.incarnation,
            shard,
            rows.count,
            rows.source,
            rows.sequence,
            synced=synced,
            passes_time=passes_time,
        )
        line.publish(head, rows, partial(self._told, done))
        if line.is_full and isinstance(publisher, Patient):
            publisher.hold_back(line)

    def _told(self, done: Published, receipt: Receipt | None, error: BaseException | None) -> None:
        if error is not None:
            self.deleted = True  # it costs a look where it is
        done(receipt, error)


class Unreached:
    """A topic that is there and cannot be published to now: it refuses all rows, and says why."""

    def __init__(self, node: Node, name: str, refusal: Refusal) -> None:
        self.node = node
        self.name = name
        self.refusal = refusal
        #: None where it cannot be read.
        self.record = node.catalog.known(name)
        self.intake = FarIntake(self)

    @property
    def incarnation(self) -> int:
        """What tells it from a deleted one of the same name; 0 where that is not known."""
        return self.record.incarnation if self.record is not None else 0

    def publish(self, rows: Rows, publisher: object, done: Published, shard: int | None = None) -> None:
        """Refuse rows."""
        self.intake.refuse(self.refusal, rows.count, done)


#: Whatever takes rows in, here or on another node.
Target: TypeAlias = "Topic | FarTopic"
#: The same, or what should.
Reached: TypeAlias = "Topic | FarTopic | Unreached"


def target(node: Node, answer: Answer[Topic]) -> Answer[Target]:
    """Answer with a topic to publish to, on whichever node it is."""
    found: Answer[Target] = Answer()

    def told(topic: Topic | None, error: Exception | None) -> None:
        if topic is not None:
            found.give(topic)
            return
        if isinstance(error, Elsewhere):
            try:
                found.give(far(node, error))
                return
            except Elsewhere as there:
                error = there
        found.refuse(error or Refusal("unavailable", "there is no topic"))

    answer.then(told)
    return found


def far(node: Node, there: Elsewhere) -> FarTopic:
    """Return a topic of another node, or refuse that."""
    record, peers = node.known.record(there.topic), node.peers
    if record is None or peers is None:
        raise there
    found = peers.topics.get(there.topic)
    if found is None or found.deleted or found.owner != there.node or found.record != record:
        if len(peers.topics) >= TOPICS_MAX:
            peers.topics.clear()
        found = peers.topics[there.topic] = FarTopic(node, record, there.node)
    return found


def reached(node: Node, name: str) -> Reached | None:
    """Return a topic to publish to, on whichever node it is; None if there is none."""
    try:
        return node.find(name)
    except Elsewhere as there:
        try:
            return far(node, there)
        except Elsewhere:
            return Unreached(node, name, Refusal("unavailable", f"{there}, and there is no way to it now"))
    except Refusal as refusal:  # it is on its way from one node to another
        return Unreached(node, name, refusal)
