"""Proof that an archive holds every message once, whoever is killed, and wherever.

Real Spark drivers archive the topics of a data directory into a Delta table and into plain Parquet, and another
process compacts both tables all the time. Drivers are killed when a batch's files are written, before and after its
commit, and before Spark's own note of it; the compacting process before and after each step of a merge; both at random
moments as well. In the end either table holds what the topics hold.

    python -m tests.proofs.archive --rows 2000000 --kills 40 --seed 7
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
from deltalake import DeltaTable

from tests.fakes import START_NS
from tests.pipeline.data import Data
from tests.proofs.archiver import FORMATS, Job, table_at
from tests.proofs.checks import Checks
from tests.proofs.child import Child
from tests.proofs.halts import LOOK_S, Halts, NotReached
from tests.proofs.process import Died

#: Enough micro-batches for every kill to have one of its own, and some to go on with.
BATCHES = 24
DAY_NS = 86_400 * 1_000_000_000
#: The places of a batch, each deadly once; the first are those of the short setting.
ARCHIVE = [
    "delta-placed", "parquet-noted", "appended", "delta-committed", "parquet-placed", "delta-staged", "parquet-staged",
    "delta-noted",
]  # fmt: skip
#: The places of a merge.
COMPACT = ["delta-placed", "parquet-noted", "parquet-placed", "merged", "delta-committed", "delta-noted"]
#: More than a Spark driver needs to its end, on however busy a machine.
PATIENCE_S = 300.0
#: Random kills come within this time after a process began.
LIFE_S = 4.0


class Trial:
    """The data, the tables, and the processes that come and go."""

    def __init__(self, path: Path, rows: int, seed: int) -> None:
        self.path = path
        self.rows = rows
        self.kills = 0
        self._random = random.Random(seed)
        self._halts = {work: Halts(path / f"halts-{work}") for work in ("archive", "compact")}
        self._began = time.monotonic()
        self._over = False
        self._children: list[Child] = []
        self._ready: dict[str, tuple[str, Child]] = {}
        #: Topics, and the rows of each of their shards.
        self.topics = {"orders": (rows // 2, rows // 4), "a/b ключ %": (rows - rows // 2 - rows // 4,)}
        data = Data(path / "data")
        for name, counts in self.topics.items():
            topic = data.topic(name, shards=len(counts))
            for shard, count in enumerate(counts):
                for part, share in enumerate((count // 2, count - count // 2)):
                    topic.fill(share, shard=shard, time_ns=START_NS + part * DAY_NS)
            for log in topic.shards:
                log.close()

    def spawn(self, work: str) -> None:
        """Have a process started that waits to begin."""
        begin = f"begin-{len(self._children)}"
        self._halts[work].arm(begin)
        job = Job(work=work, path=str(self.path), rows=-(-self.rows // BATCHES), begin=begin)
        child = Child("tests.proofs.archiver", job, self.path / f"{work}-{len(self._children)}.log")
        self._children.append(child)
        self._ready[work] = (begin, child)

    def begin(self, work: str, *, another: bool) -> Child:
        """Let the next process begin; have another one started meanwhile."""
        if work not in self._ready:
            self.spawn(work)
        begin, child = self._ready.pop(work)
        self._halts[work].reached(begin, child.alive)
        if another:
            self.spawn(work)
        self._halts[work].release(begin)
        return child

    def killings(self, work: str, places: list[str | None]) -> Iterator[None]:
        """Kill one process after the other, each at its place or, for None, at a random moment; give way meanwhile."""
        halts = self._halts[work]
        for number, place in enumerate(places, 1):
            if place is not None:
                halts.arm(place)
            if self._over:
                return
            child = self.begin(work, another=number < len(places) or work == "archive")
            end = time.monotonic() + (PATIENCE_S if place is not None else self._random.uniform(0, LIFE_S))
            reached = self.path / f"halts-{work}" / f"{place}.reached"
            while time.monotonic() < end and not (reached.exists() and reached.read_text()):
                if child.over() or self._over:
                    break
                time.sleep(LOOK_S)
                yield
            else:
                if place is not None and not reached.exists():
                    raise NotReached(f"nobody came to {place}: {child.last_words()}")
            child.abandon()
            if place is not None:
                (self.path / f"halts-{work}" / f"{place}.armed").unlink(missing_ok=True)
                if not reached.exists():
                    print(f"     the archive was complete before {work} came to {place}", flush=True)
                    continue
                halts.release(place)
            self.kills += 1
            print(f"     {time.monotonic() - self._began:5.1f} s, killed: {work} {place or 'anywhere'}", flush=True)

    def run(self, archive: list[str | None], compact: list[str | None]) -> None:
        """Kill, and let the last driver come to its end; the two kinds are killed side by side."""
        merges = self.killings("compact", compact)
        for _ in itertools.chain(self.killings("archive", archive), self.ending()):
            next(merges, None)
        self._over = True
        for _ in merges:
            pass

    def ending(self) -> Iterator[None]:
        """Let the last driver come to its end."""
        child = self.begin("archive", another=False)
        end = time.monotonic() + PATIENCE_S
        while not child.over():
            if time.monotonic() > end:
                raise Died(f"a driver did not come to its end: {child.last_words()}")
            time.sleep(LOOK_S)
            yield

    def abandon(self) -> None:
        """Leave nothing running."""
        for child in self._children:
            child.abandon()


def check(trial: Trial, checks: Checks, format: str) -> None:
    """Compare a table with the topics, by readers of others."""
    lake = table_at(str(trial.path), format)
    before = lake.facts()
    lake.compact(keep_hours=0)
    facts = lake.facts()
    if format == "delta":
        rows = DeltaTable(lake.path).to_pyarrow_table(columns=["topic", "shard", "offset", "body", "day"])
    else:
        rows = pads.dataset(lake.path, partitioning="hive").to_table(
            columns=["topic", "shard", "offset", "body", "day"]
        )
    wrong = []
    for name, counts in trial.topics.items():
        for shard, count in enumerate(counts):
            mine = rows.filter((pads.field("topic") == name) & (pads.field("shard") == shard))
            offsets = np.sort(mine["offset"].to_numpy())
            if not np.array_equal(offsets, np.arange(count)):
                twice = len(offsets) - len(np.unique(offsets))
                wrong.append(f"{name} {shard}: {len(offsets)} rows of {count}, {twice} twice")
    bodies = mine_says(rows)
    checks.check(
        not wrong and bodies and facts.rows == trial.rows,
        f"{format:8} {facts.rows} rows of {trial.rows} in {before.files} files, {facts.files} after a compaction",
        *wrong,
        *([] if bodies else ["bodies are not those of their offsets"]),
    )
    known = {Path(uri).name for uri in DeltaTable(lake.path).file_uris()} if format == "delta" else set()
    left = [path.name for path in Path(lake.path).glob("topic=*/*/*.parquet") if known and path.name not in known]
    left += [path.name for path in (trial.path / f".{format}.penstock" / "staging").rglob("*.parquet")]
    checks.check(not left, f"{format:8} nothing is left beside it", *left[:5])


def mine_says(rows: pa.Table) -> bool:
    """Return whether every body says its offset."""
    return bool((rows["body"].cast(pa.string()).cast(pa.int64()).to_numpy() == rows["offset"].to_numpy()).all())


def places(named: list[str], count: int) -> list[str | None]:
    """Return where `count` processes die: half of them at the places by name, as far as there are any."""
    fixed: list[str | None] = list(named[: max(count - count // 4, 1)])
    return [*fixed, *[None] * (count - len(fixed))]


def main() -> int:
    """Run the proof and print one line per check."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=24)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    args = parser.parse_args()
    checks = Checks()
    path = Path(tempfile.mkdtemp(prefix="penstock-archive-"))
    trial = Trial(path, args.rows, args.seed)
    print(f"     seed {args.seed}")
    try:
        # A process that compacts starts quicker than a driver, so more of them can die.
        trial.run(places(ARCHIVE, args.kills * 2 // 5), places(COMPACT, args.kills - args.kills * 2 // 5))
        for format in FORMATS:
            check(trial, checks, format)
    except (Died, NotReached) as died:
        checks.check(False, str(died))
    finally:
        trial.abandon()
    print(f"     {trial.kills} kills")
    if checks.failed:
        print(f"     what was left is in {path}")
    else:
        shutil.rmtree(path)
    return checks.code()


if __name__ == "__main__":
    sys.exit(main())
