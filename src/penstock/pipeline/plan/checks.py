"""What can be known before anything runs, and without Spark: whether topics are there, and paths can be written.

Invariant: a check changes nothing but the time it takes.
"""

from __future__ import annotations

import os
import re

from penstock.errors import ConfigError, hint
from penstock.pipeline.options import parsed
from penstock.pipeline.plan.document import Document, Source
from penstock.pipeline.remote import Remote
from penstock.pipeline.store import opened
from penstock.pipeline.target import parsed as target

#: Enough for a node that is being restarted on a fast machine.
PATIENCE_S = 5.0


def check(document: Document) -> None:
    """Refuse a pipeline whose topics are not there, or whose tables cannot be."""
    if not document.node.options():
        raise ConfigError("where is the node? Set [node] path or url, or say --data DIR or --url grpc://host:7071")
    if document.node.path and not os.path.isdir(document.node.path):
        raise ConfigError(f"there is no data directory {document.node.path}: start a node, or name another")
    names = _topics(document)
    for name, source in document.sources.items():
        _check_source(f"sources.{name}", source, names)
    if any(sink.topic for sink in document.sinks.values()) or any(step.dead for step in document.steps.values()):
        target(document.node.options()).node()  # files can be read without a node, and not written
    for name, sink in document.sinks.items():
        if sink.table:
            _check_path(f"sinks.{name}: table", sink.table)


def _topics(document: Document) -> list[str]:
    """Return the topics that are there; a node that is away is not waited for as long as by a query."""
    options = parsed({**document.node.options(), "subscribe": "any"})
    if options.path is None and options.access is not None:
        return Remote(options.access, PATIENCE_S).names()
    return opened(options).names()


def _check_source(where: str, source: Source, names: list[str]) -> None:
    if source.pattern:
        try:
            matching = [name for name in names if re.fullmatch(source.pattern, name)]
        except re.error as error:
            raise ConfigError(f"{where}: pattern {source.pattern!r} is no regular expression: {error}") from None
        if not matching:
            raise ConfigError(f"{where}: no topic matches {source.pattern!r}")
    for name in source.names:
        if name not in names:
            near = hint(name, names, "publish to it first, or make it with `penstock topic create`")
            raise ConfigError(f"{where}: there is no topic {name}; {near}")


def _check_path(where: str, path: str) -> None:
    place = os.path.abspath(path)
    if os.path.exists(place) and not os.path.isdir(place):
        raise ConfigError(f"{where} {path} is a file: name a directory")
    while not os.path.exists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place) or not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(f"{where} {path} cannot be written: {place} is not ours to write in")
