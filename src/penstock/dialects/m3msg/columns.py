"""Messages become rows: what of a metric goes into which column.

| Column | Of the message |
|---|---|
| body | the value, as it came |
| key | the metric's id |
| headers | `m3-storage-policy`, or of one that is not aggregated `m3-storage-policies`; `m3-type` where it has one |
| traffic | its traffic types |
| event_time | its time, where it says one |
| route | the shard in the message's metadata |

Knows nothing of connections or topics. Invariant: a row by itself and the same row among thousands are stored alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import NAME_BYTES_MAX, SMALL, Column
from penstock.filters.storage import HEADER as POLICY
from penstock.m3 import metric_columns
from penstock.m3.messages import Messages
from penstock.m3.metrics import KINDS, Metric
from penstock.m3.policies import StoragePolicy
from penstock.m3.wire import BadMessage
from penstock.message import Rows, shaped

SOURCE = "m3msg"


class Decoded(NamedTuple):
    """What is to be stored of messages."""

    rows: Rows
    #: Rows whose value is no metric, each with the reason.
    unreadable: dict[int, str]


def opaque(messages: Messages) -> Rows:
    """Return rows of values that nobody looks into."""
    return Rows(messages.count, messages.cuts, messages.values, SOURCE, {"route": _route(messages)})


def metrics(messages: Messages, now_ns: int) -> Decoded:
    """Return rows of metrics."""
    if messages.count > SMALL and isinstance(messages.cuts, np.ndarray):
        found = metric_columns.read(messages.cuts, messages.values, now_ns)
        if found is not None and not _has_long(found.ids):
            columns = _columns(found)
            columns["route"] = _route(messages)
            return Decoded(Rows(messages.count, messages.cuts, messages.values, SOURCE, columns), {})
    each = metric_columns.each(messages.cuts, messages.values, now_ns)
    listed = _lists(each)
    listed["route"] = _route(messages)
    unreadable = {row: str(metric) for row, metric in enumerate(each) if isinstance(metric, BadMessage)}
    return Decoded(Rows(messages.count, messages.cuts, messages.values, SOURCE, listed), unreadable)


def _columns(found: metric_columns.Metrics) -> dict[str, Column]:
    columns: dict[str, Column] = {"key": found.ids, "traffic": pa.array(found.traffic())}
    headers = _headers(found)
    if headers is not None:
        columns["headers"] = headers
    if found.times_ns.any():
        columns["event_time"] = pa.array(found.times_ns, mask=None if found.times_ns.all() else found.times_ns == 0)
    return columns


def _headers(found: metric_columns.Metrics) -> pa.Array | None:
    """Return the headers of metrics, None where none has any: there are few different ones, and often one."""
    texts = [[header(each.policies, kind, found.is_aggregated) for kind in KINDS] for each in found.asked]
    kind = int(found.kinds[0])
    if (found.kinds == kind).all() and len({some[kind] for some in texts}) == 1:
        text = texts[0][kind]
        return None if text is None else pa.repeat(pa.scalar(text, pa.binary()), len(found.kinds))
    flat = pa.array([text for some in texts for text in some], pa.binary())
    column = flat.take(pa.array(found.which.astype(np.int64) * len(KINDS) + found.kinds))
    return column if column.null_count < len(column) else None


def _lists(each: Sequence[Metric | BadMessage]) -> dict[str, Column]:
    """Return the same of metrics that were read one by one; null where one is none."""
    keys: list[bytes | None] = []
    headers: list[bytes | None] = []
    traffic: list[int | None] = []
    times: list[int | None] = []
    for metric in each:
        if isinstance(metric, BadMessage):
            for column in (keys, headers, traffic, times):
                column.append(None)
            continue
        keys.append(metric.id if len(metric.id) <= NAME_BYTES_MAX else None)
        headers.append(header(metric.policies, metric.kind, metric.is_aggregated))
        traffic.append(metric.traffic - (1 << 64) if metric.traffic >> 63 else metric.traffic)
        times.append(metric.time_ns or None)
    named: dict[str, Column] = {"key": keys, "headers": headers, "traffic": traffic, "event_time": times}
    return {name: shaped(values, len(each), name) for name, values in named.items() if _says(values)}


def _says(values: Column) -> bool:
    return any(value is not None for value in values)


#: Headers, beside the policy that a metric was aggregated by: those that one is to be aggregated by, and its type.
POLICIES, TYPE = "m3-storage-policies", "m3-type"

_HEADERS: dict[tuple[tuple[StoragePolicy, ...], str, bool], bytes | None] = {}
#: Headers that are kept; there are as many as different policies and types.
_HEADERS_MAX = 4096


def header(policies: tuple[StoragePolicy, ...], kind: str, is_aggregated: bool) -> bytes | None:
    """Return the headers of a metric; neither policies nor types have a character that JSON writes otherwise."""
    key = policies, kind, is_aggregated
    if key not in _HEADERS:
        said = {POLICY if is_aggregated else POLICIES: ",".join(map(str, policies)), TYPE: kind}
        text = ",".join(f'"{name}":"{value}"' for name, value in said.items() if value)
        if len(_HEADERS) >= _HEADERS_MAX:
            _HEADERS.clear()
        _HEADERS[key] = f"{{{text}}}".encode() if text else None
    return _HEADERS[key]


def _has_long(ids: pa.Array) -> bool:
    return int(pc.max(pc.binary_length(ids)).as_py() or 0) > NAME_BYTES_MAX


def _route(messages: Messages) -> Column:
    shards = messages.shard
    if isinstance(shards, list):
        return [shard - (1 << 64) if shard >> 63 else shard for shard in shards]
    return pa.array(shards.view(np.int64))
