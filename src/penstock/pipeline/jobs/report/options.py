"""What a report is asked for, as one checked value.

Owns the names, defaults and limits of the options. Knows nothing of frames. Invariant: every limit keeps the page
bounded, however many topics, keys and subscriptions there are.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from penstock.errors import ConfigError, Refusal
from penstock.tally import TOPIC as COUNTS_TOPIC

#: Topics whose name begins so are the node's own: they are left out unless they are asked for by name.
OWN_PREFIX = "_penstock."
EVENTS_TOPIC = "_penstock.events"
__all__ = ["COUNTS_TOPIC", "EVENTS_TOPIC", "OWN_PREFIX", "Report", "check_names", "micros", "moment"]

MIB = 1 << 20
#: The years 1 and 9999, which both Python and Spark have.
FIRST_US, LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999


class Report(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which messages a report is about, and how much of them it shows."""

    #: The message columns that are read; ask the source for no more.
    COLUMNS: ClassVar[tuple[str, ...]] = (
        "topic", "shard", "offset", "timestamp", "source", "key", "tag", "bucket", "due", "body",
    )  # fmt: skip
    #: The columns of `_penstock.events` and `_penstock.counts` that are read.
    EVENT_COLUMNS: ClassVar[tuple[str, ...]] = ("timestamp", "body")

    title: str = "Penstock report"
    #: The range of time, the second not included; without them, whatever is there. A time without a zone is UTC.
    from_: datetime.datetime | None = msgspec.field(default=None, name="from")
    until: datetime.datetime | None = None
    #: Only these topics; all but the node's own if empty.
    topics: tuple[str, ...] = ()
    #: How many keys, tags, buckets, subscriptions of a topic are shown: those with most messages.
    top: int = 10
    #: How many topics are shown one by one; the others are counted together.
    topics_max: int = 20
    #: Into how many steps the range of time is divided, about.
    steps: int = 96
    #: How many coming windows the histogram of waiting messages has.
    windows: int = 48
    #: How much of each topic's bodies is compressed to find out what that brings; 0 leaves the advice out.
    sample_bytes: int = 2 * MIB

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        for name, least, most in (
            ("top", 1, 100),
            ("topics_max", 1, 100),
            ("steps", 1, 500),
            ("windows", 1, 200),
            ("sample_bytes", 0, 256 * MIB),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise ConfigError(f"{name} is {value}: set it to {least} at least and {most} at most")
        since_us, until_us = self.since_us, self.until_us
        if since_us is not None and until_us is not None and since_us >= until_us:
            raise ConfigError(f"from is {self.from_}, which is not before until, {self.until}: swap them")

    @property
    def since_us(self) -> int | None:
        """Return the begin of the range in microseconds since 1970."""
        return None if self.from_ is None else micros(self.from_)

    @property
    def until_us(self) -> int | None:
        """Return the end of the range in microseconds since 1970."""
        return None if self.until is None else micros(self.until)


def check_names(options: Report, there: Sequence[str]) -> None:
    """Refuse a topic that is asked for by name and is not there."""
    for name in options.topics:
        if name not in there:
            raise Refusal("not_found", f"topics: there is no topic {name}; there are {', '.join(there[:10]) or 'none'}")


def micros(moment: datetime.datetime) -> int:
    """Return a time in microseconds since 1970, exactly."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return (moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(microseconds=1)


def moment(time_us: int) -> datetime.datetime:
    """Return a time as Python has it, in UTC; one that Python cannot tell is the first or last it can."""
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(
        microseconds=min(max(time_us, FIRST_US), LAST_US)
    )
