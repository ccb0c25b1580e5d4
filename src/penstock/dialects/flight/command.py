"""What a descriptor asks for: a path with a topic's name, or a JSON object with one command in it.

Owns how commands are told apart. The documents themselves are `client.wire`'s.
"""

from __future__ import annotations

import json
from typing import NamedTuple, TypeVar

import pyarrow.flight as flight

from penstock.client.wire import Publish, Stage, Subscribe, made
from penstock.errors import Refusal

Document = TypeVar("Document")

#: By the one key of the JSON object.
COMMANDS: dict[str, type] = {"publish": Publish, "stage": Stage, "subscribe": Subscribe}


class Elsewhere(NamedTuple):
    """A command of another dialect, by its name with a dot; the document is that one's to read."""

    name: str
    document: bytes


def put_of(descriptor: flight.FlightDescriptor) -> Publish | Stage:
    """Return what a DoPut asks for."""
    if descriptor.descriptor_type == flight.DescriptorType.PATH:
        return Publish(topic=topic_of(descriptor))
    document = _command(descriptor)
    if isinstance(document, Publish | Stage):
        return document
    raise Refusal("bad_request", "a DoPut publishes or stages; subscribe by DoExchange")


def exchange_of(descriptor: flight.FlightDescriptor) -> Subscribe | Elsewhere:
    """Return what a DoExchange asks for."""
    document = _command(descriptor)
    if isinstance(document, Subscribe | Elsewhere):
        return document
    raise Refusal("bad_request", "a DoExchange subscribes; publish and stage by DoPut")


def size_of(descriptor: flight.FlightDescriptor) -> int:
    """Return how much a descriptor says."""
    return sum(len(part) for part in descriptor.path or ()) + len(descriptor.command or b"")


def topic_of(descriptor: flight.FlightDescriptor) -> str:
    """Return the topic that a path names."""
    path = descriptor.path if descriptor.descriptor_type == flight.DescriptorType.PATH else None
    if not path or len(path) != 1:
        raise Refusal("bad_request", "name the topic: a path descriptor of one part, which is its name")
    try:
        return bytes(path[0]).decode()
    except UnicodeDecodeError:
        raise Refusal("bad_name", f"{path[0]!r} is no topic name: it is not UTF-8 text") from None


def _command(descriptor: flight.FlightDescriptor) -> object:
    if descriptor.descriptor_type != flight.DescriptorType.CMD or not descriptor.command:
        raise Refusal("bad_request", f"a command is needed: a JSON object with one of {', '.join(COMMANDS)}")
    try:
        values = json.loads(descriptor.command)
    except (ValueError, RecursionError) as error:
        raise Refusal("bad_request", f"the command is not JSON: {error}") from None
    word, inside = next(iter(values.items())) if isinstance(values, dict) and len(values) == 1 else ("", None)
    if "." in word:
        return Elsewhere(word, json.dumps(inside).encode())
    if word not in COMMANDS:
        raise Refusal("bad_request", f"a command is a JSON object with one key, one of {', '.join(COMMANDS)}")
    document: object = made(inside, COMMANDS[word])
    return document
