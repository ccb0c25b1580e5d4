"""What nobody uses goes back to the system."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from penstock.clock import SECOND
from penstock.resident import GROWN_BYTES, Resident
from tests.fakes import FakeClock


class Process:
    """A process whose size is what a test says."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.bytes = 100 << 20
        self.kept = 0
        self.used = 0
        self.work: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self.load = 0.0
        self.searches: list[int] = []
        self.resident = Resident(
            self.clock,
            lambda *work: self.work.append(work),
            self.size,
            self.give,
            self.spent,
            self.searches.append,
            lambda: self.used,
        )

    def size(self) -> int:
        return self.bytes + self.used + self.kept

    def spent(self) -> int:
        return int(self.load * self.clock.monotonic())

    def give(self) -> None:
        self.kept = 0

    def thread(self) -> None:
        for give, done in self.work:
            give()
            done()
        self.work.clear()


def test_growth_is_given_back_once() -> None:
    process = Process()
    process.kept = GROWN_BYTES - 1
    process.clock.advance(3 * SECOND)
    assert not process.work
    process.kept = GROWN_BYTES
    process.clock.advance(3 * SECOND)
    assert len(process.work) == 1  # and not again while a thread is at it
    process.thread()
    assert process.kept == 0
    process.clock.advance(3 * SECOND)
    assert not process.work


def test_what_was_in_use_when_it_was_asked_for_is_given_back_once_it_is_free() -> None:
    process = Process()
    process.used = 2 * GROWN_BYTES
    process.clock.advance(2 * SECOND)
    process.thread()
    process.clock.advance(3 * SECOND)
    assert not process.work  # nothing is free yet
    process.used, process.kept = 0, 2 * GROWN_BYTES
    process.clock.advance(2 * SECOND)
    process.thread()
    assert process.kept == 0
    process.clock.advance(3 * SECOND)
    assert not process.work


def test_what_is_in_use_is_asked_for_once() -> None:
    process = Process()
    process.bytes += 2 * GROWN_BYTES
    for _ in range(5):
        process.clock.advance(SECOND)
        process.thread()
    assert process.resident.given == 1


def test_old_objects_are_searched_while_nobody_waits_or_once_there_are_many() -> None:
    process = Process()
    for load, expected in ((0.1, [1]), (0.9, [0, 0, 0, 1, 0])):
        process.load = load
        process.clock.advance(SECOND)
        process.searches.clear()
        for _ in expected:
            process.bytes += GROWN_BYTES
            process.clock.advance(SECOND)
            process.thread()
        assert process.searches == expected


def test_stopped_looks_no_more() -> None:
    process = Process()
    process.resident.stop()
    process.kept = 2 * GROWN_BYTES
    process.clock.advance(3 * SECOND)
    assert not process.work


#: Prints what is left of what Arrow and the C library were asked for, in MiB.
LEFT = """
from penstock.resident import keep_little, release_arrow, resident_bytes, trim
keep_little()
import pyarrow as pa
before = resident_bytes()
packed = pa.compress(bytes(200 << 20), codec="zstd")
pa.decompress(packed, 200 << 20, codec="zstd")
blocks = [bytes(700 << 10) for _ in range(300)]
last = blocks[-1]
del packed, blocks
release_arrow()
trim()
print((resident_bytes() - before) >> 20)
"""


def test_allocators_keep_nothing_of_what_was_freed() -> None:
    told = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, text=True, check=True)
    assert int(told.stdout) < 30


#: Prints how many pages the kernel had to give for what a hundred batches took and freed, one after the other.
PAGES = """
import resource
from penstock.resident import keep_little
keep_little()
def batch():
    pieces = [bytes(size << 10) for size in (1100, 700, 700, 200, 100, 60)]
batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_what_one_batch_took_is_there_for_the_next_one() -> None:
    told = subprocess.run([sys.executable, "-c", PAGES], capture_output=True, text=True, check=True)
    assert int(told.stdout) < 2000


#: Prints whether pandas, which is installed here, came with the first array, and when it is asked for by its name.
LOADED = """
import sys
from penstock.resident import without_pandas
without_pandas()
import pyarrow as pa
pa.array(["a"])
print("pandas" in sys.modules)
import pandas
print("pandas" in sys.modules)
"""


def test_pyarrow_does_without_pandas_and_whoever_wants_it_gets_it() -> None:
    told = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["False", "True"]
