"""What a row found out, and how it is shown: a line on the terminal, JSON, a table in a page.

Owns the words for numbers. Knows no server and measures nothing. Invariant: a number that is missing shows as
MISSING with its reason and never counts as met.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from bench.machine import Machine
from bench.measure import Reading

BEGIN = "<!-- bench: begin -->"
END = "<!-- bench: end -->"
TIMES = "x"

Verdict = Literal["met", "MISSED", "MISSING", "FAILED", "shown"]


class Goal(msgspec.Struct, frozen=True):
    """One target, the number that was measured for it, and the verdict."""

    target: str
    measured: str
    verdict: Verdict


class Result(msgspec.Struct, frozen=True):
    """One line of the table: some work, a reading per server, and the goals it had."""

    row: str
    work: str
    readings: dict[str, str]
    goals: list[Goal]
    missing: dict[str, str] = {}
    numbers: dict[str, Reading] = {}


def result(
    row: str,
    work: str,
    numbers: Mapping[str, Reading],
    goals: Sequence[Goal],
    missing: Mapping[str, str],
) -> Result:
    """Return a line whose readings are rates, CPU and latencies as measured."""
    shown = {name: phrase(taken) for name, taken in numbers.items()}
    return Result(row, work, shown, list(goals), dict(missing), dict(numbers))


def table_row(
    row: str, work: str, readings: Mapping[str, str], goals: Sequence[Goal], missing: Mapping[str, str]
) -> Result:
    """Return a line whose readings were put in words by its row."""
    return Result(row, work, dict(readings), list(goals), dict(missing))


def failed(row: str, reason: str) -> Result:
    """Return the line of a row that broke off."""
    return Result(row, row, {}, [Goal("to run", reason, "FAILED")])


def rate(numbers: Mapping[str, Reading], name: str) -> float | None:
    """Return a server's rate, None where it is missing."""
    return numbers[name].rate if name in numbers else None


def best_rate(numbers: Mapping[str, Reading], *names: str) -> float | None:
    """Return the highest rate among some servers."""
    return max((numbers[name].rate for name in names if name in numbers), default=None)


def cpu(numbers: Mapping[str, Reading], name: str) -> float | None:
    """Return a server's CPU per message, None where it is missing."""
    return numbers[name].cpu_us if name in numbers else None


def p50_ms(numbers: Mapping[str, Reading], name: str) -> float | None:
    """Return a server's median latency in milliseconds, None where it is missing."""
    return numbers[name].p50_us / 1000 if name in numbers else None


def p99_ms(numbers: Mapping[str, Reading], name: str) -> float | None:
    """Return a server's p99 in milliseconds, None where it is missing."""
    return numbers[name].p99_us / 1000 if name in numbers else None


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """Return ours as a multiple of theirs, None while one of them is missing."""
    return None if ours is None or not theirs else ours / theirs


def at_least(bound: float, value: float | None, unit: str = TIMES, what: str = "") -> Goal:
    """Return the goal of reaching a bound."""
    return _goal(f"{what}≥ {bound:g}{unit}", value, unit, value is not None and value >= bound)


def at_most(bound: float, value: float | None, unit: str = TIMES, what: str = "") -> Goal:
    """Return the goal of staying within a bound."""
    return _goal(f"{what}≤ {bound:g}{unit}", value, unit, value is not None and value <= bound)


def either(*goals: Goal) -> Goal:
    """Return the goal of reaching one of several."""
    verdicts: tuple[Verdict, ...] = ("met", "MISSED", "MISSING")
    verdict = next(each for each in verdicts if any(goal.verdict == each for goal in goals))
    return Goal(" or ".join(goal.target for goal in goals), " / ".join(goal.measured for goal in goals), verdict)


def shown(what: str, value: float | None, unit: str = TIMES) -> Goal:
    """Return a number that is worth seeing and has no target."""
    return Goal(what, "MISSING" if value is None else f"{value:.3g}{unit}", "shown")


def _goal(target: str, value: float | None, unit: str, met: bool) -> Goal:
    if value is None:
        return Goal(target, "MISSING", "MISSING")
    return Goal(target, f"{value:.3g}{unit}" if value < 1000 else f"{value:,.0f}{unit}", "met" if met else "MISSED")


def rate_words(rate: float) -> str:
    """Return a rate as people say it."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if rate >= size:
            return f"{rate / size:.3g} {letter}/s"
    return f"{rate:.3g} /s"


def phrase(taken: Reading) -> str:
    """Return one reading in a few words."""
    words = [f"{rate_words(taken.rate)}, {taken.cpu_us:.3g} µs"]
    if taken.p99_us:
        words.append(f"p50 / p99 {taken.p50_us / 1000:.3g} / {taken.p99_us / 1000:.3g} ms")
    return "; ".join(words)


def lines(found: Result) -> list[str]:
    """Return a result as lines for the terminal."""
    out = [f"{found.row}: {found.work}"]
    out += [f"    {name:<18} {words}" for name, words in found.readings.items()]
    out += [f"    {name:<18} MISSING: {reason}" for name, reason in found.missing.items()]
    for goal in found.goals:
        target = goal.target if goal.verdict == "shown" else f"target {goal.target}"
        out.append(f"    {goal.verdict:<18} {goal.measured}, {target}")
    return out


def markdown(results: Iterable[Result], machine: Machine, versions: Mapping[str, str]) -> str:
    """Return the table with the machine it was measured on."""
    peers = ", ".join(f"{name} {number}" for name, number in sorted(versions.items()))
    out = [
        f"Measured {machine.when} by `python -m bench` on {machine.words()}; {peers}.",
        "Rates are messages per second; µs is server CPU per message; medians of rounds taken in turns.",
        "",
        "| Work | Peers | Penstock | Measured | Target | |",
        "|---|---|---|---|---|---|",
    ]
    for found in results:
        peer_words = [f"{name}: {words}" for name, words in found.readings.items() if name != "penstock"]
        peer_words += [f"{name}: MISSING, {reason}" for name, reason in found.missing.items() if name != "penstock"]
        ours = found.readings.get("penstock") or f"MISSING, {found.missing.get('penstock', 'not measured')}"
        cells = [
            found.work,
            "<br>".join(peer_words) or "-",
            ours,
            "<br>".join(goal.measured for goal in found.goals),
            "<br>".join(goal.target for goal in found.goals),
            "<br>".join(goal.verdict for goal in found.goals),
        ]
        out.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(out) + "\n"


def rewrite(page: Path, table: str) -> None:
    """Put a table between the two markers of a page; a page that does not exist is made."""
    text = page.read_text() if page.exists() else f"# Performance\n\n{BEGIN}\n{END}\n"
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} lacks the lines {BEGIN} and {END} between which the table goes")
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(f"{before}{BEGIN}\n{table}{END}{after}")
