"""The codec against Google's protobuf, told the same field tables: what one writes the other reads."""

from __future__ import annotations

import struct
from typing import Any, cast

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from penstock.m3 import acks, entries, messages, metrics
from penstock.m3.entries import Metadata
from penstock.m3.messages import MessageReader
from penstock.m3.metrics import KINDS, Metric
from tests.m3.test_frames import messages as written
from tests.m3.test_frames import metadatas, said
from tests.m3.test_metrics import aggregates, alike

_F = descriptor_pb2.FieldDescriptorProto
U64, I64, DOUBLE, BYTES, ENUM = _F.TYPE_UINT64, _F.TYPE_INT64, _F.TYPE_DOUBLE, _F.TYPE_BYTES, _F.TYPE_INT32

#: Fields by number: name, and a type or the name of another message; "*" = repeated.
TABLE: dict[str, dict[int, tuple[str, int | str]]] = {
    "Metadata": {1: ("shard", U64), 2: ("id", U64), 3: ("sent", U64)},
    "Message": {1: ("metadata", "Metadata"), 2: ("value", BYTES)},
    "Ack": {1: ("metadata", "*Metadata")},
    "Resolution": {1: ("window", I64), 2: ("precision", I64)},
    "Retention": {1: ("period", I64)},
    "Policy": {1: ("resolution", "Resolution"), 2: ("retention", "Retention")},
    "Routing": {1: ("traffic", U64)},
    "Timed": {1: ("type", ENUM), 2: ("id", BYTES), 3: ("time", I64), 4: ("value", DOUBLE), 5: ("annotation", BYTES)},
    "WithPolicy": {1: ("timed", "Timed"), 2: ("policy", "Policy"), 3: ("routing", "Routing")},
    "Aggregated": {1: ("metric", "WithPolicy")},
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="reference.proto", package="reference", syntax="proto3")
    for name, fields in TABLE.items():
        made = file.message_type.add(name=name)
        for number, (field, kind) in fields.items():
            told = made.field.add(name=field, number=number, label=_F.LABEL_OPTIONAL)
            if isinstance(kind, str):
                told.type, told.type_name = _F.TYPE_MESSAGE, f".reference.{kind.lstrip('*')}"
                if kind.startswith("*"):
                    told.label = _F.LABEL_REPEATED
            else:
                told.type = cast(Any, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    find = pool.FindMessageTypeByName
    return {name: message_factory.GetMessageClass(find(f"reference.{name}")) for name in TABLE}


CLASSES = _classes()


def metadata(name: Metadata) -> Any:
    return CLASSES["Metadata"](shard=name.shard, id=name.id, sent=name.sent_ns)


@given(st.lists(written, min_size=1, max_size=40))
def test_messages_of_the_reference_are_read_and_ours_by_it(rows: list[tuple[Metadata, bytes]]) -> None:
    bodies = [CLASSES["Message"](metadata=metadata(name), value=value).SerializeToString() for name, value in rows]
    wire = b"".join(struct.pack(">I", len(body)) + body for body in bodies)
    assert said(MessageReader().feed(wire)) == rows
    for name, value in rows:
        read = CLASSES["Message"].FromString(messages.encoded(name, value)[4:])
        assert (read.metadata, read.value) == (metadata(name), value)


@given(st.lists(metadatas, max_size=40))
def test_acks_of_the_reference_are_read_and_ours_by_it(names: list[Metadata]) -> None:
    body = CLASSES["Ack"](metadata=map(metadata, names)).SerializeToString()
    assert acks.ack(body) == names
    ours = acks.acks([[entries.entry(name) for name in names]]).wire
    assert CLASSES["Ack"].FromString(ours[4:]).metadata == list(map(metadata, names))


@given(aggregates)
def test_metrics_of_the_reference_are_read_and_ours_by_it(metric: Metric) -> None:
    (policy,), (value,) = metric.policies, metric.values
    timed = CLASSES["Timed"](type=KINDS.index(metric.kind), id=metric.id, time=metric.time_ns, value=value)
    timed.annotation = metric.annotation
    resolution = CLASSES["Resolution"](window=policy.window_ns, precision=policy.precision_ns)
    kept = CLASSES["Policy"](resolution=resolution, retention=CLASSES["Retention"](period=policy.retention_ns))
    routing = CLASSES["Routing"](traffic=metric.traffic)
    made = CLASSES["Aggregated"](metric=CLASSES["WithPolicy"](timed=timed, policy=kept, routing=routing))
    assert alike(metrics.decode(made.SerializeToString(), 0), metric)
    assert CLASSES["Aggregated"].FromString(metrics.encode(metric)).SerializeToString() == made.SerializeToString()
