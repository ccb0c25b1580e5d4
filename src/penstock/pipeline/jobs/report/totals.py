"""The sums of topics as plain data, what else is counted within each, and the limits that hold for every engine."""

from __future__ import annotations

import msgspec

from penstock.pipeline.jobs.report.span import HOUR_US

#: A key or tag is shown so long at most.
SHOWN_BYTES = 80


class Hot(msgspec.Struct, frozen=True):
    """Something that many messages have in common."""

    name: str
    messages: int


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """One topic's sums."""

    topic: str
    messages: int
    body_bytes: int
    first_us: int | None
    last_us: int | None
    #: Messages that have a due time.
    timed: int
    #: Messages that have a key, and how many keys there are.
    keyed: int
    keys: int
    hot_keys: tuple[Hot, ...]


class Totals(msgspec.Struct, frozen=True):
    """The sums of the topics that are shown, largest first, and of all."""

    shown: tuple[Total, ...]
    topics: int
    messages: int
    body_bytes: int
    first_us: int | None
    last_us: int | None


def readable(value: bytes, whole_bytes: int | None = None) -> str:
    """Return bytes as text where they are UTF-8 that can be printed, else as hexadecimal digits."""
    more = "…" if whole_bytes is not None and whole_bytes > len(value) else ""
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError as error:
        # A character that was cut through at the end does not make it other than text.
        cut = bool(more) and error.start >= len(value) - 3 and error.reason == "unexpected end of data"
        text = value[: error.start].decode("utf-8") if cut else ""
    if text.isprintable() and (text or not value):
        return (text or "(empty)") + more
    return "0x" + value.hex() + more


#: What is counted within a topic, which column of the messages it comes from, and by which of ours.
SETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "traffic": ("timestamp", ("source", "step")),
    "shards": ("shard", ("shard",)),
    "sizes": ("body", ("size_class",)),
    "tags": ("tag", ("tag",)),
    "buckets": ("bucket", ("bucket",)),
    "waiting": ("due", ("slot",)),
}
#: Rows of a set and topic that are kept. Sizes have at most a thousand classes, waiting has 1,075 slots.
ROWS_MAX = 5_000

#: Messages that were published so long before the range are still found when they are delivered in it.
BEFORE_US = HOUR_US
#: In this order, where two have the same time.
STATIONS = ("published", "due", "delivered", "acked")
#: An attempt from this one on counts as this one.
ATTEMPTS_MAX = 10
#: Classes for each doubling, where a distribution is needed for every step of time.
COARSE = 8
