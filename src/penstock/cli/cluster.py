"""`penstock cluster`: which node owns which slots, and where an operator wants them."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from penstock.cli.client import Client
from penstock.cli.command import remote
from penstock.cli.failure import USAGE, Failure
from penstock.cli.printer import Printer, count, moment

app = typer.Typer(help="Look at the nodes of a cluster, and move what they own.", no_args_is_help=True)

Node = Annotated[str, typer.Argument(metavar="NODE", help="The node, as `cluster status` shows it.")]


class ClusterNode(msgspec.Struct):
    """One node that is alive."""

    name: str
    address: str
    version: str
    weight: int
    since: str
    slots: int
    leaving: bool
    drained: bool


class ClusterSlot(msgspec.Struct):
    """One slot and its owner."""

    slot: int
    node: str
    epoch: int
    pinned: str


class Cluster(msgspec.Struct):
    """The cluster, as one node sees it."""

    name: str
    node: str
    nodes: list[ClusterNode]
    slots: list[ClusterSlot]
    drains: list[str]
    problems: list[str]


@remote(app, "status")
def status(
    client: Client,
    out: Printer,
    slots: Annotated[bool, typer.Option("--slots", help="Show every slot, too.")] = False,
) -> None:
    """Show the nodes of the cluster and how many slots each owns."""
    answer = client.get("/cluster")
    cluster = answer.read(Cluster)
    rows = [
        (node.name, node.address, str(node.slots), str(node.weight), _state(node), node.version, moment(node.since))
        for node in cluster.nodes
    ]
    out.table(answer.raw, ("node", "address", "slots", "weight", "state", "version", "since"), rows, "no node is there")
    if out.json:
        return
    for line in _told(cluster):
        out.line(line)
    if slots:
        owners = [(str(one.slot), one.node or "nobody", str(one.epoch), one.pinned) for one in cluster.slots]
        out.table(None, ("slot", "node", "epoch", "pinned to"), owners, "")


@remote(app, "move")
def move(
    client: Client,
    out: Printer,
    slot: Annotated[int, typer.Argument(metavar="SLOT", help="The slot's number.")],
    node: Annotated[str | None, typer.Argument(metavar="[NODE]", help="The node that shall have it.")] = None,
    anywhere: Annotated[bool, typer.Option("--anywhere", help="Let it be dealt like the others again.")] = False,
) -> None:
    """Have a slot on a node for as long as that lives, or --anywhere again."""
    if (node is None) != anywhere:
        raise Failure("name the node that shall have the slot, or --anywhere", USAGE)
    answer = client.call("POST", "/cluster/move", {"slot": slot, "node": node or ""})
    where = f"goes to {node}, and stays there while {node} lives" if node else "is dealt like the others again"
    out.done(answer.raw, f"slot {slot} {where}")


@remote(app, "drain")
def drain(client: Client, out: Printer, node: Node) -> None:
    """Have no slots on a node, until it is undrained; they move to the others, a few at a time."""
    answer = client.call("POST", "/cluster/drain", {"node": node})
    left = sum(one.slots for one in answer.read(Cluster).nodes if one.name == node)
    out.done(answer.raw, f"{node} gives {count(left, 'slot')} away; `penstock cluster status` shows what is left")


@remote(app, "undrain")
def undrain(client: Client, out: Printer, node: Node) -> None:
    """Let a node have its share again."""
    answer = client.call("POST", "/cluster/undrain", {"node": node})
    out.done(answer.raw, f"{node} gets its share again")


def _state(node: ClusterNode) -> str:
    return "leaving" if node.leaving else "drained" if node.drained else "up"


def _told(cluster: Cluster) -> list[str]:
    """Return what to know besides the nodes."""
    ownerless = [one.slot for one in cluster.slots if not one.node]
    lines = [f"cluster {cluster.name}, as {cluster.node} sees it: {count(len(cluster.slots), 'slot')}"]
    if ownerless:
        lines.append(
            f"{count(len(ownerless), 'slot')} without an owner at present: {', '.join(map(str, ownerless[:16]))}"
        )
    lines += [f"slot {one.slot} is pinned to {one.pinned}" for one in cluster.slots if one.pinned]
    gone = set(cluster.drains) - {node.name for node in cluster.nodes}
    lines += [f"{name} is drained, and not there" for name in sorted(gone)]
    return lines + cluster.problems
