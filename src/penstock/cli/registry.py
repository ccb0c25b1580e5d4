"""`penstock registry`: what a node remembers besides messages, made again when it is lost or damaged."""

from __future__ import annotations

import os
from random import SystemRandom
from typing import Annotated

import typer

from penstock.cli.command import Json
from penstock.cli.data import StoppedClock, data_directory
from penstock.cli.printer import Printer, count

app = typer.Typer(help="Look after the registry of a stopped node.", no_args_is_help=True)


@app.command()
def rebuild(
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            "--data-dir",
            help="Data directory.",
            metavar="DIR",
            show_default="as the configuration here says",
        ),
    ] = None,
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
