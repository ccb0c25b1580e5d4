"""Messages as resources: published in batches, shown, deleted by id.

A batch becomes one `Rows`; what is wrong with one of its messages is told of that one alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.columns import OPTIONAL_COLUMNS, Column
from penstock.dialects.dynamiq.codec import SOURCE, core_ids
from penstock.dialects.dynamiq.config import DynamiqConfig
from penstock.dialects.dynamiq.v2 import shapes
from penstock.dialects.dynamiq.v2.endpoint import V2, Call, Endpoint
from penstock.dialects.dynamiq.v2.queues import QueueResource
from penstock.errors import Refusal
from penstock.intake.receipt import PartRefusal, Receipt
from penstock.message import Batch, Rows
from penstock.node.admission import publish
from penstock.registry.answer import Answer
from penstock.rest import record
from penstock.rest.problem import BadField, Problem, problem_of
from penstock.rest.reading import Nothing, decode
from penstock.settings import SECOND_NS
from penstock.shown import shown_id
from penstock.units import times

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.dialects.dynamiq.queue import Queue
    from penstock.dialects.dynamiq.stats import Stats
    from penstock.http import Request
    from penstock.node.node import Node

_BATCH = msgspec.json.Decoder(shapes.MessagesIn)
_MESSAGE = msgspec.json.Decoder(shapes.MessageIn)


class Drafts(NamedTuple):
    """The messages of a request: those that can be stored, as one `Rows`, and what is wrong with the others."""

    rows: Rows
    #: By place in the request.
    problems: dict[int, Problem]
    #: How many there were.
    total: int

    def places(self) -> list[int]:
        """Return where in the request each row stood."""
        return [place for place in range(self.total) if place not in self.problems]


class MessageResource:
    """What is done with messages."""

    def __init__(
        self,
        node: Node,
        config: DynamiqConfig,
        queues: QueueResource,
        publisher: Callable[[Request], object],
        stats: Stats | None,
    ) -> None:
        self._node = node
        self._queues = queues
        self._publisher = publisher
        self._stats = stats
        self._batch_max = config.max_publish_batch
        self._bytes_max = min(config.max_body_bytes, node.config.node.message_bytes)

    def endpoints(self) -> list[Endpoint]:
        """Return the rows of the table."""
        many = V2 + "/queues/{queue}/messages"
        return [
            Endpoint(
                "POST",
                many,
                self.publish_messages,
                "Publish messages, each stored or refused by itself",
                shapes.SentAll,
                body=shapes.MessagesInShown,
                takes_messages=True,
            ),
            Endpoint("GET", many + "/{id}", self.show_message, "Show a message and leave it as it is", shapes.Message),
            Endpoint(
                "DELETE",
                many + "/{id}",
                self.delete_message,
                "Delete a message by its id, whoever has it",
                shapes.Deleted,
            ),
        ]

    # --- in -------------------------------------------------------------------------------------------------------

    def publish_messages(self, call: Call[Nothing, None]) -> Answer[shapes.SentAll] | shapes.SentAll:
        """Store messages together."""
        queue = self._queues.named(call.caller, "publish", call.names["queue"])
        drafts = self.drafts(call.request.body)
        if not drafts.rows.count:
            return _told(queue, drafts, {}, 0)
        if "dedup" in drafts.rows.columns:
            queue.topic.intake.pass_time()
        stored: Answer[shapes.SentAll] = Answer()

        def done(receipt: Receipt | None, error: BaseException | None) -> None:
            if receipt is not None:
                ids, repeated = dict(enumerate(receipt.ids())), receipt.repeated
            elif isinstance(error, PartRefusal):
                ids, repeated = error.ids, 0
                _refuse_rest(drafts, ids, error)
            else:
                gone = Refusal("gone", f"queue {queue.topic.name} went away")
                stored.refuse(error if isinstance(error, Exception) else gone)
                return
            self.sent(queue.topic.name, len(ids))
            stored.give(_told(queue, drafts, ids, repeated))

        call.request.let_go()
        publish(queue.topic, call.caller, drafts.rows, self._publisher(call.request), done)
        return stored

    def drafts(self, raw: bytes) -> Drafts:
        """Return what a request says; refuse it as a whole only if it is no batch."""
        entries = decode(raw, _BATCH).messages
        if len(entries) > self._batch_max:
            text = f"messages has {len(entries)} entries, at most {self._batch_max} are taken at once; divide them"
            raise BadField("bad_request", text, "messages")
        columns: dict[str, list[Any]] = {}
        bodies: list[bytes] = []
        problems: dict[int, Problem] = {}
        for place, entry in enumerate(entries):
            try:
                bodies.append(self._read(bytes(entry), len(bodies), columns))
            except Refusal as refusal:
                problems[place] = problem_of(refusal)
        record.pad(columns, len(bodies))
        given: dict[str, Column] = {
            name: columns[name]
            for name in OPTIONAL_COLUMNS
            if name in columns and any(value is not None for value in columns[name])
        }
        return Drafts(Rows.of(bodies, SOURCE, given), problems, len(entries))

    def _read(self, entry: bytes, row: int, columns: dict[str, list[Any]]) -> bytes:
        """Read one message as a row and return its body."""
        line: Any = record.decode(entry, _MESSAGE)
        if line.delay is not None and line.due is not None:
            raise BadField("bad_column", "delay and due are both set; choose one", "delay")
        now_ns, most = self._node.clock.now(), self._bytes_max
        body = record.read(line, row, columns, self._node.routing.mapping, now_ns)
        if len(body) > most:
            for values in columns.values():
                del values[row:]
            text = f"a message of {len(body)} bytes is over the limit of {most} (dynamiq.max_body_bytes)"
            raise BadField("message_too_big", text, "body")
        if line.delay:
            due = columns.setdefault("due", [])
            due += [None] * (row - len(due))
            due.append(now_ns + round(line.delay * SECOND_NS))
        return body

    def sent(self, queue: str, count: int) -> None:
        """Count messages that came."""
        if self._stats is not None:
            self._stats.sent(queue, count)

    # --- by id ----------------------------------------------------------------------------------------------------

    def show_message(self, call: Call[Nothing, None]) -> Answer[shapes.Message]:
        """Show one message."""
        queue = self._queues.named(call.caller, "read", call.names["queue"])
        ids = core_ids([call.names["id"]], queue.key)
        shown: Answer[shapes.Message] = Answer()

        def told(found: list[tuple[int, Batch, int]]) -> None:
            if found:
                shown.give(message(queue, found[0][1], found[0][2], found[0][0], self._node.routing.mapping))
            else:
                shown.refuse(_no_message(queue, call.names["id"]))

        queue.peek(ids, told)
        return shown

    def delete_message(self, call: Call[Nothing, None]) -> shapes.Deleted | Answer[shapes.Deleted]:
        """Delete one message, also one that somebody else has."""
        queue = self._queues.named(call.caller, "receive", call.names["queue"])
        count = queue.delete(core_ids([call.names["id"]], queue.key))
        if not count:
            raise _no_message(queue, call.names["id"])
        if self._stats is not None:
            self._stats.deleted(queue.topic.name, count)
        return queue.subscription.keeping.kept(shapes.Deleted(count))


def message(queue: Queue, batch: Batch, row: int, id_: int, mapping: Any) -> shapes.Message:
    """Return one row as it is shown."""
    shown = shapes.Message(
        id=str(shown_id(id_, queue.key)),
        timestamp=times.shown(batch.row_time(row)),
        source=batch.row_source(row),
    )
    record.show_columns(shown, batch, row, mapping)
    return shown


def _refuse_rest(drafts: Drafts, ids: dict[int, int], error: Refusal) -> None:
    """Tell why rows were not stored of which others were."""
    for row, place in enumerate(drafts.places()):
        if row not in ids:
            drafts.problems[place] = problem_of(error)


def _told(queue: Queue, drafts: Drafts, ids: dict[int, int], repeated: int) -> shapes.SentAll:
    stored = iter([ids[row] for row in sorted(ids)])
    told = [
        shapes.Sent(error=drafts.problems[place])
        if place in drafts.problems
        else shapes.Sent(id=str(shown_id(next(stored), queue.key)))
        for place in range(drafts.total)
    ]
    return shapes.SentAll(len(ids), len(drafts.problems), repeated, told)


def _no_message(queue: Queue, text: str) -> BadField:
    said = f"there is no message {text[:40]!r} in queue {queue.topic.name}; it was deleted, or never there"
    return BadField("not_found", said, "id")
