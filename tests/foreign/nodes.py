"""Real nodes for other people's clients: a lookup service and two nodes behind it, by the installed programs."""

from __future__ import annotations

import contextlib
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.supply import SCRIPTS
from tests.nsq.certificates import certificates
from tests.nsq.lookup.programs import Program, until
from tests.proofs.client import Client, fin

#: The second node's message timeout; the first one's is nsqd's minute. A client that is 0.8 s late still passes.
SHORT_TIMEOUT_S = 2.0


class Nodes(NamedTuple):
    """What runs."""

    lookup: Program
    first: Program
    second: Program


@contextlib.contextmanager
def running(path: Path) -> Iterator[Nodes]:
    """Run a lookup service and two nodes that tell it their topics."""
    held = certificates()
    with contextlib.ExitStack() as stack:
        lookup = stack.enter_context(Program([str(SCRIPTS / "nsqlookupd")], cwd=path))
        shared = (
            f"--lookupd-tcp-address={lookup.tcp}",
            "--broadcast-address=127.0.0.1",
            "--https-address=127.0.0.1:0",
            f"--tls-cert={held.server}",
            f"--tls-key={held.server_key}",
        )
        nodes = [
            stack.enter_context(Program([str(SCRIPTS / "nsqd")], f"--data-path={path / name}", *flags, cwd=path))
            for name, flags in {"first": shared, "second": (*shared, f"--msg-timeout={SHORT_TIMEOUT_S:g}s")}.items()
        ]
        yield Nodes(lookup, *nodes)


def fill(node: Program, topic: str, bodies: Sequence[bytes]) -> None:
    """Publish messages over HTTP."""
    items = b"".join(struct.pack(">I", len(body)) + body for body in bodies)
    node.ask("POST", f"/mpub?topic={topic}&binary=true", struct.pack(">I", len(bodies)) + items)
    assert stats(node, topic)["message_count"] == len(bodies)


def drain(node: Program, topic: str) -> Counter[bytes]:
    """Take everything out of a topic and return the bodies."""
    client = Client(node.port("TCP"))
    count = stats(node, topic)["message_count"]
    client.subscribe(topic, "drain", 100)
    found: Counter[bytes] = Counter()
    for _ in range(count):
        message = client.message()
        client.send(fin(message.id))
        found[message.body] += 1
    client.close()
    return found


def stats(node: Program, topic: str) -> dict[str, Any]:
    """Return what a node counts of a topic."""
    (found,) = node.ask("GET", f"/stats?format=json&topic={topic}")["topics"]
    counts: dict[str, Any] = found
    return counts


def settled(node: Program, topic: str) -> dict[str, Any]:
    """Return what a node counts of a topic's only channel, once nothing waits there and nothing is out."""

    def channel() -> dict[str, Any]:
        (only,) = stats(node, topic)["channels"]
        found: dict[str, Any] = only
        return found

    until(lambda: not any(channel()[name] for name in ("depth", "in_flight_count", "deferred_count")))
    return channel()


def publisher(node: Program, topic: str) -> dict[str, Any]:
    """Return what a node says of the one connection that published to a topic."""
    producers = node.ask("GET", "/stats?format=json")["producers"]
    (found,) = (one for one in producers if any(count["topic"] == topic for count in one["pub_counts"]))
    said: dict[str, Any] = found
    return said
