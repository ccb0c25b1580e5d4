"""`penstock registry`: what a node remembers besides messages, made again when it is lost or damaged."""

from __future__ import annotations

import os
from enum import StrEnum
from random import SystemRandom
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from penstock.cli.command import Json
from penstock.cli.config import File, Settings, flags
from penstock.cli.data import StoppedClock, data_directory
from penstock.cli.printer import Printer, count

if TYPE_CHECKING:
    from penstock.config import Config

app = typer.Typer(help="Look after the registry of a stopped node.", no_args_is_help=True)

Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        "--data-dir",
        help="Data directory.",
        metavar="DIR",
        show_default="as the configuration here says",
    ),
]


class Kind(StrEnum):
    """Where a registry is, in the words of `registry.kind`."""

    EMBEDDED = "embedded"
    ETCD = "etcd"


class Move(NamedTuple):
    """How many entries were moved, and what people call the place where they are now."""

    entries: int
    place: str


@app.command()
def move(
    to: Annotated[Kind, typer.Argument(help="Where to: what registry.kind is from then on.", show_default=False)],
    data: Data = None,
    file: File = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Move the registry from the file in the data directory to etcd, or back.

    Which etcd, and under which prefix, the configuration here says: registry.zone, registry.prefix and etcd.zones. A
    move that breaks off loses nothing; ask for it again.
    """
    import asyncio

    from penstock.cli.daemon import claimed
    from penstock.cli.table import load
    from penstock.errors import ConfigError
    from penstock.rescue.directories import MEMBER

    chosen = flags(settings)
    path = data_directory(data or load(file, chosen).config.data_dir)
    config = load(file, {**chosen, "data_dir": path}).config
    if config.cluster.name or os.path.exists(os.path.join(path, MEMBER)):
        raise ConfigError(f"{path} is the disk of a cluster's node, whose registry is the cluster's and stays in etcd")
    with claimed(config):
        made = asyncio.run(_moved(config, to))
    text = f'{count(made.entries, "record")} moved to {made.place}. The node finds them with registry.kind = "{to}".'
    Printer(json=json).done(made._asdict(), text)


async def _moved(config: Config, to: Kind) -> Move:
    from penstock.cli.etcd import Etcd
    from penstock.disk import LocalDisk
    from penstock.node.relocation import REGISTRY, Relocation

    etcd = Etcd(config)
    disk = LocalDisk(group=config.data_mode == "group")
    try:
        registry = await etcd.follow()
        relocation = Relocation(disk, registry.clock, config.data_dir, registry, etcd.where)
        if to is Kind.ETCD:
            return Move(await relocation.to_etcd(SystemRandom()), etcd.where)
        return Move(await relocation.to_file(), f"{config.data_dir}/{REGISTRY}")
    finally:
        await etcd.close()
        disk.close()


@app.command()
def rebuild(
    data: Data = None,
    force: Annotated[
        bool, typer.Option("--force", help="Distrust a registry that can be read: make it from the directories alone.")
    ] = False,
    json: Json = False,
) -> None:
    """Make the registry from the labels, logs and journals on disk, and take back what stands in lost/.

    A registry that can be read is only added to. The old file stays beside the new one.
    """
    from penstock.cli.daemon import claimed
    from penstock.cli.table import load
    from penstock.disk import LocalDisk
    from penstock.errors import ConfigError
    from penstock.rescue.directories import MEMBER
    from penstock.rescue.rebuild import rebuild as make

    path = data_directory(data)
    config = load(flags={"data_dir": path}).config
    if config.cluster.name or os.path.exists(os.path.join(path, MEMBER)):
        which = f"cluster {config.cluster.name}" if config.cluster.name else "the cluster"
        raise ConfigError(
            f"{path} is the disk of a cluster's node, and what {which} remembers is in its etcd: put a snapshot of "
            "that back (etcdctl snapshot restore), and start the nodes; what they have on disk and on Kafka stays as "
            "it is. To read what stands in lost/ without one, copy that to NEW/lost and use --data NEW"
        )
    with claimed(config):
        disk = LocalDisk(group=config.data_mode == "group")
        made = make(disk, StoppedClock(), SystemRandom(), path, force=force)
    out = Printer(json=json)
    rows = [
        (each.topic, str(each.number), str(each.shards), ", ".join(each.subscriptions) or "-") for each in made.topics
    ]
    out.table(made, ("topic", "number", "shards", "subscriptions"), rows, "there is no topic on disk")
    if json:
        return
    for each in made.topics:
        for remark in each.remarks:
            out.line(f"{each.topic}: {remark}")
    if made.fanouts:
        out.line(f"{count(len(made.fanouts), 'fan-out')} added: {', '.join(made.fanouts)}.")
    for path in made.damaged:
        out.line(f"{path} cannot be read: the fan-out in it is lost, unless the old registry tells of it.")
    kept = f"; the old one is {made.kept}" if made.kept is not None else ""
    out.line(
        f"{count(len(made.topics), 'topic')} added to {path}/registry{kept}. `penstock up --data {path}` serves it."
    )
