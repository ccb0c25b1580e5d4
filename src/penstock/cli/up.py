"""`penstock up`: the options of a node in the foreground.

Kept apart from the daemon, so that no other command pays for what a node needs.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from penstock.cli.config import File, Insecure, Settings, flags


def up(
    data: Annotated[
        str | None, typer.Option(help="Directory that holds the data.", show_default="./penstock-data")
    ] = None,
    file: File = None,
    port_offset: Annotated[int | None, typer.Option(min=0, help="Added to every port.", show_default="0")] = None,
    durability: Annotated[
        str | None,
        typer.Option(help="When a publish is answered: memory, os or fsync. For topics to come.", show_default="os"),
    ] = None,
    pipeline: Annotated[
        str | None,
        typer.Option(
            help="Pipeline to run beside the node: its file, `default` or `off`.",
            metavar="PATH",
            show_default="off",
        ),
    ] = None,
    insecure: Insecure = False,
    settings: Settings = None,
    ready_file: Annotated[
        str | None, typer.Option(help="Write pid and ports there, as JSON, once the node listens.", metavar="PATH")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not print what listens where.")] = False,
) -> None:
    """Run a node in the foreground."""
    from penstock import __version__
    from penstock.cli import banner
    from penstock.cli.daemon import run, silent
    from penstock.cli.table import load

    chosen: dict[str, object] = flags(settings)
    given = {
        "data_dir": data,
        "port_offset": port_offset,
        "topic.durability": durability,
        "pipeline.file": pipeline,
        "insecure": insecure or None,
    }
    chosen |= {key: value for key, value in given.items() if value is not None}
    show = None if quiet else partial(banner.show, version=__version__)
    run(load(file, chosen).config, ready_file, show, say=silent if quiet else banner.say)
