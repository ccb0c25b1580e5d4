"""The parts of a pipeline in order: which queries it runs, and what hangs together.

Owns the way from sinks back to sources. Everything that takes rows `from` one part is one query, so that what is
computed once is written to all its sinks. Invariant: a pipeline that passes has no cycle, neither in its parts nor
through a topic that it writes and reads, and no part that feeds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import ConfigError, hint
from penstock.pipeline.plan.document import DROP, EACH_ROW, Document, Source


class Query(NamedTuple):
    """What runs as one streaming query."""

    #: The part that its sinks take rows from.
    name: str
    source: str
    #: Steps from the source on.
    steps: tuple[str, ...]
    sinks: tuple[str, ...]
    #: Steps whose unusable rows this query writes; no other does.
    buries: tuple[str, ...]
    trigger: str


def queries(document: Document) -> list[Query]:
    """Return the queries of a pipeline, in the order of its sinks."""
    _check_cycles(document)
    found: dict[str, Query] = {}
    buried: set[str] = set()
    targets = dict.fromkeys(sink.from_ for sink in document.sinks.values())
    for target in targets:
        source, steps = _path(document, target)
        sinks = tuple(name for name, sink in document.sinks.items() if sink.from_ == target)
        mine = tuple(step for step in steps if step not in buried and (step == target or step not in targets))
        buried.update(mine)
        buries = tuple(step for step in mine if document.steps[step].dead != DROP)
        found[target] = Query(target, source, steps, sinks, buries, _trigger(document, target, sinks))
    _check_used(document, found)
    return list(found.values())


def _path(document: Document, target: str) -> tuple[str, tuple[str, ...]]:
    """Return the source and the steps that lead to a part."""
    steps: list[str] = []
    while target in document.steps:
        steps.append(target)
        target = document.steps[target].from_
    return target, tuple(reversed(steps))


def _trigger(document: Document, target: str, sinks: tuple[str, ...]) -> str:
    chosen = {document.sinks[name].trigger or document.trigger for name in sinks}
    if len(chosen) > 1:
        raise ConfigError(
            f"sinks {' and '.join(sinks)} take rows from {target}, which runs once for both: give them one trigger"
        )
    return chosen.pop()


def _check_cycles(document: Document) -> None:
    """Refuse parts that take rows from nowhere or from themselves, also by way of a topic."""
    names = (*document.sources, *document.steps)
    places = [(f"steps.{name}", step.from_) for name, step in document.steps.items()]
    places += [(f"sinks.{name}", sink.from_) for name, sink in document.sinks.items()]
    for place, wanted in places:
        if wanted not in names:
            raise ConfigError(f"{place}: there is no source or step {wanted}; {hint(wanted, names)}")
    done: set[str] = set()
    for start in document.sources | document.steps:
        for cycle in _cycles(document, start, [], done):
            raise ConfigError(f"the pipeline goes in a circle: {' → '.join(cycle)}")


def _cycles(document: Document, part: str, path: list[str], done: set[str]) -> Iterator[list[str]]:
    if part in path:
        yield [*path[path.index(part) :], part]
        return
    if part in done:
        return
    for following in _following(document, part):
        yield from _cycles(document, following, [*path, part], done)
    done.add(part)


def _following(document: Document, part: str) -> Iterator[str]:
    """Yield the parts that get rows from a part, by name or through a topic."""
    yield from (name for name, step in document.steps.items() if step.from_ == part)
    written = [
        sink.topic for sink in document.sinks.values() if sink.from_ == part and sink.topic not in ("", EACH_ROW)
    ]
    if part in document.steps and document.steps[part].dead not in ("", DROP):
        written.append(document.steps[part].dead)
    for name, source in document.sources.items():
        if any(_reads(source, topic) for topic in written):
            yield name


def _reads(source: Source, topic: str) -> bool:
    if source.pattern:
        try:
            return re.fullmatch(source.pattern, topic) is not None
        except re.error as error:
            raise ConfigError(f"pattern {source.pattern!r} is no regular expression: {error}") from None
    return topic in source.names


def _check_used(document: Document, found: dict[str, Query]) -> None:
    used = {name for query in found.values() for name in (query.source, *query.steps)}
    for name in (*document.sources, *document.steps):
        if name not in used:
            kind = "source" if name in document.sources else "step"
            raise ConfigError(f"{kind} {name} leads to no sink: add one, or remove it")
