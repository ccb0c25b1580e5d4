"""The line from a task or the driver to the node: rows are staged over it, and staged rows committed.

Owns retries. Rows come from Spark only once, so what was sent is kept until the node has it on disk, and is sent again
to a node that came back; what is kept is bounded, because a long task stages in several loads. In a cluster the rows of
each topic are staged, and committed, at the node that has it.
Invariant: every row of a task is in exactly one of the attempts that `stage` returns.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from types import TracebackType
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client import wire
from penstock.client.connection import Connection, Unreachable
from penstock.client.nodes import Nodes, Way
from penstock.client.retry import RetryPolicy
from penstock.errors import Elsewhere, PenstockError, Refusal
from penstock.pipeline.target import Target

#: A node that restarts is back within this time, and room is made on a full disk; then Spark is told.
PATIENCE_S = 30.0
#: What a task keeps for a node that may come back. Each load costs a sync of the disk.
LOAD_BYTES = 32 << 20
#: Spark makes batches by rows, however large these are, and a node takes batches up to a limit (64 MiB by default).
BATCH_BYTES = 4 << 20

#: So much of a row is shown in an error.
SAMPLE = 60

#: How the node names a row of a batch, what it lacks, and what of it is too long.
_ROW = re.compile(r"\brow (\d+)")
_ABSENT = re.compile(r"has no (\w+)")
_SIZED = re.compile(r": (\w+) has (\d+) bytes")

Result = TypeVar("Result")


TOPIC = "topic"


class Attempt(NamedTuple):
    """Rows that are staged: the topic that all of them are for, None where each says its own, and their name."""

    topic: str | None
    name: str


class Line:
    """Calls to the node of one target, or to its cluster, tried again where that may help."""

    def __init__(self, target: Target, patience_s: float = PATIENCE_S) -> None:
        self._target = target
        self._patience_s = patience_s
        self._nodes: Nodes | None = None
        #: Rows that name their topics are staged for each by itself, because there are several nodes.
        self._apart = False

    def __enter__(self) -> Line:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._hang_up()

    def stage(
        self, query: str, batch: int, batches: Iterator[pa.RecordBatch], home: int | None = None
    ) -> tuple[tuple[Attempt, ...], int]:
        """Stage rows that come once; return (attempts, rows). `home` is the shard of those without a key."""
        attempts: list[Attempt] = []
        rows = 0
        pieces = (piece for each in batches for piece in _cut(each))
        for first in pieces:
            staged, count = self._stage_load(query, batch, first, pieces, home)
            attempts += staged
            rows += count
        return tuple(attempts), rows

    def commit(self, query: str, batch: int, attempts: list[Attempt]) -> None:
        """Make attempts visible: all of a topic in one step, and of all topics or of none."""
        parts = self._by_topic(attempts)
        named = {topic: names for topic, names in parts.items() if topic is not None}
        decided = self._decide(query, batch, named) if len(parts) > 1 else {}
        for topic, names in parts.items():
            document = wire.Commit(
                query=query,
                batch=batch,
                attempts=names,
                topic=topic,
                any_rows=self._target.any_rows,
                decided=decided.get(topic, []),
            )
            self._patiently(topic, partial(_told, "commit", document))

    def _decide(self, query: str, batch: int, parts: dict[str, list[str]]) -> dict[str | None, list[str]]:
        """Have it written down that rows of several topics are committed, once all of them could be; return which."""
        for topic, names in parts.items():
            staged = wire.Commit(query=query, batch=batch, attempts=names, topic=topic)
            self._patiently(topic, partial(_told, "prepare", staged))
        document = wire.Decide(
            query=query,
            batch=batch,
            parts=[wire.Part(topic=topic, attempts=names) for topic, names in parts.items()],
            any_rows=self._target.any_rows,
        )
        told = wire.made(self._patiently(next(iter(parts)), partial(_told, "decide", document)), wire.Decided)
        return {part.topic: part.attempts for part in told.parts} if told.batch == batch else {}

    def abort(self, query: str, batch: int, attempts: list[Attempt]) -> None:
        """Drop attempts, if the node can be told; what this misses it sweeps after a day."""
        for topic, names in self._by_topic(attempts).items():
            document = wire.Commit(query=query, batch=batch, attempts=names, topic=topic)
            try:
                self._connected().call(topic, partial(_told, "abort", document), 0)
            except PenstockError:
                self._hang_up()

    def _by_topic(self, attempts: list[Attempt]) -> dict[str | None, list[str]]:
        """Return the names of attempts by the topic that says which node has them."""
        found: dict[str | None, list[str]] = {} if attempts else {self._target.topic: []}
        for attempt in attempts:
            found.setdefault(attempt.topic, []).append(attempt.name)
        return found

    def _stage_load(
        self, query: str, batch: int, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch], home: int | None
    ) -> tuple[list[Attempt], int]:
        kept: list[pa.RecordBatch] = []
        coming = _kept(first, rest, kept)

        def staged(topic: str | None, batches: Callable[[], Iterable[pa.RecordBatch]]) -> tuple[Attempt, int]:
            def send(connection: Connection) -> tuple[Attempt, int]:
                # A new name for each try: the node may have finished the last one without being able to say so.
                attempt = uuid.uuid4().hex
                stage = wire.Stage(query=query, batch=batch, attempt=attempt, topic=topic, home=home)
                there = list[int]()
                staged = _sent(connection, stage, _counted(batches(), there), _schema(first.schema, topic, self._apart))
                if staged.rows != sum(there):
                    raise PenstockError(f"the node has {staged.rows} of {sum(there)} rows that were staged")
                return Attempt(topic, attempt), staged.rows

            return self._patiently(topic, send)

        try:
            if not self._apart:
                try:
                    attempt, rows = staged(self._target.topic, lambda: chain(tuple(kept), coming))
                    return [attempt], rows
                except Elsewhere:
                    if self._target.topic is not None:
                        raise
                    self._apart = True
            for _ in coming:
                pass
            parts = [staged(name, partial(_only, kept, name)) for name in _topics(kept)]
            return [attempt for attempt, _ in parts], sum(rows for _, rows in parts)
        except Refusal as refusal:
            raise Refusal(refusal.code, _shown(str(refusal), kept)) from None

    def _patiently(self, topic: str | None, call: Callable[[Connection], Result]) -> Result:
        """Return what a call returns; wait for a node that is being restarted, or out of room for a moment."""
        retry = RetryPolicy(self._patience_s)
        way: Way | None = None
        while True:
            connection = None
            try:
                nodes = self._connected()
                connection = nodes.to(topic)
                return call(connection)
            except (Unreachable, Refusal) as error:
                if topic is None and isinstance(error, Elsewhere):
                    raise
                if self._target.path is not None or self._nodes is None:
                    self._hang_up()  # what is there next may listen elsewhere
                    retry.rest(error)
                    continue
                way = way or self._nodes.way(topic, retry)
                way.failed(connection, error)

    def _connected(self) -> Nodes:
        if self._nodes is None:
            self._nodes = Nodes(self._target.node())
        return self._nodes

    def _hang_up(self) -> None:
        nodes, self._nodes = self._nodes, None
        if nodes is not None:
            nodes.close()


def _told(action: str, document: wire.Commit | wire.Decide, connection: Connection) -> object:
    told: object = connection.act(action, document)
    return told


def _topics(batches: list[pa.RecordBatch]) -> list[str]:
    """Return the topics that rows name, in the order in which they come."""
    found = dict.fromkeys(name for batch in batches for name in batch.column(TOPIC).unique().to_pylist())
    if None in found:
        nulls = (batch.column(TOPIC).is_null().to_pylist() for batch in batches)
        row = next(rows.index(True) for rows in nulls if True in rows)
        raise Refusal("bad_column", f"row {row} has no {TOPIC}")
    return list(found)


def _only(batches: list[pa.RecordBatch], topic: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one topic, without its name."""
    for batch in batches:
        rows = batch.filter(pc.equal(batch.column(TOPIC), topic))
        if len(rows):
            yield rows.drop_columns([TOPIC])


def _counted(batches: Iterable[pa.RecordBatch], there: list[int]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        there.append(len(batch))
        yield batch


def _schema(schema: pa.Schema, topic: str | None, is_apart: bool) -> pa.Schema:
    """Return the schema of what is staged: rows that were told apart by their topics do not name them again."""
    if not is_apart or topic is None or TOPIC not in schema.names:
        return schema
    return schema.remove(schema.get_field_index(TOPIC))


def _shown(text: str, batches: list[pa.RecordBatch]) -> str:
    """Return what the node says of a row, with its key and the begin of its body; it tells its place in a batch."""
    found = _ROW.search(text)
    if found is None:
        return text
    place = int(found[1])
    rows = [batch.slice(place, 1) for batch in batches if place < len(batch)]
    row = rows[0] if len(rows) == 1 else next((row for row in rows if _is_meant(row, text)), None)
    if row is None:
        return text
    values = row.to_pylist()[0]
    return f"{text} (its key is {_sample(values.get('key'))}, its body {_sample(values.get('body'))})"


def _is_meant(row: pa.RecordBatch, text: str) -> bool:
    """Tell whether a row is one that the node would say this of."""
    values = row.to_pylist()[0]
    if (absent := _ABSENT.search(text)) is not None:
        return values.get(absent[1]) is None
    if (sized := _SIZED.search(text)) is not None:
        return len(values.get(sized[1]) or b"") == int(sized[2])
    if "headers" in text:
        try:
            return values["headers"] is not None and not isinstance(json.loads(values["headers"]), dict)
        except ValueError:
            return True
    return False


def _sample(value: str | bytes | None) -> str:
    if value is None:
        return "null"
    start = repr(value[:SAMPLE])
    return f"{start} and {len(value) - SAMPLE} more" if len(value) > SAMPLE else start


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch in pieces of a size that every node takes, unless a single row is larger."""
    if batch.nbytes <= BATCH_BYTES or len(batch) == 1:
        yield batch
        return
    half = len(batch) // 2
    yield from _cut(batch.slice(0, half))
    yield from _cut(batch.slice(half))


def _kept(
    first: pa.RecordBatch, rest: Iterator[pa.RecordBatch], kept: list[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield one load of batches, and keep each before it goes."""
    size = 0
    for batch in chain((first,), rest):
        kept.append(batch)
        size += batch.nbytes
        yield batch
        if size >= LOAD_BYTES:
            return


def _sent(
    connection: Connection, stage: wire.Stage, batches: Iterable[pa.RecordBatch], schema: pa.Schema
) -> wire.Staged:
    """Send batches as one attempt. What goes wrong where they come from stays what it is."""
    writer, answers = connection.put(stage, schema)
    try:
        for batch in batches:
            with connection.told():
                writer.write_batch(batch)
        with connection.told():
            writer.done_writing()
            answer = answers.read()
    finally:
        with connection.told():
            writer.close()  # raises what the node says, if it said something
    if answer is None:
        raise Unreachable(f"{connection.access.url} ended a stage without an answer")
    return wire.decoded(answer.to_pybytes(), wire.Staged)
