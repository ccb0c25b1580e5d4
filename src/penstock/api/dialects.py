"""Who serves clients on this node, where, and who is connected; asked of each by its row of the table."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.api.endpoint import PREFIX, Call, Endpoint
from penstock.units import times


class ListenerInfo(msgspec.Struct):
    """One place that is listened at, under the name of the setting that says where."""

    key: str
    kind: str
    purpose: str
    place: str


class Figure(msgspec.Struct, omit_defaults=True):
    """One figure, as the metrics show it too."""

    name: str
    value: float
    labels: dict[str, str] = {}


class DialectInfo(msgspec.Struct):
    """One dialect, or the admin API itself."""

    name: str
    listeners: list[ListenerInfo]
    stats: list[Figure]


class DialectList(msgspec.Struct):
    """All of them."""

    dialects: list[DialectInfo]


class PeersQuery(msgspec.Struct):
    """Which peers: those of one dialect, those that receive from one topic."""

    dialect: str | None = None
    topic: str | None = None
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 1000


class PeerInfo(msgspec.Struct, omit_defaults=True):
    """Somebody who is connected; what it receives only if it does."""

    dialect: str
    address: str
    listener: str
    name: str = ""
    connected: str = ""
    topic: str = ""
    subscription: str = ""
    in_flight: int = 0


class PeerList(msgspec.Struct):
    """Peers, and how many there are in all."""

    total: int
    peers: list[PeerInfo]


async def list_dialects(call: Call[None, None]) -> DialectList:
    """List who serves clients, and where."""
    found = []
    for name, served in call.node.served.items():
        ends = [(bound.endpoint, bound.place) for bound in served.bound]
        listeners = [ListenerInfo(end.key, end.kind, end.purpose, place) for end, place in ends]
        stats = [Figure(each.name, each.value, dict(each.labels)) for each in served.running.samples()]
        found.append(DialectInfo(name, listeners, stats))
    return DialectList(found)


async def list_peers(call: Call[PeersQuery, None]) -> PeerList:
    """List who is connected."""
    query = call.query
    found = [
        (name, peer)
        for name, served in call.node.served.items()
        if query.dialect in (None, name)
        for peer in served.running.peers()
        if query.topic in (None, peer.topic)
    ]
    peers = [
        PeerInfo(
            name,
            peer.address,
            peer.listener,
            peer.name,
            times.shown(peer.connected_ns) if peer.connected_ns else "",
            peer.topic,
            peer.subscription,
            peer.in_flight,
        )
        for name, peer in found[: query.limit]
    ]
    return PeerList(len(found), peers)


ENDPOINTS = (
    Endpoint(
        "GET",
        f"{PREFIX}/dialects",
        list_dialects,
        "List who serves clients, and where",
        DialectList,
        query=None,
        on_node="see",
    ),
    Endpoint("GET", f"{PREFIX}/peers", list_peers, "List who is connected", PeerList, PeersQuery, on_node="see"),
)
