"""Where a channel shall begin anew, as Youzan's clients say it: the end, a time, a byte position, a count of messages.

Owns the words and what they mean in the log. Knows neither commands nor paths: SUB_ADVANCED and /channel/setoffset
both end here. What must be read from disk for it is read without stopping the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple, cast, get_args

import numpy as np

from penstock.clock import SECOND
from penstock.dialects.nsq.places import edges
from penstock.errors import Refusal
from penstock.log.shard import Shard
from penstock.node.since import since
from penstock.node.topic import Topic

Kind = Literal["special", "timestamp", "virtual_queue", "msgcount"]

_INT64_MAX = (1 << 63) - 1
#: Seconds since 1970 that still fit when they are nanoseconds.
_SECONDS_MAX = _INT64_MAX // SECOND

#: Told (shard, offset) of each shard, or why there are none.
Found = Callable[[Sequence[tuple[int, int]]], None]


class Start(NamedTuple):
    """A place in a topic."""

    kind: Kind
    value: int

    @classmethod
    def of(cls, text: str) -> Start | None:
        """Return what a text says, None if it is not one of the forms."""
        kind, colon, number = text.partition(":")
        digits = number.removeprefix("-")
        if not (colon and kind in get_args(Kind) and digits.isascii() and digits.isdigit() and len(digits) <= 19):
            return None
        value = int(number)
        if kind == "special":
            return cls("special", value) if value == -1 else None
        most = _SECONDS_MAX if kind == "timestamp" else _INT64_MAX
        return cls(cast(Kind, kind), value) if 0 <= value <= most else None

    def find(self, topic: Topic, numbers: Sequence[int], found: Found, failed: Callable[[Exception], None]) -> None:
        """Tell `found` the offset in each of these shards, at once unless the disk is needed; or why it cannot."""
        shards = [topic.shards[number] for number in numbers]
        if self.kind in ("virtual_queue", "msgcount") and len(shards) > 1:
            raise Refusal("bad_request", f"{self.kind} is a place in one partition; name it")
        if self.kind == "special":
            found([(shard.number, shard.readable_end) for shard in shards])
        elif self.kind == "timestamp":

            def told(places: list[tuple[int, int]] | None, error: Exception | None) -> None:
                if error is not None:
                    failed(error)
                else:
                    found([(number, min(each, topic.shards[number].readable_end)) for number, each in places or ()])

            since(topic, numbers, self.value * SECOND).then(told)
        elif self.kind == "msgcount":
            found([(shards[0].number, _nth(shards[0], self.value))])
        else:
            number = shards[0].number
            _Search(topic, number, self.value, lambda offset: found([(number, offset)])).go_on()


def _nth(shard: Shard, count: int) -> int:
    """Return the offset that has `count` kept rows before it; holes in the offsets do not count."""
    low, high = shard.start, shard.readable_end
    while low < high:
        middle = (low + high) // 2
        if shard.rows_between(shard.start, middle + 1) > count:
            high = middle
        else:
            low = middle + 1
    return low


class _Search:
    """Looks for the first row at or after a byte position, in halves: some twenty batches of millions."""

    def __init__(self, topic: Topic, number: int, wanted: int, found: Callable[[int], None]) -> None:
        shard = self._shard = topic.shards[number]
        self._topic = topic
        self._wanted = wanted
        self._found = found
        self._low, self._high = shard.start, shard.readable_end
        self._fetched = -1

    def go_on(self) -> None:
        """Halve until the place is found, or until a batch must come from the disk."""
        while self._low < self._high:
            middle = (self._low + self._high) // 2
            batch = self._shard.read(middle)
            if batch is None and self._fetched != middle:
                self._fetched = middle
                self._shard.fetch(middle, partial(self.go_on))
                return
            if batch is None or batch.first >= self._high:  # nothing readable from the middle on
                self._high = middle
                continue
            places = edges(self._topic, self._shard.number, batch)
            row = int(np.searchsorted(places, self._wanted))
            if row > batch.count:  # beyond this batch
                self._low = batch.end
            elif row == 0 and places[0] > self._wanted:  # before it
                self._high = min(middle, batch.first)
            else:
                self._low = self._high = batch.first + row
        self._found(min(max(self._low, self._shard.start), self._shard.readable_end))
