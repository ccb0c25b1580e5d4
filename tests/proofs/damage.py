"""Proof that a damaged file costs no more than what is in it, and that nobody is served a wrong row.

A data directory holds one of everything (`yard.py`), left by a node that was stopped and by one that was killed. Every
file in turn is removed, emptied, cut, and has one bit flipped: in each byte of one file of every kind, in places spread
over the others. Each time a node is opened on a copy. It refuses with a sentence and touches nothing, or it serves:
every row is the one that was stored, what is missing was in the damaged file and is reported, what nobody finished is
delivered and not too soon, no offset is given twice, a commit is there whole or not at all; and after a restart it is
the same. Some of the cases are tried again with the whole program in a process of its own.

    python -m tests.proofs.damage --seed 7 --flips 64 --daemons 24
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.log.manifest import parsed
from tests.cli.program import Node
from tests.proofs.checks import Checks
from tests.proofs.yard import HOUR_NS, Place, Row, Truth, Yard, fill

#: Files up to this size are small.
SMALL_BYTES = 8192
#: A refusal is a sentence, not a word.
SENTENCE_LETTERS = 30


class Case(NamedTuple):
    """One way to damage one file."""

    #: How the node before ended.
    left: str
    #: Below the data directory.
    file: str
    what: str
    at: int = 0
    bit: int = 0

    def apply(self, data: Path) -> None:
        """Damage the file."""
        path = data / self.file
        if self.what == "removed":
            path.unlink()
        elif self.what == "cut":
            os.truncate(path, self.at)
        else:
            content = bytearray(path.read_bytes())
            content[self.at] ^= 1 << self.bit
            path.write_bytes(content)

    def __str__(self) -> str:
        place = {"removed": "", "cut": f" at {self.at}", "flipped": f" at {self.at} bit {self.bit}"}[self.what]
        return f"{self.left}: {self.file} {self.what}{place}"


class Site(NamedTuple):
    """A directory as a node left it, and what it holds."""

    left: str
    path: Path
    truth: Truth
    now_ns: int


def sites(path: Path) -> list[Site]:
    """Return a directory whose node was stopped, and one whose node was killed."""
    yard, truth = fill(path / "live")
    shutil.copytree(path / "live", path / "killed")
    now_ns = yard.clock.now()
    yard.node.close()
    yard.run()
    shutil.copytree(path / "live", path / "stopped")
    return [Site(left, path / left, truth, now_ns) for left in ("stopped", "killed")]


def cases(site: Site, random: Random, flips: int, *, all_bytes: bool = True) -> Iterator[Case]:
    """Yield every damage to every file; with `all_bytes` a bit of each byte of one small file of every kind."""
    done: set[str] = set()
    for path in sorted(each for each in site.path.rglob("*") if each.is_file()):
        file, size = str(path.relative_to(site.path)), path.stat().st_size
        if file == "lock":
            continue
        yield Case(site.left, file, "removed")
        for at in sorted({0, 1, size // 4, size // 2, 3 * size // 4, size - 1} & set(range(size))):
            yield Case(site.left, file, "cut", at)
        whole = all_bytes and size <= SMALL_BYTES and kind_of(file) not in done
        done.add(kind_of(file))
        for at in range(size) if whole else sorted(random.sample(range(size), min(flips, size))):
            yield Case(site.left, file, "flipped", at, random.randrange(8))


class Broken(Exception):
    """A promise was not kept."""


class Trial:
    """One case: a copy, the damage, and a node on it."""

    def __init__(self, site: Site, case: Case, work: Path) -> None:
        self.site = site
        self.case = case
        self.truth = site.truth
        self.work = work

    def run(self) -> str:
        """Return what the node did: `refused` or `served`; Broken says what it should not have."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.site.path, self.work)
        self.case.apply(self.work)
        before = contents(self.work)
        try:
            yard = Yard(self.work, self.site.now_ns)
        except PenstockError as error:
            self._check_refusal(str(error), before)
            return "refused"
        yard.run(0.2)
        self._without_lost(yard)
        rows = yard.rows()
        self._check_rows(rows, yard)
        self._check_deliveries(yard, rows, due=False)
        self._check_offsets(yard)
        self._check_commits(yard)
        self._close(yard)
        again = Yard(self.work, self.site.now_ns + 2 * HOUR_NS)
        again.run(0.2)
        later = again.rows()
        lost = [place for place in rows if later.get(place) != rows[place]]
        self._need(not lost, f"after a restart it is another row, or none: {lost[:3]}")
        self._check_deliveries(again, later, due=True)
        self._close(again)
        return "served"

    def _close(self, yard: Yard) -> None:
        yard.node.close()
        yard.run(0)
        self._need(not yard.node.bugs, f"the node met {yard.node.bugs} bugs of its own")

    def _need(self, held: bool, text: str) -> None:
        if not held:
            raise Broken(text)

    def _check_refusal(self, text: str, before: dict[str, bytes]) -> None:
        self._need(len(text) >= SENTENCE_LETTERS, f"it refuses without a sentence: {text!r}")
        after = contents(self.work)
        gone = [name for name, content in before.items() if after.get(name) != content and name.endswith(".arrows")]
        self._need(not gone, f"it refuses and has changed {gone[:3]}: {text}")

    def _without_lost(self, yard: Yard) -> None:
        """Leave out topics that an older registry does not know: they are aside, and it is said."""
        gone = {name for name in self.truth.numbers if name not in yard.node.topics}
        if gone:
            aside = [name for name in gone if not (self.work / "lost" / str(self.truth.numbers[name])).exists()]
            self._need(self.case.file == "registry" and not aside, f"topics {sorted(gone)} are gone")
            self._need(bool(yard.node.lost()), f"topics {sorted(gone)} are aside, and nobody is told")
            self.truth = self.truth.without(gone)

    def _check_rows(self, rows: dict[Place, Row], yard: Yard) -> None:
        truth = self.truth
        wrong = [place for place, row in rows.items() if place in truth.rows and truth.rows[place] != row]
        self._need(not wrong, f"wrong rows at {wrong[:3]}: {[rows[place] for place in wrong[:1]]}")
        more = [place for place in rows if place not in truth.rows]
        self._need(
            all(place[0] == "copies" for place in more), f"rows nobody wrote: {[(p, rows[p]) for p in more[:3]]}"
        )
        copied = Counter(rows[place].body for place in more)
        self._need(copied in (Counter(), truth.pending), f"a commit is there in part, or wrong: {copied}")
        missing = [place for place in truth.rows if place not in rows and place[0] != "passing"]
        strangers = [place for place in missing if not self._in_damaged_file(place)]
        self._need(not strangers, f"{len(strangers)} rows are missing that were elsewhere: {strangers[:3]}")
        told = yard.node.damage()
        self._need(
            not missing or bool(told) or self._is_tail(missing), f"{len(missing)} rows are missing, and not told"
        )

    def _in_damaged_file(self, place: Place) -> bool:
        parts = self.case.file.split("/")
        if len(parts) != 4 or parts[0] != "topics" or not parts[3].endswith(".arrows"):
            return False
        number, shard = int(parts[1]), int(parts[2])
        names = sorted(name for name in os.listdir(self.site.path / "topics" / parts[1] / parts[2]))
        firsts = sorted(found[0] for name in names if (found := parsed(name)) and found[2] == ".arrows")
        first = (parsed(parts[3]) or (0, 0, ""))[0]
        later = [each for each in firsts if each > first]
        here = first <= place[2] and (not later or place[2] < later[0])
        return here and place[1] == shard and self.site.truth.numbers[place[0]] == number

    def _is_tail(self, missing: list[Place]) -> bool:
        """Tell whether what is missing is the end of what a killed node had not synced."""
        shards = {place[:2] for place in missing}
        last = max(place[2] for place in missing) + 1
        return self.site.left == "killed" and len(shards) == 1 and last == self.truth.ends[shards.pop()]

    def _check_deliveries(self, yard: Yard, rows: dict[Place, Row], *, due: bool) -> None:
        for (name, each), owed in self.truth.owed.items():
            topic = yard.node.topics.get(name)
            self._need(topic is not None and each in topic.subscriptions, f"subscription {each} of {name} is gone")
            assert topic is not None
            _, got = yard.consume(topic, each, 100_000)
            wrong = [place for place in got if got[place] != rows.get(place)]
            self._need(not wrong, f"{name}/{each} got other rows than readers do: {wrong[:3]}")
            early = [place for place in got if place in self.truth.later and not due]
            self._need(not early, f"{name}/{each} got rows before they are due: {early[:3]}")
            wanted = owed if due else owed - self.truth.later
            missed = [place for place in wanted & set(rows) if place not in got]
            self._need(not missed, f"{name}/{each} does not get {len(missed)} rows: {missed[:3]}")

    def _check_offsets(self, yard: Yard) -> None:
        for (name, number), end in self.truth.ends.items():
            topic = yard.node.topics[name]
            shard = topic.shards[number]
            if topic.settings.durability == "memory":
                continue
            yard.publish(topic, b"new", shard=number)
            self._need(shard.end > end, f"offset {shard.end - 1} of {name}/{number} is given twice")

    def _check_commits(self, yard: Yard) -> None:
        before = Counter(row.body for place, row in yard.rows().items() if place[0] == "copies")
        yard.stage("done", 0, "again", b"copied 0", b"copied 1")
        known = [("done", "again", Counter[bytes]())] if self.case.file != "registry" else []
        for query, attempt, bodies in (*known, ("staged", "a", self.truth.staged)):
            try:
                yard.commit(query, 0, attempt)
            except PenstockError:
                bodies = Counter()
            after = Counter(row.body for place, row in yard.rows().items() if place[0] == "copies")
            self._need(after == before + bodies, f"commit of {query}: {after - before} is new, {bodies} should be")
            before = after


def contents(data: Path) -> dict[str, bytes]:
    """Return every file."""
    return {str(path.relative_to(data)): path.read_bytes() for path in data.rglob("*") if path.is_file()}


def served(site: Site, case: Case, work: Path) -> str:
    """Run the whole program on a damaged copy; return what it did, Broken says what it should not have."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(site.path, work / "data")
    case.apply(work / "data")
    before = contents(work / "data")
    try:
        node = Node(work)
    except AssertionError as error:
        text = str(error).rpartition("errors: ")[2].strip()
        if len(text.splitlines()) != 1 or len(text) < SENTENCE_LETTERS:
            raise Broken(f"it refuses, and says {text!r}") from None
        if gone := sorted(set(before) - set(contents(work / "data"))):
            raise Broken(f"it refuses, and has removed {gone[:3]}") from None
        return "refused"
    with node:
        for name, shards in (("orders", "01"), ("copies", "0")):  # nothing of these may go
            found = [node.call("peek", name, "--max", "1000", "--shard", shard, "--json") for shard in shards]
            bodies = Counter(row["body"].encode() for each in found for row in each.json_lines)
            wanted = Counter(row.body for place, row in site.truth.rows.items() if place[0] == name)
            if more := bodies - wanted - site.truth.pending:
                raise Broken(f"topic {name} has rows nobody wrote: {more}")
            if (less := wanted - bodies) and not case.file.endswith(".arrows"):
                raise Broken(f"topic {name} lacks {less}")
        if node.end() != 0:
            raise Broken("it does not end as it should")
    return "served"


def tried(site: Site, case: Case, work: Path, *, daemon: bool = False) -> tuple[str, str]:
    """Return what became of a case, and what was wrong with that."""
    try:
        return (served(site, case, work) if daemon else Trial(site, case, work).run()), ""
    except Broken as broken:
        return "broken", str(broken)
    except Exception as error:  # a node that fails so does not say why in words
        return "failed", f"{type(error).__name__}: {error}"


def main() -> int:
    """Try every case, and say what became of them."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seed", type=int, default=int(time.time()))
    options.add_argument("--flips", type=int, default=64, help="places in a large file")
    options.add_argument("--daemons", type=int, default=24, help="cases for the whole program")
    options.add_argument("--jobs", type=int, default=os.cpu_count(), help="so many at a time")
    options.add_argument("--sampled", action="store_true", help="take every file for a large one")
    options.add_argument("--only", default="", help="files whose path holds this")
    chosen = options.parse_args()
    logging.disable(logging.CRITICAL)
    checks = Checks()
    random = Random(chosen.seed)
    print(f"     seed {chosen.seed}")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as directory:
        path = Path(directory)
        for site in sites(path):
            found = [
                case
                for case in cases(site, random, chosen.flips, all_bytes=not chosen.sampled)
                if chosen.only in case.file
            ]
            with ProcessPoolExecutor(chosen.jobs) as pool:
                told = list(pool.map(partial(_told, site, path), found, chunksize=16))
            table(checks, site.left, told)
            some = random.sample(found, min(chosen.daemons // 2, len(found)))
            told = [(case, *tried(site, case, path / "work", daemon=True)) for case in some]
            table(checks, f"{site.left}, the whole program", told)
    return checks.code()


def _told(site: Site, path: Path, case: Case) -> tuple[Case, str, str]:
    logging.disable(logging.CRITICAL)
    return (case, *tried(site, case, path / f"work-{os.getpid()}"))


def table(checks: Checks, what: str, told: list[tuple[Case, str, str]]) -> None:
    """Print what became of cases, by the kind of file."""
    for kind in sorted({kind_of(case.file) for case, _, _ in told}):
        mine = [each for each in told if kind_of(each[0].file) == kind]
        counts = Counter(outcome for _, outcome, _ in mine)
        text = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
        wrong = [f"{case}: {text}" for case, _, text in mine if text]
        checks.check(not wrong, f"{what}, {kind}: {text}", *wrong)


def kind_of(file: str) -> str:
    """Return what kind of file it is, for the table."""
    name = os.path.basename(file)
    if file.startswith("staging/"):
        return "staged rows"
    if file.startswith("fanouts/"):
        return "fan-out"
    found = parsed(name)
    if found:
        return {".arrows": "segment", ".index": "index of a segment"}.get(found[2], name)
    return "journal" if name.endswith(".journal") else name


if __name__ == "__main__":
    sys.exit(main())
