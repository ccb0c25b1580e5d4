"""Which compression is advised, and how it was measured: no Spark."""

from __future__ import annotations

import random

import pytest

from penstock.codecs import MESSAGE_SET_BYTES, Measure, best
from penstock.pipeline.jobs.report.compression import Advice, advice, measures, stride

DRAW = random.Random(5)
WORDS = [b"order", b"customer", b"address", b"delivered", b"pending", b"parcel", b"refund"]


def advised(bodies: list[bytes]) -> Advice:
    found = advice(measures(bodies, 1 << 20))
    assert found is not None
    return found


def text(count: int) -> list[bytes]:
    return [
        b'{"id":%d,"text":"%b"}' % (DRAW.randrange(1 << 30), b" ".join(DRAW.choices(WORDS, k=20))) for _ in range(count)
    ]


def test_text_is_worth_zstd() -> None:
    found = advised(text(3000))
    assert (found.penstock, found.kafka) == ("zstd", "zstd")
    assert found.dory in ("gzip", "snappy")  # the two that Dory knows; which one depends on the machine
    assert "zstd leaves" in found.reason
    assert "lz4 leaves" in found.reason
    by_codec = {(each.form, each.codec): each for each in found.measures}
    assert by_codec["segment", "zstd"].left < by_codec["segment", "lz4"].left < 0.6
    assert all(each.packing_ns > 0 and each.unpacking_ns > 0 for each in found.measures)


def test_random_bytes_are_best_left_alone() -> None:
    found = advised([DRAW.randbytes(500) for _ in range(1000)])
    assert (found.penstock, found.kafka, found.dory) == ("none", "none", "none")
    assert "100% of the bodies" in found.reason


def measure(codec: str, left: float, packing_ns: float, unpacking_ns: float = 0.5) -> Measure:
    return Measure("segment", codec, 10, 1000, int(1000 * left), packing_ns, unpacking_ns)


def test_a_little_smaller_is_not_worth_much_cpu_time() -> None:
    quick, slow = measure("lz4", 0.30, 1), measure("gzip", 0.28, 30)
    assert best([slow, quick]) is quick
    assert best([measure("zstd", 0.15, 3), quick]) == measure("zstd", 0.15, 3)
    assert best([measure("zstd", 0.9, 3), measure("lz4", 0.95, 1)]) is None
    assert best([]) is None


def test_what_was_not_sampled_gets_no_advice() -> None:
    assert advice([]) is None
    assert advice(measures([], 1000)) is None


def test_a_sample_is_cut_at_twice_its_size() -> None:
    assert {each.plain_bytes for each in measures([bytes(1000)] * 100, 10_000)} == {20_000}
    assert {each.plain_bytes for each in measures([bytes(1000)] * 100, 10)} == {1000}  # one at least


@pytest.mark.parametrize(("messages", "body_bytes"), [(1, 1), (100, 1000), (10**6, 10**8), (50, 10**9), (10**9, 10**9)])
def test_a_stride_takes_about_the_sample_and_enough_runs(messages: int, body_bytes: int) -> None:
    sample = 2 << 20
    run, one_in = stride(messages, body_bytes, sample)
    taken = body_bytes / one_in
    runs = messages / run / one_in
    assert run * (body_bytes / messages) <= MESSAGE_SET_BYTES or run == 1
    assert one_in == 1 or runs >= 16
    assert one_in == 1 or taken >= sample
