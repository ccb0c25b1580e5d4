"""The shared log in memory does what the real one promises."""

from __future__ import annotations

import pytest

from penstock.log.kafka.store import AwayError, FencedError, GoneError, Partition, Record, TooLargeError
from tests.cluster.fake_store import FakeStore

PLACE = Partition("c.1.log", 0)


def test_a_new_writer_shuts_out_the_earlier_one_and_sees_all_it_was_told() -> None:
    store = FakeStore()
    store.make(PLACE.topic, 1)
    first = store.writer("slot.1")
    told = first.send(PLACE, [Record(b"a", {}), Record(b"b", {})])
    second = store.writer("slot.1")
    with pytest.raises(FencedError):
        first.send(PLACE, [Record(b"c", {})])
    store.writer("slot.2")  # another name, another right
    second.send(PLACE, [Record(b"d", {})])
    found = list(store.read(PLACE, *store.bounds(PLACE)))
    assert [each.value for each in found] == [b"a", b"b", b"d"]
    assert [each.offset for each in found[:2]] == list(told)
    store.cut(PLACE, found[1].offset)
    assert [each.value for each in store.read(PLACE, *store.bounds(PLACE))] == [b"b", b"d"]
    with pytest.raises(GoneError):
        list(store.read(PLACE, 0, 10))


@pytest.mark.parametrize("kept", [True, False])
def test_what_was_sent_when_it_went_away_is_there_or_not(kept: bool) -> None:
    store = FakeStore(record_bytes_max=200)
    store.make(PLACE.topic, 1)
    writer = store.writer("slot.1")
    store.lose_next(kept=kept)
    with pytest.raises(AwayError):
        writer.send(PLACE, [Record(b"a", {})])
    assert len(store.records(PLACE)) == kept
    store.heal()
    with pytest.raises(TooLargeError):
        writer.send(PLACE, [Record(bytes(200), {})])
    store.drop(PLACE.topic)
    with pytest.raises(GoneError):
        writer.send(PLACE, [Record(b"a", {})])
