"""What the registry holds of topics: those that are there, and those that are gone and whose storage may not be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, TypeVar

import msgspec

from penstock.client.timeline.wire import Kind
from penstock.cluster.denial import Denial
from penstock.errors import CorruptionError
from penstock.registry import records

Settings: TypeAlias = "Mapping[str, int | bool | str]"
State: TypeAlias = Literal["creating", "live"]
Phase: TypeAlias = Literal["fencing", "purging"]
Record = TypeVar("Record", bound=msgspec.Struct)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as all brokers know it."""

    id: str
    #: New with every creation, and part of whatever its storage is called.
    incarnation: str
    created_ms: int
    state: State
    master: str
    settings: dict[str, int | bool | str]


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that is gone and whose storage may not be."""

    id: str
    incarnation: str
    phase: Phase
    since_ms: int
    master: str
    settings: dict[str, int | bool | str] = {}


def encoded(entry: Entry | Deletion) -> bytes:
    """Return an entry as the registry keeps it."""
    return msgspec.msgpack.encode(entry)


def decoded(value: bytes, kind: type[Record], key: str) -> Record:
    """Return an entry that somebody asks for, or deny it as one that cannot be read."""
    try:
        return records.decoded(value, kind, key)
    except CorruptionError as error:
        raise Denial(Kind.TOPIC, str(error)) from None
