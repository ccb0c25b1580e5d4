"""What the registry says of a cluster: its name, its nodes, who owns which slot, and what operators want to be so.

Values, the keys they stand under, and how they are read: kept up to date by events, so that asking costs nothing.
Invariant: what cannot be read is counted and passed over; the rest is as the registry has it.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from penstock.config import ClusterConfig
from penstock.registry.reader import Reader
from penstock.registry.registry import Entry, Event, Registry

#: Nodes that agree on what stands under these keys, and in Kafka. Another number: they do not understand each other.
FORMAT = 1

KEYS = "cluster/"
ABOUT = KEYS + "about"
NODES = KEYS + "node/"
SLOTS = KEYS + "slot/"
PINS = KEYS + "pin/"
DRAINS = KEYS + "drain/"

#: The listener for other nodes; and what a listener that is reached at every address is said to have.
LISTENER = "cluster.port"
EVERYWHERE = ("", "0.0.0.0", "::", "[::]")

_NUMBER = re.compile(r"0|[1-9][0-9]{0,5}")


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster itself; made by its first node, and never changed."""

    name: str
    slots: int
    format: int = FORMAT


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is alive."""

    name: str
    #: Tells two processes that call themselves the same apart.
    life: str
    weight: int = 1
    #: HOST:PORT for other nodes.
    address: str = ""
    #: HOST:PORT by the name of a listener, for clients.
    listeners: dict[str, str] = {}
    version: str = ""
    since_ms: int = 0
    #: It is stopping: it takes no slots, and gives away those it has.
    is_leaving: bool = False
    #: Names its data directory, which one process has at a time: who has it knows that the one before is dead.
    disk: str = ""


class SlotRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Who owns a slot."""

    node: str
    life: str
    #: No two takings say the same, so that nobody takes an old one for the present one.
    turn: int = 0


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's word where a slot is to be."""

    node: str


class Owner(NamedTuple):
    """What stands under the key of a slot; without a node if it cannot be read."""

    node: str
    life: str
    entry: Entry


def name_of(config: ClusterConfig) -> str:
    """Return what this node is called in its cluster."""
    return config.node or socket.gethostname()


def address_of(config: ClusterConfig) -> str:
    """Return where other nodes are told to reach this one."""
    if config.advertise:
        return config.advertise
    return f"[{config.address}]:{config.port}" if ":" in config.address else f"{config.address}:{config.port}"


def reachable(config: ClusterConfig, listeners: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return where others reach this node, and where clients reach its listeners, by where it really listens.

    What listens at every address of the machine is reached at the one that other nodes are told.
    """
    address = config.advertise or listeners.get(LISTENER) or address_of(config)
    host = address.rpartition(":")[0]
    found = {}
    for name, place in listeners.items():
        own, _, port = place.rpartition(":")
        found[name] = f"{host}:{port}" if own in EVERYWHERE else place
    return address, found


class Places:
    """What is known of a cluster here."""

    def __init__(self, registry: Registry) -> None:
        self.nodes: dict[str, NodeRecord] = {}
        self.owners: dict[int, Owner] = {}
        self.pins: dict[int, str] = {}
        self.drains: set[str] = set()
        self._bad: set[str] = set()
        self._reader = Reader()
        for key, entry in registry.list(KEYS).items():
            self._put(key, entry)

    @property
    def unreadable(self) -> int:
        """How many keys there are that say nothing anybody understands."""
        return len(self._bad)

    def hear(self, events: Iterable[Event]) -> None:
        """Take changes of the registry."""
        for event in events:
            if event.value is None:
                self._forget(event.key)
            else:
                self._put(event.key, Entry(event.value, event.revision))

    def node_at(self, entry: Entry | None, key: str) -> NodeRecord | None:
        """Return the node that stands under a key; None if nobody does, or it cannot be read."""
        record = self._reader.read(key, entry, NodeRecord)
        return record if record is not None and NODES + record.name == key else None

    def _put(self, key: str, entry: Entry) -> None:
        self._forget(key)
        is_good = True
        if key.startswith(NODES):
            node = self.node_at(entry, key)
            if is_good := node is not None:
                self.nodes[node.name] = node
        elif key.startswith(SLOTS):
            slot, record = _number(key, SLOTS), self._reader.read(key, entry, SlotRecord)
            is_good = slot is not None and record is not None
            if slot is not None:
                self.owners[slot] = Owner(record.node if record else "", record.life if record else "", entry)
        elif key.startswith(PINS):
            slot, pin = _number(key, PINS), self._reader.read(key, entry, Pin)
            if slot is not None and pin is not None:
                self.pins[slot] = pin.node
            is_good = slot is not None and pin is not None
        elif key.startswith(DRAINS):
            self.drains.add(key.removeprefix(DRAINS))
        elif key != ABOUT:
            is_good = False
        if not is_good:
            self._bad.add(key)

    def _forget(self, key: str) -> None:
        self._bad.discard(key)
        if key.startswith(NODES):
            self.nodes.pop(key.removeprefix(NODES), None)
        elif key.startswith(SLOTS):
            self.owners.pop(_number(key, SLOTS), None)  # type: ignore[arg-type]
        elif key.startswith(PINS):
            self.pins.pop(_number(key, PINS), None)  # type: ignore[arg-type]
        elif key.startswith(DRAINS):
            self.drains.discard(key.removeprefix(DRAINS))


def _number(key: str, prefix: str) -> int | None:
    found = _NUMBER.fullmatch(key, len(prefix))
    return int(found[0]) if found else None
