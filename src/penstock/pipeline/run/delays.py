"""What is good and yet may surprise: steps that make later ones wait."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.pipeline.jobs.dedupe import Dedupe
from penstock.pipeline.jobs.rollup import Rollup
from penstock.pipeline.plan.document import Document
from penstock.pipeline.plan.graph import Query
from penstock.pipeline.run.query import options_of


def delays(document: Document, queries: Sequence[Query]) -> list[str]:
    """Return a sentence for each rollup whose windows close late because a step before it lets rows come late."""
    found: dict[str, None] = {}
    for query in queries:
        before: tuple[str, Dedupe] | None = None
        for name, (_, options) in zip(query.steps, options_of(document, query), strict=True):
            if isinstance(options, Dedupe):
                before = name, options
            elif isinstance(options, Rollup) and before is not None:
                step, dedupe = before
                if dedupe.lateness_us > options.lateness_us():
                    found[_note(name, step, dedupe, options)] = None
    return list(found)


def _note(name: str, step: str, dedupe: Dedupe, rollup: Rollup) -> str:
    if dedupe.lateness:
        return (
            f"windows of steps.{name} close {dedupe.lateness} after their end, not {rollup.lateness}: steps.{step} "
            f'says lateness = "{dedupe.lateness}"'
        )
    return (
        f"windows of steps.{name} close {dedupe.within} after their end, not {rollup.lateness}: steps.{step} before it "
        f'waits for rows that come as late as it remembers them (within). With lateness = "{rollup.lateness}" in '
        f"steps.{step} they close in time, and rows that are later than that are left out"
    )
