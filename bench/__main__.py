"""The command: which rows, how long, and where the table goes."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench import peers, report, selfcheck, supply
from bench.machine import this_machine
from bench.plan import FULL, QUICK, Plan
from bench.report import Result
from bench.rows import EXTRA, ROWS, Row


def main(words: Sequence[str] | None = None) -> int:
    """Run the rows and return 1 if one of them broke off; a missed target is a finding, not a failure."""
    asked = _arguments(words)
    machine = this_machine()
    print(f"{machine.when}: {machine.words()}", flush=True)
    try:
        supply.load()
    except supply.Missing as reason:
        print(reason, file=sys.stderr)
        return 1
    if asked.self_check:
        found = selfcheck.run()
        _print(found)
        return int(any(goal.verdict != "met" for goal in found.goals))
    chosen: dict[str, Row] = asked.only or dict(ROWS)
    results = _run(chosen, QUICK if asked.quick else FULL)
    versions = peers.versions()
    if asked.json:
        everything = {"machine": machine, "versions": versions, "quick": asked.quick, "results": results}
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(everything)) + b"\n")
    if asked.markdown:
        report.rewrite(asked.markdown, report.markdown(results, machine, versions))
    return _summary(results)


def _run(chosen: dict[str, Row], plan: Plan) -> list[Result]:
    results: list[Result] = []
    for name, row in chosen.items():
        start = time.monotonic()
        try:
            for found in row(plan):
                results.append(found)
                _print(found)
        except Exception as error:  # printed and counted in the exit status; the other rows still run
            results.append(report.failed(name, f"{type(error).__name__}: {error}"))
            _print(results[-1])
        print(f"    ({name} took {time.monotonic() - start:.0f} s)", flush=True)
    return results


def _print(found: Result) -> None:
    print("\n".join(report.lines(found)), flush=True)


def _summary(results: Sequence[Result]) -> int:
    verdicts = [goal.verdict for found in results for goal in found.goals]
    counts = {word: verdicts.count(word) for word in ("met", "MISSED", "MISSING", "FAILED")}
    print("targets: " + ", ".join(f"{count} {word}" for word, count in counts.items()))
    return int(counts["FAILED"] > 0)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Penstock beside its peers on this machine.")
    names = ", ".join(ROWS)
    parser.add_argument(
        "--only", type=_rows, metavar="ROW,...", help=f"some rows of: {names}; not run by default: {', '.join(EXTRA)}"
    )
    parser.add_argument("--quick", action="store_true", help="shorter turns, smaller backlogs: about six minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything that was measured")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also put the table between this page's markers")
    parser.add_argument("--self-check", action="store_true", help="only show that the load generator is fast enough")
    return parser.parse_args(words)


def _rows(text: str) -> dict[str, Row]:
    known = {**ROWS, **EXTRA}
    for name in text.split(","):
        if name not in known:
            raise argparse.ArgumentTypeError(f"no row {name!r}; there are {', '.join(known)}")
    return {name: known[name] for name in text.split(",")}


if __name__ == "__main__":
    sys.exit(main())
