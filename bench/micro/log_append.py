"""Cost of the log: CPU per append by batch size, and per row of reading back, recovering and sealing lone messages.

Run: python -m bench.micro.log_append [directory]    (a directory on the disk to be measured; /tmp by default)
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from statistics import median

from penstock.clock import LoopClock
from penstock.columns import BASE_COLUMNS
from penstock.disk import LocalDisk
from penstock.log import seal
from penstock.log.file_shard import FileShard
from penstock.log.frame import template_of
from penstock.log.shard import open_shard
from penstock.message import Rows
from penstock.settings import TopicSettings

BODY = b"x" * 100
#: Appends timed at each batch size: enough bytes to be past the first allocations, few enough to be quick.
COUNTS = {1: 20_000, 10: 10_000, 100: 4_000, 1_000: 1_000, 10_000: 100}
LONE = 100_000
REPEATS = 5


def cpu_us(call: Callable[[], object]) -> float:
    """Return the CPU of one call in microseconds."""
    began = time.process_time_ns()
    call()
    return (time.process_time_ns() - began) / 1e3


def opened(place: str, clock: LoopClock, disk: LocalDisk) -> FileShard:
    """Return a shard whose segment never closes by itself."""
    shard = open_shard(disk, clock, place, 0, TopicSettings(segment_bytes=1 << 40))
    assert isinstance(shard, FileShard)
    return shard


def many(call: Callable[[], object], count: int) -> float:
    """Return the CPU of one of many calls in microseconds."""

    def run() -> None:
        for _ in range(count):
            call()

    return cpu_us(run) / count


def appends(place: str, clock: LoopClock, disk: LocalDisk) -> None:
    """Print what an append costs, from rows to the page cache and the tail cache."""
    template = template_of(BASE_COLUMNS)
    for rows_count, count in COUNTS.items():
        rows = Rows.of([BODY] * rows_count, "nsq")
        costs = []
        for repeat in range(REPEATS):
            shard = opened(f"{place}/{rows_count}-{repeat}", clock, disk)
            batch = shard.append(rows, clock.now())
            costs.append(many(partial(shard.append, rows, 1), count))
            shard.delete()
        frame = min(many(partial(template.encode, batch), count) for _ in range(REPEATS))
        cost = median(costs)
        size = sum(len(part) for part in template.encode(batch)) / rows_count
        print(
            f"append {rows_count:>6,} rows: {cost:8.2f} us ({cost / rows_count * 1e3:7.0f} ns a row), "
            f"of that the frame {frame:6.2f} us; {size:5.0f} bytes a row"
        )


async def lone(place: str, clock: LoopClock, disk: LocalDisk) -> None:
    """Print what becomes of many one-row batches."""
    shard = opened(place, clock, disk)
    rows = Rows.of([BODY], "nsq")
    for _ in range(LONE):
        shard.append(rows, clock.now())
    shard.tick(clock.now())
    found: list[FileShard] = []
    costs = [cpu_us(lambda: found.append(opened(place, clock, disk))) for _ in range(3)]
    print(f"recover {LONE:,} one-row batches: {median(costs) / 1e3:.0f} ms, {median(costs) / LONE:.2f} us each")
    reader = found[-1]
    began = time.process_time_ns()
    offset = 0
    while offset < reader.readable_end:
        batch = reader.read(offset)
        if batch is None:
            fetched = asyncio.get_running_loop().create_future()
            reader.fetch(offset, lambda fetched=fetched: fetched.set_result(None))  # type: ignore[misc]
            await fetched
            continue
        offset = batch.end
    print(f"read them back from disk: {(time.process_time_ns() - began) / 1e3 / LONE:.2f} us each")
    reader.roll()
    await asyncio.sleep(0.5)
    (segment,) = reader._segments.closed
    print(f"seal them: {cpu_us(lambda: seal.merge(segment, 'none')) / LONE:.2f} us each")


async def main() -> None:
    """Print every number."""
    loop = asyncio.get_running_loop()
    disk, clock = LocalDisk(loop), LoopClock(loop)
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as place:
        appends(place, clock, disk)
        await lone(f"{place}/lone", clock, disk)
        disk.close()


if __name__ == "__main__":
    asyncio.run(main())
