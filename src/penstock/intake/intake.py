"""The way into a topic: from rows a dialect decoded to rows in the log and an answer to their publisher.

Owns rate, gathering, idempotence, the choice of a shard, and the answer. Knows nothing of subscriptions: the topic
hears of a batch once it is stored as durably as promised, after its publishers did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from weakref import WeakKeyDictionary

from penstock.budget import Share
from penstock.clock import SECOND, Clock
from penstock.columns import OFFSET_BITS, id_of
from penstock.disk import is_full
from penstock.errors import Refusal
from penstock.intake.dedup import NO_DUPLICATES, Dedup, Duplicates
from penstock.intake.gather import Gather, bytes_of
from penstock.intake.ledger import Ledger
from penstock.intake.limits import RateWindow, check_due
from penstock.intake.receipt import Owner, PartRefusal, Published, Receipt
from penstock.intake.spread import picked, spread, stored_before
from penstock.log.shard import Shard
from penstock.message import Batch, Rows
from penstock.registry.records import Growth
from penstock.settings import TopicSettings

#: A commit that is taken up again must find what it appended, however short a window the topic gives its publishers;
#: it writes down how far it got much more often than this.
SEQUENCE_WINDOW_NS_MIN = 300 * SECOND


class Intake:
    """What comes into one topic."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        shards: Sequence[Shard],
        settings: TopicSettings,
        memory: Share,
        ledger: Ledger,
        announce: Callable[[Shard, Batch], None],
        stored: Callable[[Shard, Batch], None],
        report_bug: Callable[[str, BaseException], None],
        grown: Sequence[Growth] = (),
    ) -> None:
        self.published = 0
        self.published_bytes = 0
        #: Why nothing is taken in any more; a code of the table of errors.
        self.closed: str | None = None
        self._name = name
        self._clock = clock
        self._shards = shards
        self._settings = settings
        self._ledger = ledger
        #: Told of rows with a due time as soon as they are in the log.
        self._announce = announce
        self._stored = stored
        self._report_bug = report_bug
        self._memory = memory
        self._gathers: list[Gather[Receipt]] = []
        self._rate = RateWindow(settings.rate) if settings.rate else None
        self._waits = settings.durability == "fsync"
        #: There is nothing to ask before rows are gathered.
        self._simple = False
        #: What is to be taken in once the topic has its new shards; None while it is not about to get some.
        self._held: list[tuple[Rows, object, Published, int | None, int]] | None = None
        self._dedup: Dedup | None = None
        #: Which shard is a publisher's own; made where there are several.
        self._homes: WeakKeyDictionary[object, int] | None = None
        self._next_home = 0
        self._take_in(grown)

    @property
    def forgotten_keys(self) -> int:
        """Idempotence keys dropped inside their window because there were too many."""
        return self._dedup.forgotten if self._dedup is not None else 0

    def configure(self, settings: TopicSettings) -> None:
        """Take other settings from now on."""
        self._settings = settings
        self._rate = RateWindow(settings.rate) if settings.rate else None
        self._simple = len(self._shards) == 1 and self._rate is None and self._held is None
        if self._dedup is not None:
            self._dedup.resize(settings.dedup_window_ns, sequence_window_ns(settings))

    # --- more shards ----------------------------------------------------------------------------------------------

    @property
    def is_held(self) -> bool:
        """Whether the topic is about to get more shards."""
        return self._held is not None

    def hold(self) -> None:
        """Store what is gathered and take nothing more until `release`: it would go where keys are no longer."""
        self.flush()
        if any(self._gathers):
            raise Refusal("conflict", f"topic {self._name} is storing messages at this moment; try again")
        self._held = []
        self._simple = False

    def release(self, grown: Sequence[Growth] | None = None) -> None:
        """Take in what was held, and whatever comes; there are more shards if the topic has grown."""
        if grown is not None:
            if len(self._gathers) == 1:  # nobody had to be asked where it is at home
                self._homes = WeakKeyDictionary(dict.fromkeys(self._gathers[0].publishers(), 0))
            self._next_home = len(self._gathers)
            self._take_in(grown)
        held, self._held = self._held or [], None
        self.configure(self._settings)
        for rows, publisher, done, shard, bytes_ in held:
            self._memory.give(bytes_)
            self.publish(rows, publisher, done, shard)

    def _take_in(self, grown: Sequence[Growth]) -> None:
        """Make use of all shards there are."""
        self._grown = grown
        #: How many shards the topic was made with: parts of idempotent batches are named after that.
        self._first = grown[-1].first if grown else len(self._shards)
        for shard in self._shards[len(self._gathers) :]:
            shard.on_taken_back = partial(self._forget, shard)
            self._gathers.append(Gather(self._clock, partial(self._store, shard), self._memory, self.refuse))
        self._simple = len(self._shards) == 1 and self._rate is None

    def _hold(self, rows: Rows, publisher: object, done: Published, shard: int | None) -> None:
        bytes_ = bytes_of(rows)
        if self._held is None or not self._memory.take(bytes_):
            text = f"input not yet stored fills its {self._memory.bytes_max} bytes: publish again in a moment"
            self.refuse(Refusal("memory_full", text), rows.count, done)
        else:
            self._held.append((rows, publisher, done, shard, bytes_))

    def counts_before(self) -> list[int]:
        """Return the numbers of shards that batches may have been stored under which are still known, ascending."""
        if not self._grown:
            return []
        since_ns = max(shard.last_ns for shard in self._shards) - sequence_window_ns(self._settings)
        return [growth.shards for growth in self._grown if growth.at_ns >= since_ns]

    def part_name(self, sequence: bytes, number: int, count: int) -> bytes:
        """Return the sequence of one part of a batch, as it is split for so many shards."""
        return b"%b/%d" % (sequence, number) if count == self._first else b"%b/%d.%d" % (sequence, number, count)

    def known(self, sequence: bytes) -> int | None:
        """Return the id of the first row of the batch that had this sequence; None if none is known."""
        return self._dedup.sequence(sequence) if self._dedup is not None else None

    def sequences(self, prefix: bytes) -> list[bytes]:
        """Return the sequences that begin so, of all batches that are known by theirs."""
        return self._dedup.sequences(prefix) if self._dedup is not None else []

    # --- in -------------------------------------------------------------------------------------------------------

    def remember(self) -> None:
        """Rebuild the idempotence keys from what the log holds of the window before the last append."""
        last_ns = max(shard.last_ns for shard in self._shards)
        for shard in self._shards:
            for batch in shard.recent(last_ns - sequence_window_ns(self._settings)):
                self._keys().stored(shard.number, batch)

    def pass_time(self) -> None:
        """Let the window of rows' keys end now and not at the last append: for whoever promises it by the clock."""
        self._keys().pass_time(self._clock.now())

    def publish(self, rows: Rows, publisher: object, done: Published, shard: int | None = None) -> None:
        """Take rows in; `done` hears once they are as durable as the topic promises, or why not."""
        if self.closed is not None:
            text = f"topic {self._name} takes nothing: it is {self.closed}"
            self.refuse(Refusal(self.closed, text), rows.count, done)
        elif self._simple and not shard and not rows.columns:
            self._gathers[0].offer(rows, done, publisher)
        elif shard is not None and not 0 <= shard < len(self._shards):
            text = f"there is no shard {shard}; topic {self._name} has 0 to {len(self._shards) - 1}"
            self.refuse(Refusal("bad_offset", text), rows.count, done)
        else:
            self.take(rows, publisher, done, shard)

    def take(self, rows: Rows, publisher: object, done: Published, shard: int | None = None) -> None:
        """Take rows in, also of a node that takes nothing more from anybody else."""
        if self._held is not None:
            self._hold(rows, publisher, done, shard)
        elif self._rate is not None and not self._rate.allow(rows.count, self._clock.monotonic()):
            text = f"topic {self._name} takes {self._settings.rate} messages a second; try again in a second"
            self.refuse(Refusal("rate_limited", text), rows.count, done)
        elif rows.columns and (refusal := self._due_refusal(rows)) is not None:
            self.refuse(refusal, rows.count, done)
        elif len(self._gathers) == 1:
            self._gathers[0].offer(rows, done, publisher)
        elif shard is not None:
            self._gathers[shard].offer(rows, done, publisher)
        elif "key" in rows.columns:
            self._spread(rows, publisher, done)
        else:
            self._gathers[self._home_of(publisher)].offer(rows, done, publisher)

    def flush(self) -> None:
        """Store at once what was gathered in this turn."""
        for gather in self._gathers:
            gather.flush()

    def refuse(self, refusal: Refusal, count: int, done: Published) -> None:
        """Count rows that are not taken and tell their publisher."""
        self._ledger.add(refusal.code, self._name, count, self._clock.now(), str(refusal))
        done(None, refusal)

    def _due_refusal(self, rows: Rows) -> Refusal | None:
        column = rows.columns.get("due")
        if column is not None:
            try:
                check_due(self._name, column, self._settings.max_due_ns, self._clock.now())
            except Refusal as refusal:
                return refusal
        return None

    def _spread(self, rows: Rows, publisher: object, done: Published) -> None:
        """Publish each row to the shard of its key; `done` hears once, when all are stored or one is refused.

        The parts of an idempotent batch carry its sequence and their own number: what a retry finds of them is not
        stored again. Rows without a key are a part of their own there, because a retry may come from another home.
        """
        home, count, sequence = self._home_of(publisher), len(self._shards), rows.sequence
        ids: dict[int, int] = {}
        kept = list(range(rows.count))
        if sequence and (counts := self.counts_before()):
            if self.known(sequence) is not None:  # it went to one shard, whole
                self._gathers[home].offer(rows, done, publisher)
                return
            ids = stored_before(rows, counts, lambda count: count, lambda *part: self._known_part(sequence, *part))
            if ids:
                kept = [row for row in kept if row not in ids]
                rows = picked(rows, kept) if kept else rows
        parts = spread(rows, count, count if sequence else home) if kept else []
        if len(parts) == 1 and not ids:
            self._gathers[home if parts[0][0] == count else parts[0][0]].offer(rows, done, publisher)
            return
        repeated = len(ids)
        left = len(parts)
        failure: BaseException | None = None

        def stored(places: list[int], receipt: Receipt | None, error: BaseException | None) -> None:
            nonlocal left, failure, repeated
            left -= 1
            failure = failure or error
            if receipt is not None:
                ids.update(zip([kept[place] for place in places], receipt.ids(), strict=True))
                repeated += receipt.repeated
            if left:
                return
            if ids and isinstance(failure, Refusal):
                failure = PartRefusal(failure.code, str(failure), ids)
            done(Receipt(0, 0, None, ids, repeated) if failure is None else None, failure)

        if not parts:  # all of it was stored before the topic grew
            self._ledger.add("duplicate", self._name, repeated, self._clock.now())
            done(Receipt(0, 0, None, ids, repeated), None)
        for number, part, places in parts:
            if sequence:
                part.sequence = self.part_name(sequence, number, count)
            self._gathers[home if number == count else number].offer(part, partial(stored, places), publisher)

    def _known_part(self, sequence: bytes, number: int, count: int) -> int | None:
        return self.known(self.part_name(sequence, number, count))

    def _home_of(self, publisher: object) -> int:
        # A publisher keeps its shard, so its messages keep their order (ruling 27).
        if self._homes is None:
            self._homes = WeakKeyDictionary()
        home = self._homes.get(publisher)
        if home is None:
            home = self._homes[publisher] = self._next_home
            self._next_home = (home + 1) % len(self._shards)
        return home

    def _store(self, shard: Shard, rows: Rows, owners: Sequence[Owner]) -> None:
        """Append a group of rows; budget for a lone one: 10 us with its reply."""
        found = NO_DUPLICATES
        now_ns = self._clock.now()
        if rows.sequence or "dedup" in rows.columns:
            found = self._keys().check(rows)
        kept = rows if found is NO_DUPLICATES else found.unique(rows)
        batch = None
        if kept.count:
            try:
                batch = shard.append(kept, now_ns)
            except Refusal as refusal:
                self._ledger.add(refusal.code, self._name, rows.count, now_ns, str(refusal))
                for done, _, _ in owners:
                    self._tell(done, None, refusal)
                return
            if self._dedup is not None:
                self._dedup.stored(shard.number, batch)
            if batch.columns and "due" in batch.columns:
                self._announce(shard, batch)
        if kept is not rows:
            self._ledger.add("duplicate", self._name, rows.count - kept.count, now_ns)
        if self._waits:
            shard.when_durable(partial(self._answer, shard, batch, owners, found, rows.count))
        else:
            self._answer(shard, batch, owners, found, rows.count)

    def _answer(
        self,
        shard: Shard,
        batch: Batch | None,
        owners: Sequence[Owner],
        found: Duplicates,
        count: int,
        error: BaseException | None = None,
    ) -> None:
        if error is not None:
            code = "disk_full" if is_full(error) else "disk_failed"
            refusal = Refusal(code, f"topic {self._name} could not be synced: {error}")
            if batch is not None:
                self._ledger.add(refusal.code, self._name, batch.count, self._clock.now(), str(refusal))
            for done, _, _ in owners:
                self._tell(done, None, refusal)
            return
        first = 0
        if batch is not None:
            first = batch.first
            self.published += batch.count
            self.published_bytes += len(batch.body)
        if found is NO_DUPLICATES:
            first_id = (shard.number << OFFSET_BITS) + first + 1
            for done, row, rows in owners:
                try:
                    done(Receipt(first_id + row, rows, batch), None)
                except Exception as failure:  # as in _tell
                    self._report_bug(f"answer of topic {self._name}", failure)
        else:
            ids = [id_of(*place) for place in found.places(count, shard.number, first)]
            for done, row, rows in owners:
                mine = dict(enumerate(ids[row : row + rows]))
                self._tell(done, Receipt(0, 0, batch, mine, found.among(row, rows)), None)
        if batch is not None:
            self._stored(shard, batch)

    def _tell(self, done: Published, receipt: Receipt | None, error: BaseException | None) -> None:
        """Answer one publisher; a bug of its own must not reach those who share its group."""
        try:
            done(receipt, error)
        except Exception as failure:
            self._report_bug(f"answer of topic {self._name}", failure)

    def _forget(self, shard: Shard, from_offset: int) -> None:
        """Take no key for known whose row is gone: its publisher will try again."""
        if self._dedup is not None:
            self._dedup.forget(shard.number, from_offset)

    def _keys(self) -> Dedup:
        if self._dedup is None:
            window_ns = self._settings.dedup_window_ns
            self._dedup = Dedup(window_ns, sequence_window_ns=sequence_window_ns(self._settings))
        return self._dedup


def sequence_window_ns(settings: TopicSettings) -> int:
    """Return how long before the last append what producers repeat is recognised."""
    return max(settings.dedup_window_ns, SEQUENCE_WINDOW_NS_MIN)
