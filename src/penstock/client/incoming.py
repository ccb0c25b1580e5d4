"""What a subscription hands out: Arrow batches under a lease, and single messages of them.

Owns the way back: ack, extend and release of a batch, of some of its rows, or of one message. Knows nothing of how it
reaches the node.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa

from penstock.errors import ConfigError
from penstock.units.quantity import parse_duration
from penstock.units.times import MILLISECOND_NS

if TYPE_CHECKING:
    import pandas
    import polars

Verb: TypeAlias = Literal["ack", "extend", "release"]
#: What becomes of some ids: the verb, the ids, and a time in milliseconds for the last two.
Settle: TypeAlias = Callable[[Verb, list[int], "int | None"], None]
#: Seconds, a timedelta, or a text as on the command line ("30s").
Span: TypeAlias = "timedelta | float | str"


def milliseconds(span: Span) -> int:
    """Return a time span as whole milliseconds."""
    if isinstance(span, str):
        try:
            return parse_duration(span) // MILLISECOND_NS
        except ConfigError as error:
            raise ValueError(str(error)) from None
    if isinstance(span, bool) or not isinstance(span, timedelta | int | float):
        raise TypeError(f'a time span is seconds, a timedelta or a str like "30s", not {span!r}')
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if seconds < 0:
        raise ValueError(f"a time span is not negative: {span}")
    return round(seconds * 1000)


class Batch:
    """Messages under a lease, as an Arrow record batch with the columns id, attempts, shard and those of the record."""

    __slots__ = ("_settle", "arrow")

    def __init__(self, arrow: pa.RecordBatch, settle: Settle) -> None:
        self.arrow = arrow
        self._settle = settle

    def __len__(self) -> int:
        return len(self.arrow)

    def __iter__(self) -> Iterator[Message]:
        return (Message(self, row) for row in range(len(self.arrow)))

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} messages>"

    @property
    def ids(self) -> list[int]:
        """The id of each message."""
        ids: list[int] = self.arrow.column("id").to_pylist()
        return ids

    def ack(self, rows: Sequence[int] | None = None) -> None:
        """Finish all messages, or those in some rows."""
        self._settle("ack", self._picked(rows), None)

    def extend(self, lease: Span, rows: Sequence[int] | None = None) -> None:
        """Hold messages this much longer, from now."""
        self._settle("extend", self._picked(rows), milliseconds(lease))

    def release(self, delay: Span = 0, rows: Sequence[int] | None = None) -> None:
        """Give messages back, to go out again, now or after a while."""
        self._settle("release", self._picked(rows), milliseconds(delay))

    def to_polars(self) -> polars.DataFrame:
        """Return a Polars data frame; needs polars."""
        import polars

        frame = polars.from_arrow(pa.Table.from_batches([self.arrow]))
        assert isinstance(frame, polars.DataFrame)  # a table is never a series
        return frame

    def to_pandas(self) -> pandas.DataFrame:
        """Return a pandas data frame; needs pandas."""
        return self.arrow.to_pandas()

    def _picked(self, rows: Sequence[int] | None) -> list[int]:
        ids = self.ids
        return ids if rows is None else [ids[row] for row in rows]


class Message:
    """One message of a batch."""

    __slots__ = ("_batch", "_row")

    def __init__(self, batch: Batch, row: int) -> None:
        self._batch = batch
        self._row = row

    def __repr__(self) -> str:
        return f"<Message {self.id}, {len(self.body)} bytes, attempt {self.attempts}>"

    def __getitem__(self, column: str) -> Any:
        """Return the value of a column, None where it is null."""
        return self._batch.arrow.column(column)[self._row].as_py()

    @property
    def id(self) -> int:
        """The number that names it within its topic."""
        return int(self["id"])

    @property
    def attempts(self) -> int:
        """How often it was handed out, this time included."""
        return int(self["attempts"])

    @property
    def body(self) -> bytes:
        """The message as it was sent."""
        return bytes(self["body"])

    @property
    def key(self) -> bytes | None:
        """Its key."""
        key: bytes | None = self["key"]
        return key

    @property
    def tag(self) -> str | None:
        """Its dispatch tag."""
        tag: str | None = self["tag"]
        return tag

    @property
    def headers(self) -> dict[str, Any]:
        """Its headers; empty where it has none."""
        headers = self["headers"]
        return dict(json.loads(headers)) if headers else {}

    @property
    def timestamp_ns(self) -> int:
        """When the node took it."""
        return int(self["timestamp"])

    def ack(self) -> None:
        """Finish it."""
        self._batch.ack([self._row])

    def extend(self, lease: Span) -> None:
        """Hold it this much longer, from now."""
        self._batch.extend(lease, [self._row])

    def release(self, delay: Span = 0) -> None:
        """Give it back, to go out again, now or after a while."""
        self._batch.release(delay, [self._row])
