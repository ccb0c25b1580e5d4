"""Which node a pipeline is of: what was said behind the command, before it, in its file, or elsewhere.

Owns the way from the address of an admin API, which people know, to that of Flight, which Spark takes.
Invariant: whoever names a node gets that one or an error, never the data directory that happens to be here.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import msgspec
import typer

from penstock.cli.client import Client
from penstock.cli.command import Target, before_of, connect
from penstock.cli.failure import USAGE, Failure, Refused

if TYPE_CHECKING:
    from penstock.pipeline.plan.document import Place

Data = Annotated[str | None, typer.Option("--data", help="The node's data directory, on this machine.", metavar="DIR")]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="The node's Flight address, or its admin API.",
        metavar="grpc://HOST:7071",
        show_default="the node that was named before the command",
    ),
]

HTTP = ("http://", "https://")


class Listener(msgspec.Struct):
    """One place that a node listens at, under the name of its setting."""

    key: str
    place: str


class Dialect(msgspec.Struct):
    """What one dialect listens at."""

    listeners: list[Listener]


class Dialects(msgspec.Struct):
    """All of them."""

    dialects: list[Dialect]


def place_of(
    context: typer.Context, data: str | None, url: str | None, token: str | None, declared: Place | None = None
) -> Place:
    """Return the node that is meant: the command line first, then the file, the environment, and the configuration."""
    from penstock.pipeline.plan.document import Place

    if data and url:
        raise Failure("--data and --url both say which node: give one", USAGE)
    place, before = declared or Place(), before_of(context, data, url)
    token = token or before.token
    if data or (url and not url.startswith(HTTP)):
        place = msgspec.structs.replace(place, path=data or "", url=url or "")
    elif url or before.said or not (place.path or place.url):
        place = _asked(place, Target(url, token) if url else before, token)
    return msgspec.structs.replace(place, token=token or place.token)


def _asked(place: Place, named: Target, token: str | None) -> Place:
    """Return the node of an address, a context or the configuration."""
    from penstock.cli import context
    from penstock.cli.table import load

    if named.url and "://" in named.url and not named.url.startswith(HTTP):
        return msgspec.structs.replace(place, path="", url=named.url)
    if not named.url and context.found(named.name) is None:
        return msgspec.structs.replace(place, path=load().config.data_dir, url="")
    client = connect(named.url, token, named.name)
    try:
        flight = _flight_of(client)
    finally:
        client.close()
    path = load().config.data_dir
    if _is_here(client.host) and _runs_on(path, flight):
        # The node of this directory: files are the faster way, and its pipelines have their checkpoints there.
        return msgspec.structs.replace(place, path=path, url="", token=client.token)
    return msgspec.structs.replace(place, path="", url=_reached(flight, client.host), token=client.token)


def _flight_of(client: Client) -> str:
    """Return where a node listens for Flight, as itself says."""
    try:
        found = client.get("/dialects").read(Dialects)
    except Refused as refused:
        raise Failure(f"{refused}; name its Flight address instead: --url grpc://{client.host}:7071") from None
    for dialect in found.dialects:
        for listener in dialect.listeners:
            if listener.key == "flight.port":
                return listener.place
    raise Failure(f"{client.url} does not listen for Flight, which pipelines need: set flight.enabled = true there")


def _reached(place: str, host: str) -> str:
    """Return a place as it is reached from here: any address or loopback there is the machine that was asked."""
    parts = urlsplit(place)
    if parts.hostname and not (_is_here(parts.hostname) or parts.hostname in ("0.0.0.0", "::")):
        return place
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{parts.port}"


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _runs_on(path: str, flight: str) -> bool:
    """Tell whether the node that listens there is the one of a data directory."""
    from penstock.pipeline.target import running

    return running(path) == flight
