"""What the ledger counts, keeps and forgets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.intake.ledger import OTHER_TOPICS, SAMPLE_BYTES_MAX, SAMPLES_MAX, Ledger


def test_counts_add_up_by_reason_and_topic() -> None:
    ledger = Ledger()
    ledger.add("memory_full", "a", 3, 10)
    ledger.add("memory_full", "a", 4, 20)
    ledger.add("memory_full", "b", 1, 15)
    ledger.add("bad_name", "a", 1, 30)
    assert ledger.total() == 9
    assert ledger.total(reason="memory_full") == 8
    assert ledger.total(topic="a") == 8
    assert ledger.total("memory_full", "a") == 7
    assert ledger.total("disk_full") == 0


def test_entry_tells_first_and_last_time() -> None:
    ledger = Ledger()
    ledger.add("memory_full", "a", 3, 10)
    ledger.add("memory_full", "a", 4, 20)
    (entry,) = ledger.entries()
    assert (entry.reason, entry.topic, entry.count, entry.first_ns, entry.last_ns) == ("memory_full", "a", 7, 10, 20)
    assert entry.samples == ()


def test_entries_are_filtered_and_come_most_recent_first() -> None:
    ledger = Ledger()
    ledger.add("bad_name", "a", 1, 10)
    ledger.add("disk_full", "b", 1, 30)
    ledger.add("disk_full", "a", 1, 20)

    def pairs(
        reason: str | None = None, topic: str | None = None, since_ns: int | None = None
    ) -> list[tuple[str, str]]:
        return [(entry.reason, entry.topic) for entry in ledger.entries(reason, topic, since_ns)]

    assert pairs() == [("disk_full", "b"), ("disk_full", "a"), ("bad_name", "a")]
    assert pairs(reason="disk_full") == [("disk_full", "b"), ("disk_full", "a")]
    assert pairs(topic="a") == [("disk_full", "a"), ("bad_name", "a")]
    assert pairs(since_ns=20) == [("disk_full", "b"), ("disk_full", "a")]
    assert pairs("bad_name", "b") == []


def test_only_the_most_recent_samples_are_kept() -> None:
    ledger = Ledger()
    for time_ns in range(SAMPLES_MAX + 3):
        ledger.add("bad_request", "a", 1, time_ns, b"%d" % time_ns, "10.0.0.1:5")
    (entry,) = ledger.entries()
    assert [sample.content for sample in entry.samples] == [b"3", b"4", b"5", b"6", b"7"]
    assert {sample.peer for sample in entry.samples} == {"10.0.0.1:5"}
    assert entry.samples[-1].time_ns == 7


def test_sample_is_a_copy_of_the_beginning() -> None:
    ledger = Ledger()
    buffer = bytearray(b"x" * 1000)
    ledger.add("bad_request", "a", 1, 1, memoryview(buffer))
    buffer[:] = b"y" * 1000
    assert ledger.entries()[0].samples[0].content == b"x" * SAMPLE_BYTES_MAX


@given(st.text(max_size=300))
def test_text_is_cut_between_characters(text: str) -> None:
    ledger = Ledger()
    ledger.add("bad_request", "a", 1, 1, text, text)
    sample = ledger.entries()[0].samples[0]
    assert isinstance(sample.content, str)
    assert len(sample.content.encode("utf-8")) <= SAMPLE_BYTES_MAX
    assert text.encode("utf-8", "replace").startswith(sample.content.encode("utf-8"))
    assert sample.peer == sample.content


def test_too_many_topics_are_counted_together_and_nothing_is_lost() -> None:
    ledger = Ledger(entries_max=3)
    for number in range(10):
        ledger.add("bad_name", f"t{number}", 1, number)
    ledger.add("bad_name", "t0", 1, 99)
    ledger.add("disk_full", "t0", 1, 99)
    assert ledger.total() == 12
    assert ledger.total("bad_name", "t0") == 2
    assert ledger.total("bad_name", OTHER_TOPICS) == 7
    assert ledger.total("disk_full", OTHER_TOPICS) == 1
    assert len(ledger.entries()) == 5


def test_endless_topic_name_is_not_kept_whole() -> None:
    ledger = Ledger(entries_max=1)
    ledger.add("bad_name", "x" * 1_000_000, 1, 1)
    ledger.add("bad_name", "x" * 1_000_000, 1, 2)
    (entry,) = ledger.entries()
    assert entry.topic == "x" * 1024
    assert entry.count == 2
