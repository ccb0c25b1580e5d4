"""Where another node may go on, people are told of what is synced, in the order in which they did it, and no more."""

from __future__ import annotations

from penstock.delivery.seat import Seat
from penstock.delivery.source import Delivery
from penstock.errors import Refusal
from penstock.message import Done
from tests.delivery.parts import SECOND, Bench, ListJournal


class SlowJournal(ListJournal):
    """A journal whose syncs end when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs: list[tuple[int, Done]] = []

    def keep(self, done: Done) -> None:
        self.syncs.append((len(self.entries), done))

    def end_sync(self, error: BaseException | None = None) -> int:
        """End the oldest sync; return how many entries it made safe."""
        count, done = self.syncs.pop(0)
        done(error)
        return count


class SharedBench(Bench):
    """A subscription of a topic that others may take over."""

    is_shared = True

    def __init__(self) -> None:
        self.failures: list[tuple[Seat | None, Exception]] = []
        super().__init__()
        self.slow = self.journal = SlowJournal()
        self.subscription = self._open()

    def failed(self, seat: Seat | None, failure: Exception) -> None:
        self.failures.append((seat, failure))


class Looker:
    """Somebody who asks once, as `sqs`."""

    def __init__(self, bench: SharedBench, limit: int = 1, lease_ns: int = 60 * SECOND) -> None:
        self.got: list[list[bytes]] = []
        self.seat = bench.subscription.holder("sqs").look(limit, lease_ns, self._deliver)
        bench.pump()

    def _deliver(self, deliveries: list[Delivery]) -> None:
        self.got.append([delivery.batch.row_body(row) for delivery in deliveries for _, _, row in delivery.each()])


def bench_of(*bodies: bytes) -> SharedBench:
    bench = SharedBench()
    for body in bodies:
        bench.shard.put([body])
    return bench


def test_a_look_hears_of_its_rows_once_their_leases_are_synced() -> None:
    bench = bench_of(b"a", b"b")
    looker = Looker(bench)
    assert bench.subscription.in_flight() == 1
    assert looker.got == []
    assert looker.seat.unheard == 1
    assert looker.seat in bench.subscription.looks
    assert bench.slow.end_sync() > 0
    assert looker.got == [[b"a"]]
    assert looker.seat.gone
    assert bench.slow.syncs == []


def test_who_comes_while_a_sync_is_under_way_is_in_the_next_one_together() -> None:
    bench = bench_of(b"a", b"b", b"c")
    lookers = [Looker(bench) for _ in range(3)]
    assert len(bench.slow.syncs) == 1
    bench.slow.end_sync()
    assert [looker.got for looker in lookers] == [[[b"a"]], [], []]
    assert len(bench.slow.syncs) == 1
    bench.slow.end_sync()
    assert [looker.got for looker in lookers] == [[[b"a"]], [[b"b"]], [[b"c"]]]


def test_an_answer_comes_after_those_that_were_asked_for_before() -> None:
    bench = bench_of(b"a")
    keeping = bench.subscription.keeping
    told: list[str] = []
    keeping.wait(lambda error: told.append("first"))
    keeping.wait(lambda error: told.append("second"))
    keeping.wait(lambda error: told.append("third"))
    bench.slow.end_sync()
    bench.slow.end_sync()
    assert told == ["first", "second", "third"]


def test_acks_that_wait_in_memory_are_written_before_the_sync() -> None:
    bench = bench_of(b"a")
    receiver = bench.receiver()
    receiver.take()
    receiver.ack(receiver.last)
    assert bench.slow.entries == []
    told: list[BaseException | None] = []
    bench.subscription.keeping.wait(told.append)
    assert told == []
    assert bench.slow.end_sync() == 1
    assert told == [None]


def test_a_sync_that_fails_is_told_as_unavailable_and_the_rows_go_to_others() -> None:
    bench = bench_of(b"a")
    looker = Looker(bench)
    told: list[BaseException | None] = []
    bench.subscription.keeping.wait(told.append)
    bench.slow.end_sync(OSError("another writer has begun"))
    assert looker.got == []
    assert [(seat, type(failure)) for seat, failure in bench.failures] == [(looker.seat, Refusal)]
    assert bench.subscription.in_flight() == 0
    bench.pump()
    bench.slow.end_sync(OSError("another writer has begun"))
    assert isinstance(told[0], Refusal)
    assert told[0].code == "unavailable"


def test_what_a_look_found_is_given_back_if_it_went_meanwhile() -> None:
    bench = bench_of(b"a")
    looker = Looker(bench)
    looker.seat.close()
    assert bench.subscription.in_flight() == 1
    bench.slow.end_sync()
    assert looker.got == []
    assert bench.subscription.in_flight() == 0
    assert bench.subscription.depth() == 1


def test_what_is_given_back_is_not_what_somebody_else_got_meanwhile() -> None:
    bench = bench_of(b"a")
    late = Looker(bench, lease_ns=SECOND)
    late.seat.close()
    bench.advance(2 * SECOND)
    next_one = Looker(bench)
    bench.slow.end_sync()
    bench.slow.end_sync()
    assert next_one.got == [[b"a"]]
    assert bench.subscription.in_flight() == 1


def test_a_consumer_without_a_name_waits_for_nothing() -> None:
    bench = bench_of(b"a")
    receiver = bench.receiver()
    assert receiver.take() == [b"a"]
    assert bench.slow.syncs == []


def test_on_a_local_topic_everything_is_told_in_the_same_turn() -> None:
    bench = Bench()
    bench.shard.put([b"a"])
    keeping = bench.subscription.keeping
    told: list[BaseException | None] = []
    keeping.wait(told.append)
    assert told == [None]
    assert not keeping.is_late
    value = object()
    assert keeping.kept(value) is value
