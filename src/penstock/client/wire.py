"""What a Flight client and a node say to each other beside record batches: small JSON documents.

The one definition of them: the SDK, the Spark source and sink and `dialects/flight` all use it. Standard library only,
so that a Spark executor can import it.
Invariant: what `encoded` writes, `decoded` reads back; a key that is not in the definition is an error that names it.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, TypeVar

from penstock.errors import Elsewhere, Refusal, hint


def of(inner: type) -> dict[str, type]:
    """Return the metadata of a field that holds another document, or a list of them."""
    return {"of": inner}


#: Runs of consecutive ids as [first, count]: ids of neighbours differ by one, so thousands fit in a few bytes.
Ranges = list[list[int]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Publish:
    """DoPut, as a command descriptor (a path descriptor with one name says the same): batches to publish."""

    #: None: each row says it in a column `topic`.
    topic: str | None = None
    #: Make a topic that does not exist.
    create: bool = True
    #: All rows go to this shard.
    shard: int | None = None
    #: Names the dialect in `source`.
    source: str = "flight"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sequence:
    """Metadata of one batch of a DoPut: sent again with the same key within the window, it is stored once."""

    sequence: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stored:
    """Answer to one batch of a DoPut, in order: where its rows are."""

    #: Where the rows went, in the order of the rows: [topic, shard, first offset, count].
    places: list[list[Any]]
    #: How many repeat an older message and were not stored again.
    repeated: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """DoPut, as a command: batches that become visible only by `Commit`."""

    query: str
    batch: int
    #: One try of one task: unique for ever.
    attempt: str
    topic: str | None = None
    create: bool = True
    #: The shard, modulo the topic's, of rows without a key; None = the attempts take turns.
    home: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Staged:
    """The one answer to a staged stream, after its bytes are synced."""

    rows: int
    bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Read:
    """A ticket of DoGet: rows of one shard."""

    topic: str
    shard: int = 0
    #: Refused if the topic was deleted and made anew; 0 = whichever there is.
    incarnation: int = 0
    start: int | None = None
    end: int | None = None
    #: By time instead: first row stored at or after it; rows stored before it.
    from_ns: int | None = None
    until_ns: int | None = None
    columns: list[str] | None = None
    tags: list[str] | None = None
    #: Any of these traffic bits.
    traffic: int | None = None
    #: [low, high)
    buckets: list[int] | None = None
    #: Begin at what is kept when `start` is not kept any more, instead of refusing.
    skip_lost: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subscribe:
    """DoExchange, as a command: a consumer of a subscription."""

    topic: str
    subscription: str
    #: How long a message may be held; None = the subscription's own.
    lease_ms: int | None = None
    tag: str | None = None
    #: A header filter.
    filter: dict[str, Any] | None = None
    sample_percent: int | None = None
    shard: int | None = None
    columns: list[str] | None = None
    #: Make the subscription where there is none, and the topic, too.
    create: bool = True
    create_topic: bool = True
    #: A subscription made now begins with everything that is kept.
    earliest: bool = False
    #: Where buckets are dealt: to whom, and in which rack it stands.
    consumer: str | None = None
    rack: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
    """What a consumer says in an exchange; all parts are optional and apply in this sequence."""

    ack: Ranges = dataclasses.field(default_factory=list)
    extend: Ranges = dataclasses.field(default_factory=list)
    lease_ms: int | None = None
    release: Ranges = dataclasses.field(default_factory=list)
    delay_ms: int = 0
    #: How many messages it may hold from now on.
    credit: int | None = None
    #: Answered with the same number once everything before it is written down.
    ping: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Notice:
    """What the node says in an exchange beside batches."""

    #: Ids of an order that this consumer does not hold (any more).
    refused: Ranges = dataclasses.field(default_factory=list)
    pong: int | None = None
    #: The node ends the exchange, and why.
    end: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Commit:
    """Action `commit`: make what these attempts staged visible, once for each (query, topic, batch)."""

    query: str
    batch: int
    attempts: list[str]
    #: That all of it is for, where one is: in a cluster its node is to be asked.
    topic: str | None = None
    #: The last batch may come again with other rows than those that were written, and adds nothing then, too.
    any_rows: bool = False
    #: What was decided on for this topic, where that is known: it is committed first.
    decided: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """What of a batch goes to one topic."""

    topic: str
    attempts: list[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decide:
    """Action `decide`: a batch of several topics of a cluster is committed; `commit` of each waits until it is."""

    query: str
    batch: int
    parts: list[Part] = dataclasses.field(metadata=of(Part))
    any_rows: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decided:
    """Answer to `Decide`: what stands, if it was decided before."""

    batch: int
    parts: list[Part] = dataclasses.field(metadata=of(Part))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Committed:
    """Answer to `Commit`."""

    rows: int
    #: It was committed before, by these or by other attempts; nothing was added.
    already: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hold:
    """Action `hold`: keep rows from these offsets on against retention for a while; saying it again renews it."""

    #: Who holds: a query's id.
    name: str
    topic: str
    incarnation: int
    #: One offset per shard.
    offsets: list[int]
    ttl_ms: int = 24 * 3600 * 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardRange:
    """What of one shard can be read."""

    shard: int
    start: int
    end: int
    rows: int
    bytes: int
    #: The same in pieces without large holes, in order: [first, end, rows, bytes]; empty where nobody looked.
    stretches: list[list[int]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopicInfo:
    """A topic as `GetFlightInfo` (app_metadata) and the actions `topic` and `topics` describe it."""

    name: str
    incarnation: int
    shards: list[ShardRange] = dataclasses.field(metadata=of(ShardRange))
    #: Its directory on the node's machine; None where nothing is on disk.
    path: str | None
    durability: str
    #: Where its node is, if that is another one than was asked, which knows nothing of the shards' ranges then.
    location: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Routing:
    """Answer of the action `routing`: which of the 64 traffic bits each traffic type is."""

    traffic_types: dict[str, int]
    #: Removed types, whose bits older messages may still carry.
    retired: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryReport:
    """How one query of a pipeline is, inside `PipelineReport`."""

    name: str
    state: str = "starting"
    #: Batches that ended.
    batch: int = 0
    #: Since the pipeline started.
    rows_total: int = 0
    rows_per_s: float = 0.0
    #: Rows of its sources that it has not read yet.
    lag_rows: int = 0
    #: How long the last batch took.
    batch_ms: int = 0
    #: Rows that came after their window was closed, and rows that could not be used.
    late_rows: int = 0
    dead_rows: int = 0
    #: Why it failed; empty while it did not.
    error: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineReport:
    """Action `pipeline`: how a pipeline is, told every few seconds while it runs and once more at its end."""

    name: str
    pid: int
    host: str
    #: One of PIPELINE_STATES.
    state: str
    started_ms: int
    error: str = ""
    #: How often it started a query again since `started_ms`; that the whole process is another one, the node sees.
    restarts: int = 0
    #: Where Spark runs: local[2], spark://host:port, sc://host:port.
    master: str = ""
    queries: list[QueryReport] = dataclasses.field(default_factory=list, metadata=of(QueryReport))


#: What a pipeline says of itself.
PIPELINE_STATES = ("starting", "running", "stopping", "stopped", "failed")

Document = TypeVar("Document")


def encoded(document: object) -> bytes:
    """Return a document as bytes; what has its default is left out."""
    values = {}
    for field in dataclasses.fields(document):  # type: ignore[arg-type]
        value = getattr(document, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        if value != default:
            values[field.name] = value
    return json.dumps(values, separators=(",", ":"), default=dataclasses.asdict).encode()


def decoded(content: bytes | memoryview, kind: type[Document]) -> Document:
    """Return the document in some bytes; `Refusal` says what is wrong with it."""
    try:
        values = json.loads(bytes(content))
    except (ValueError, RecursionError) as error:
        raise Refusal("bad_request", f"this is not JSON: {error}") from None
    return made(values, kind)


def retry_told(retry_ns: int) -> bytes:
    """Return what goes with an error, for programs: when another try may succeed."""
    return json.dumps({"retry_ns": retry_ns}).encode()


def told_retry(content: bytes | None) -> int:
    """Return when another try may succeed, as an error told it; 0 where it did not."""
    try:
        found = json.loads(content or b"{}")
        return max(int(found["retry_ns"]), 0)
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0


def place_told(elsewhere: Elsewhere) -> bytes:
    """Return what goes with the error that a topic is on another node, for programs: which, and where that is."""
    return json.dumps({name: getattr(elsewhere, name) for name in _PLACE}).encode()


def told_place(content: bytes | None, text: str) -> Elsewhere:
    """Return the refusal that names another node; what it did not say is empty."""
    try:
        found = json.loads(content or b"{}")
        topic, node, location = (str(found.get(name) or "") for name in _PLACE)
    except (ValueError, AttributeError, RecursionError):
        topic = node = location = ""
    return Elsewhere(topic, node, text, location)


_PLACE = ("topic", "node", "location")


def made(values: object, kind: type[Document]) -> Document:
    """Return a document from its decoded JSON; `Refusal` says what is wrong with it."""
    what = kind.__name__.lower()
    if not isinstance(values, dict):
        raise Refusal("bad_request", f"a {what} is a JSON object, not {type(values).__name__}")
    known = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise Refusal("bad_request", f"a {what} has no {name!r}; {hint(str(name), known, show=repr)}")
    for name, field in known.items():
        if name in values:
            _check(values[name], str(field.type), what, name)
        if "of" in field.metadata and values.get(name) is not None:
            inner, value = field.metadata["of"], values[name]
            whole = [made(each, inner) for each in value] if isinstance(value, list) else made(value, inner)
            values = {**values, name: whole}
    try:
        return kind(**values)
    except TypeError:
        missing = [name for name, field in known.items() if name not in values and _is_required(field)]
        raise Refusal("bad_request", f"a {what} needs {', '.join(map(repr, missing))}") from None


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


#: The types of fields as they are written above, and what JSON may hold there.
_CHECKS: dict[str, type | tuple[type, ...]] = {"str": str, "int": int, "bool": bool, "float": (int, float)}


def _check(value: object, kind: str, what: str, name: str) -> None:
    """Refuse a value of the wrong type; numbers stay within 64 bits."""
    if kind.endswith("| None"):
        if value is None:
            return
        kind = kind.removesuffix("| None").strip()
    expected: Any = _CHECKS.get(kind) or (list if kind.startswith(("list", "Ranges")) else dict)
    good = isinstance(value, expected) and not (kind in ("int", "float") and isinstance(value, bool))
    if good and isinstance(value, int) and kind in ("int", "float"):
        good = -(1 << 63) <= value < 1 << 63
    if good and isinstance(value, float):
        good = math.isfinite(value)  # Python's JSON knows NaN and Infinity, others do not
    if good and kind == "list[str]":
        good = all(isinstance(item, str) for item in value)  # type: ignore[attr-defined]
    if good and kind == "list[int]":
        good = all(isinstance(item, int) and not isinstance(item, bool) for item in value)  # type: ignore[attr-defined]
    if good and kind == "Ranges":
        good = all(_is_range(item) for item in value)  # type: ignore[attr-defined]
    if not good:
        raise Refusal("bad_request", f"{name!r} of a {what} is a {kind}, not {json.dumps(value)[:80]}")


def _is_range(item: object) -> bool:
    if not isinstance(item, list) or len(item) != 2:
        return False
    return all(isinstance(part, int) and not isinstance(part, bool) and 0 < part < 1 << 63 for part in item)


def ranges_of(ids: list[int]) -> Ranges:
    """Return ids as runs; they need not be sorted, but runs are only found in order."""
    out: Ranges = []
    for id_ in ids:
        if out and out[-1][0] + out[-1][1] == id_:
            out[-1][1] += 1
        else:
            out.append([id_, 1])
    return out


def command(document: Publish | Stage | Subscribe) -> bytes:
    """Return a document as the command of a descriptor: an object with one key that says what it is."""
    return b'{"%s":%s}' % (type(document).__name__.lower().encode(), encoded(document))
