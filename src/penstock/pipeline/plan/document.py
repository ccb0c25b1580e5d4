"""A pipeline as its TOML file says it: sources, steps and sinks, each with its keys.

Owns the keys and what each may hold. Knows nothing of what exists: topics, tables and columns are checked later.
Invariant: a key or value that cannot be meant is an error that names the place, the key and the nearest one there is.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from penstock.errors import ConfigError, hint
from penstock.units.quantity import parse_duration

#: Names of pipelines and their parts are names of directories and of metrics as well.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
#: A trigger that reads what is there and ends.
ONCE = "once"
#: As a sink's topic: each row says it, in its column `topic`.
EACH_ROW = "*"
#: As a step's `dead`: rows that cannot be used are only counted.
DROP = "drop"

SECOND_NS = 1_000_000_000
#: What a node grants.
HOLD_NS_MAX = 7 * 24 * 3600 * SECOND_NS

Kind = TypeVar("Kind", bound=msgspec.Struct)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where the node is: its data directory on this machine, or its address."""

    path: str = ""
    url: str = ""
    #: A token, or user:secret; better a file whose first line that is.
    token: str = ""
    token_file: str = ""
    tls_roots: str = ""

    def __repr__(self) -> str:
        """Return what may stand in a log."""
        return f"Place({self.path or self.url!r}{', token=...' if self.token else ''})"

    def options(self) -> dict[str, str]:
        """Return the options of the source and the sink that say this."""
        named = {
            "path": self.path,
            "url": self.url,
            "token": self.token,
            "tokenFile": self.token_file,
            "tlsRoots": self.tls_roots,
        }
        return {name: value for name, value in named.items() if value}


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Topics to read."""

    topic: str = ""
    topics: tuple[str, ...] = ()
    pattern: str = ""
    #: `earliest`, `latest`, a time, a duration back from now, or offsets.
    from_: str | int | dict[str, int | dict[str, int]] = msgspec.field(default="earliest", name="from")
    columns: tuple[str, ...] = ()
    tag: str = ""
    traffic: str | int = ""
    buckets: str = ""
    max_rows: int = 1_000_000
    max_bytes: int = 0
    #: Fewer rows than this wait for company, for so long at most; 0: nothing waits.
    min_rows: int = 0
    max_wait: str = "15m"
    tasks: int = 0
    fail_on_data_loss: bool = True
    #: How long the node keeps what this pipeline has not read yet while it does not run.
    hold: str = "7d"

    @property
    def names(self) -> tuple[str, ...]:
        """The topics that are named one by one."""
        return (self.topic,) if self.topic else self.topics


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A job between a source and a sink."""

    from_: str = msgspec.field(name="from")
    job: str
    #: The topic of rows that cannot be used; empty: the topic they came from, with `.dead` behind it.
    dead: str = ""
    #: Everything else, which is the job's own.
    options: dict[str, Any] = msgspec.field(default_factory=dict)


class Sink(msgspec.Struct, frozen=True, kw_only=True):
    """Where rows go: a topic or a table."""

    from_: str = msgspec.field(name="from")
    topic: str = ""
    table: str = ""
    #: Only these rows, as an SQL condition.
    where: str = ""
    trigger: str = ""
    #: What a table is partitioned by; empty: topic and day, where rows have them.
    partition_by: tuple[str, ...] = ()
    #: Everything else, which is the table's own.
    options: dict[str, Any] = msgspec.field(default_factory=dict)


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A whole pipeline."""

    name: str
    node: Place = Place()
    #: Where checkpoints and state are; empty: with the others, under the pipeline's name.
    home: str = ""
    #: How often a batch begins, or `once`.
    trigger: str = "10s"
    #: Where Spark runs, unless the command line says it.
    master: str = "local[*]"
    #: Settings of Spark itself.
    spark: dict[str, str | int | float | bool] = {}
    #: Java starts sooner and takes less memory, and computes slower.
    quick: bool = False
    sources: dict[str, Source]
    steps: dict[str, Step] = {}
    sinks: dict[str, Sink]


def loaded(path: str) -> Document:
    """Return the pipeline in a file."""
    try:
        with open(path, "rb") as file:
            values = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML: {error}") from None
    values.setdefault("name", os.path.basename(path).removesuffix(".toml"))
    return parsed(values, path)


def parsed(values: Mapping[str, Any], where: str) -> Document:
    """Return the pipeline that some values say; `where` names them in errors."""
    parts = {name: _table(values, name, where) for name in ("sources", "steps", "sinks")}
    sources = {name: _source(each, f"{where}: sources.{name}") for name, each in parts["sources"].items()}
    steps = {name: _step(each, f"{where}: steps.{name}") for name, each in parts["steps"].items()}
    sinks = {name: _sink(each, f"{where}: sinks.{name}") for name, each in parts["sinks"].items()}
    for kind, named in (("sources", sources), ("sinks", sinks)):
        if not named:
            raise ConfigError(f"{where} has no {kind}: write a table [{kind}.NAME]")
    for name in (*sources, *steps, *sinks):
        _check_name(name, f"{where}: the name of a part")
    twice = set(sources) & set(steps)
    if twice:
        raise ConfigError(f"{where}: {min(twice)} is a source and a step; `from` could mean either, so rename one")
    rest = {name: value for name, value in values.items() if name not in parts}
    if isinstance(rest.get("node"), Mapping):
        rest["node"] = converted(rest["node"], Place, f"{where}: node")
    base = converted({**rest, "sources": {}, "sinks": {}}, Document, where)
    _check_name(base.name, f"{where}: name")
    trigger(base.trigger, f"{where}: trigger")
    return msgspec.structs.replace(base, sources=sources, steps=steps, sinks=sinks)


def at(document: Document, place: Place) -> Document:
    """Return a pipeline bound to a node; `{data}` in the path of a table is the node's data directory."""
    sinks = {}
    for name, sink in document.sinks.items():
        if "{data}" in sink.table and not place.path:
            raise ConfigError(f"sinks.{name}: table names {{data}}, and the node is not given by its data directory")
        sinks[name] = msgspec.structs.replace(sink, table=sink.table.replace("{data}", place.path))
    return msgspec.structs.replace(document, node=place, sinks=sinks)


def converted(values: Mapping[str, Any], kind: type[Kind], where: str) -> Kind:
    """Return a table as its struct; an unknown key is named with the nearest one."""
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    for name in values:
        if name not in names:
            raise ConfigError(f"{where} has no key {name}; {hint(name, names)}")
    try:
        return msgspec.convert(values, kind)
    except (msgspec.ValidationError, ConfigError) as error:
        raise ConfigError(f"{where}: {error}") from None


def trigger(text: str, where: str) -> dict[str, Any]:
    """Return a trigger as Spark takes it."""
    if text == ONCE:
        return {"availableNow": True}
    try:
        return {"processingTime": f"{parse_duration(text) // 1_000_000} milliseconds"}
    except ConfigError:
        raise ConfigError(f'{where} is {text!r}: write how often, like "10s", or "{ONCE}"') from None


def _table(values: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    found = values.get(name, {})
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise ConfigError(f"{where}: {name} holds tables by name: write [{name}.NAME]")
    return found


def _source(values: Mapping[str, Any], where: str) -> Source:
    source = converted(values, Source, where)
    if bool(source.topic) + bool(source.topics) + bool(source.pattern) != 1:
        raise ConfigError(f"{where} needs one of topic, topics and pattern")
    if source.max_rows < 1 or source.max_bytes < 0 or source.tasks < 0:
        raise ConfigError(f"{where}: max_rows, max_bytes and tasks are numbers above 0")
    if not 0 <= source.min_rows <= source.max_rows:
        raise ConfigError(f"{where}: min_rows is {source.min_rows}: 0 to {source.max_rows}, as max_rows has it")
    for name, text in (("hold", source.hold), ("max_wait", source.max_wait)):
        try:
            length_ns = parse_duration(text)
        except ConfigError as error:
            raise ConfigError(f"{where}: {name}: {error}") from None
        if not SECOND_NS <= length_ns <= HOLD_NS_MAX:
            raise ConfigError(f"{where}: {name} is {text!r}: 1s to 7d")
    return source


def _step(values: Mapping[str, Any], where: str) -> Step:
    return _with_options(values, Step, where)


def _sink(values: Mapping[str, Any], where: str) -> Sink:
    sink = _with_options(values, Sink, where)
    if bool(sink.topic) == bool(sink.table):
        raise ConfigError(f'{where} needs topic or table, one of both (topic = "{EACH_ROW}": each row says it)')
    if sink.trigger:
        trigger(sink.trigger, f"{where}: trigger")
    if sink.topic:
        for name in (*sink.options, *(["partition_by"] if sink.partition_by else [])):
            raise ConfigError(f"{where} has no key {name}: it is a topic, and takes from, topic, where and trigger")
    return sink


def _with_options(values: Mapping[str, Any], kind: type[Kind], where: str) -> Kind:
    """Return a table whose further keys belong to a job or a table, which checks them."""
    names = {field.encode_name for field in msgspec.structs.fields(kind)} - {"options"}
    own = {name: value for name, value in values.items() if name in names}
    options = {name: value for name, value in values.items() if name not in names}
    return converted({**own, "options": options}, kind, where)


def _check_name(name: str, what: str) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(f"{what} is {name!r}: letters, digits, dot, dash and underscore, up to 64")
