"""Who has which buckets of each topic: dealt at the deal point of a window from who is there, kept in the registry.

All brokers come to the same table, so it does not matter who writes it: the first one does, the others adopt it. What
was not dealt in time costs efficiency only; leases keep it safe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, cast

import msgspec

from penstock.clock import MILLISECOND, Clock, Timer
from penstock.cluster.entries import Entry
from penstock.cluster.keys import Keys, topic_in
from penstock.cluster.overseer import always
from penstock.cluster.records import Records
from penstock.dealing.form import pack, unpack
from penstock.dealing.table import DealerName, Member, Table, deal, moves
from penstock.dealing.windows import Schedule, Windows
from penstock.errors import CorruptionError, Refusal
from penstock.registry.answer import Answer
from penstock.registry.registry import Cancel, Event, Registry

#: Brokers that have consumers of a topic write its table one after the other, the last after this share of a window:
#: by then the first has, mostly, and they have nothing to write.
STAGGER = 0.25

#: A table holds from the next window on, or from the one after that where it was dealt late.
AHEAD_MAX = 2

#: What topics have that do not choose.
BUCKETS = 1024
WINDOW_MS = 1000

#: Hears that a table holds from now on.
Told: TypeAlias = Callable[[Entry, Table], None]

_log = logging.getLogger("penstock.cluster")


class _Dealt(NamedTuple):
    entry: Entry
    windows: Windows
    schedule: Schedule


class Tables:
    """The tables of all live topics, as one broker deals and follows them."""

    def __init__(
        self,
        registry: Registry,
        clock: Clock,
        keys: Keys,
        records: Records,
        may_deal: Callable[[], bool] = always,
    ) -> None:
        self._may_deal = may_deal
        #: Buckets that went to another consumer, by topic; and tables this broker wrote.
        self.moves: dict[str, int] = {}
        self.written = 0
        self._registry = registry
        self._clock = clock
        self._keys = keys
        self._records = records
        self._topics: dict[str, _Dealt] = {}
        self._deals: dict[str, Timer] = {}
        self._starts: dict[str, Timer] = {}
        self._told: list[Told] = []
        records.on_members(self._changed)
        self._unwatch: Cancel = registry.watch(keys.tables, registry.revision, self._heard)

    def close(self) -> None:
        """Deal no more."""
        self._unwatch()
        for topic in list(self._topics):
            self.forget(topic)

    def follow(self, entry: Entry) -> None:
        """Deal the buckets of a live topic from now on."""
        dealer = cast(DealerName, entry.settings.get("dealer", "simple"))
        width_ms = int(entry.settings.get("time_window_ms", WINDOW_MS))
        schedule = Schedule(dealer, int(entry.settings.get("bucket_count", BUCKETS)))
        self._topics[entry.id] = _Dealt(entry, Windows(width_ms), schedule)
        self.moves.setdefault(entry.id, 0)
        kept = self._registry.get(self._keys.table(entry.id))
        if kept is not None:
            self._adopt(entry.id, kept.value)
        self._changed(entry.id)

    def forget(self, topic: str) -> None:
        """Deal a topic no more."""
        self._topics.pop(topic, None)
        self.moves.pop(topic, None)
        for timers in (self._deals, self._starts):
            if timer := timers.pop(topic, None):
                timer.cancel()

    def at_present(self, topic: str) -> Table | None:
        """Return the table in force; None if there is none yet."""
        dealt = self._topics.get(topic)
        return dealt.schedule.at(dealt.windows.at(self._now_ms())) if dealt else None

    def coming(self, topic: str) -> Table | None:
        """Return the latest table that is known, in force or not."""
        dealt = self._topics.get(topic)
        return dealt.schedule.last if dealt else None

    def window(self, topic: str) -> int:
        """Return the number of the window that it is in a topic."""
        dealt = self._topics.get(topic)
        return dealt.windows.at(self._now_ms()) if dealt else 0

    def watch(self, told: Told) -> Cancel:
        """Tell of each table when it begins to hold."""
        self._told.append(told)
        return lambda: self._told.remove(told) if told in self._told else None

    def redeal(self, topic: str) -> Answer[bool]:
        """Deal as if nothing had been dealt before, which clears what joins and leaves have scattered.

        Answers with whether there was something to deal.
        """
        dealt = self._topics.get(topic)
        last = dealt.schedule.last if dealt is not None else None
        members = self._members(dealt) if dealt is not None else []
        if dealt is None or last is None or not members:
            return Answer.of(False)  # nobody is here, or the first deal is on its way
        window = dealt.windows.at(self._now_ms()) + 1
        fresh = deal(last.dealer, members, last.buckets, None, window)
        return self._write(dealt, msgspec.structs.replace(fresh, epoch=last.epoch + 1)).then_make(lambda _: True)

    def _members(self, dealt: _Dealt) -> list[Member]:
        return [Member(each.rack, each.id) for each in self._records.members(dealt.entry.id, dealt.entry.incarnation)]

    def _changed(self, topic: str, after_ms: int = 0) -> None:
        """Look at the next deal point, after the one that a time is of, whether there is something to deal."""
        dealt = self._topics.get(topic)
        if dealt is not None and topic not in self._deals:
            now_ms = self._now_ms()
            at_ms = dealt.windows.next_deal_point_ms(max(now_ms, after_ms + 1) if after_ms else now_ms)
            self._deals[topic] = self._after_ms(at_ms - now_ms, lambda: self._deal_point(dealt, at_ms, 0))

    def _deal_point(self, dealt: _Dealt, at_ms: int, waited_ms: int) -> None:
        """Deal for the window after the one of a deal point; brokers take turns, and whoever is late sees it done."""
        topic = dealt.entry.id
        del self._deals[topic]
        if self._topics.get(topic) is not dealt:
            return
        members = self._records.members(topic, dealt.entry.incarnation)
        window = dealt.windows.at(at_ms)
        table = dealt.schedule.deal([Member(each.rack, each.id) for each in members], window) if members else None
        if table is None:
            return
        turn = sorted({each.broker for each in members})
        if self._records.broker not in turn:
            return
        if not self._may_deal():
            self._changed(topic, self._now_ms())  # at the next deal point, if it may then
            return
        wait_ms = int(dealt.windows.width_ms * STAGGER * turn.index(self._records.broker) / len(turn))
        if wait_ms > waited_ms:
            wait = wait_ms - waited_ms
            self._deals[topic] = self._after_ms(wait, lambda: self._deal_point(dealt, at_ms, wait_ms))
        else:
            self._write(dealt, table)

    def _write(self, dealt: _Dealt, table: Table) -> Answer[int]:
        key, topic = self._keys.table(dealt.entry.id), self._keys.topic(dealt.entry.id)
        kept, there = self._registry.get(key), self._registry.get(topic)
        if there is None:
            return Answer.refused(Refusal("not_found", f"topic {dealt.entry.id} is gone"))
        guards = {key: kept.revision if kept else 0, topic: there.revision}

        def told(_: int | None, error: Exception | None) -> None:
            if error is None:
                self.written += 1
            elif not (isinstance(error, Refusal) and error.code == "conflict"):
                self._changed(dealt.entry.id)  # at the next deal point, again

        written = self._registry.propose({key: pack(table)}, (), guards)
        written.then(told)
        return written

    def _heard(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.value is not None:
                self._adopt(topic_in(event.key, self._keys.tables), event.value)

    def _adopt(self, topic: str, value: bytes) -> None:
        dealt = self._topics.get(topic)
        if dealt is None:
            return
        try:
            table = unpack(value)
        except CorruptionError as error:
            _log.error("the table of topic %s stays as it was: %s", topic, error)
            return
        last = dealt.schedule.last
        if last is not None and last.epoch != table.epoch:
            self.moves[topic] += moves(last, table)
        dealt.schedule.adopt(table)
        self._begin_later(dealt)
        if {Member(*each) for each in table.members} != set(self._members(dealt)):
            self._changed(topic)  # somebody came or went since it was dealt

    def _begin_later(self, dealt: _Dealt) -> None:
        topic = dealt.entry.id
        window = dealt.schedule.next_window()
        now_window = dealt.windows.at(self._now_ms())
        last = dealt.schedule.last
        if window is not None and window > now_window + AHEAD_MAX and last is not None:
            # Dealt by a clock that was ahead, or this one was set back: nobody waits until then.
            window = now_window + 1
            dealt.schedule.adopt(msgspec.structs.replace(last, window=window))
        if (timer := self._starts.pop(topic, None)) is not None:
            timer.cancel()
        if window is not None:
            wait_ms = dealt.windows.start_ms(window) - self._now_ms()
            self._starts[topic] = self._after_ms(wait_ms, lambda: self._begin(dealt))

    def _begin(self, dealt: _Dealt) -> None:
        self._starts.pop(dealt.entry.id, None)
        if self._topics.get(dealt.entry.id) is not dealt:
            return
        table = self.at_present(dealt.entry.id)
        if table is not None:
            for told in list(self._told):
                told(dealt.entry, table)
        self._begin_later(dealt)

    def _after_ms(self, wait_ms: int, call: Callable[[], None]) -> Timer:
        return self._clock.call_at(self._clock.monotonic() + max(wait_ms, 0) * MILLISECOND, call)

    def _now_ms(self) -> int:
        return self._clock.now() // MILLISECOND
