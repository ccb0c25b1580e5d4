"""The audit: who did what of importance here, from where, and whether it was allowed; a topic of the node's own.

One row for each act that the gate tells of. Gathers rows for a moment and publishes them together; knows nothing of who
reads them.
Invariant: it disturbs nobody. Rows above the rate, or that the topic refuses, are dropped and counted in the ledger.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from penstock.callers import OWN, Act
from penstock.clock import MILLISECOND, SECOND, Timer
from penstock.config import CallersConfig
from penstock.intake.receipt import Receipt
from penstock.message import Rows
from penstock.node.counts import SOURCE
from penstock.node.events import SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENTS
from penstock.settings import YEAR_NS, TopicSettings
from penstock.units import times

if TYPE_CHECKING:
    from penstock.node.node import Node
    from penstock.node.topic import Topic

TOPIC = f"{OWN}audit"
#: Under this reason the ledger counts rows that were not written.
DROPPED = "audit_dropped"

#: Rows wait this long for others.
FLUSH_NS = 100 * MILLISECOND


#: Size alone bounds it, whoever has read it.
KEPT_NS = 100 * YEAR_NS


class Entry(msgspec.Struct, omit_defaults=True):
    """One row: its body, and without `what` and `at` its headers."""

    act: str
    allowed: bool
    #: A user, or empty for one that did not say; `how` is what it showed.
    who: str
    address: str
    listener: str
    how: str
    topic: str = ""
    #: Why not.
    reason: str = ""
    #: In the caller's own words: method and path, command, channel.
    what: str = ""
    at: str = ""


class Audit:
    """The audit of one node."""

    def __init__(self, node: Node, config: CallersConfig) -> None:
        #: Rows written, and rows that could not be, since the node started.
        self.written = 0
        self.dropped = 0
        self._node = node
        self._clock = node.clock
        self._config = config
        self._entries: list[Entry] = []
        #: Rows that may still be noted in this second, and when it began.
        self._left = config.audit_rate_max
        self._second_ns = node.clock.monotonic()
        self._over = 0
        self._timer: Timer | None = None
        self._closed = False

    def settings(self) -> TopicSettings:
        """Return what the topic of the audit starts with."""
        size = self._config.audit_retention_bytes
        return TopicSettings(
            durability="os",
            retention_bytes=size,
            retention_hard=True,
            retention_age_ns=KEPT_NS,
            segment_bytes=min(max(size // SEGMENTS, SEGMENT_BYTES_MIN), SEGMENT_BYTES_MAX),
        )

    def note(self, act: Act) -> None:
        """Keep an act until the next flush, if it is one that is kept and the rate allows it."""
        caller = act.who
        is_nobody = caller is not None and "nothing" in (caller.identity.how, caller.identity.mark)
        if self._closed or (self._config.audit == "named" and is_nobody and not act.refused):
            return
        if self._timer is None:
            self._timer = self._clock.call_at(self._clock.monotonic() + FLUSH_NS, self.flush)
        if not self._left and not self._refilled():
            self._over += 1
            return
        self._left -= 1
        self._entries.append(
            Entry(
                act.act,
                not act.refused,
                caller.name if caller is not None else "",
                caller.address if caller is not None else "",
                caller.listener if caller is not None else "users",
                caller.identity.how if caller is not None else "file",
                act.topic,
                act.refused,
                act.what,
                times.shown(self._clock.now()),
            )
        )

    def _refilled(self) -> int:
        now_ns = self._clock.monotonic()
        if now_ns - self._second_ns >= SECOND:
            self._second_ns = now_ns
            self._left = self._config.audit_rate_max
        return self._left

    def close(self) -> None:
        """Write what there is, and nothing from now on."""
        self._closed = True
        self.flush()

    def flush(self) -> None:
        """Write what there is, at once."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        entries, self._entries = self._entries, []
        over, self._over = self._over, 0
        if over:
            self._drop(over, f"more than {self._config.audit_rate_max} rows a second (callers.audit_rate_max)")
        if entries:
            self._publish(entries)

    def _publish(self, entries: list[Entry]) -> None:
        rows = Rows.of(
            [msgspec.json.encode(entry) for entry in entries],
            SOURCE,
            {
                "key": [(entry.who or entry.address).encode() for entry in entries],
                "tag": [entry.act for entry in entries],
                "headers": [_headers(entry) for entry in entries],
            },
        )

        def told(topic: Topic | None, error: Exception | None) -> None:
            if topic is None:
                self._published(len(entries), None, error)
            else:  # A stopping node takes nothing more from anybody else.
                topic.intake.take(rows, self, partial(self._published, len(entries)))

        self._node.obtain(self._node.own_name(TOPIC)).then(told)
        topic = self._node.topics.get(self._node.own_name(TOPIC))
        if topic is not None and not topic.deleted:
            topic.intake.flush()

    def _published(self, rows: int, receipt: Receipt | None, error: BaseException | None) -> None:
        if error is None:
            self.written += rows
        else:
            self._drop(rows, str(error))

    def _drop(self, rows: int, why: str) -> None:
        self.dropped += rows
        self._node.ledger.add(DROPPED, TOPIC, rows, self._clock.now(), why)


def _headers(entry: Entry) -> bytes:
    """Return the headers of a row: what filters and people look for, as text."""
    told = {
        "act": entry.act,
        "allowed": "yes" if entry.allowed else "no",
        "who": entry.who,
        "address": entry.address,
        "listener": entry.listener,
        "topic": entry.topic,
        "reason": entry.reason,
    }
    return msgspec.json.encode({name: value for name, value in told.items() if value})
