"""`penstock backup` and `penstock restore`: a copy of a data directory, and the way back."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.command import Json
from penstock.cli.data import Directory, data_directory
from penstock.cli.failure import USAGE, Failure
from penstock.cli.printer import Printer, count, size


def backup(
    target: Annotated[str, typer.Argument(metavar="DIR", help="A new directory for the copy.")],
    data: Directory = None,
    json: Json = False,
) -> None:
    """Copy the data of a node, running or stopped, into a new directory."""
    from penstock.log.backup import backup as copy

    source = data_directory(data)
    try:
        made = copy(source, target)
    except OSError as error:
        raise Failure(
            f"{error.filename or target} cannot be copied: {error.strerror}. The backup is not finished."
        ) from error
    text = f"{count(made.rows, 'row')}, {size(made.bytes)} copied from {source} to {target}"
    if made.left_out:
        are = "is" if made.left_out == 1 else "are"
        text += f"; {count(made.left_out, 'topic')} of this node {are} on Kafka, and not in it: docs/cluster.md"
    Printer(json=json).done(made, text)


def restore(
    source: Annotated[str, typer.Argument(metavar="DIR", help="A directory made by `penstock backup`.")],
    data: Directory = None,
    json: Json = False,
) -> None:
    """Make a data directory of a backup; it must be empty or missing."""
    from penstock.cli.table import load
    from penstock.log.backup import restore as copy

    target = data or load().config.data_dir
    try:
        made = copy(source, target)
    except OSError as error:
        raise Failure(f"{error.filename or target} cannot be copied: {error.strerror}", USAGE) from error
    text = (
        f"{count(made.rows, 'row')}, {size(made.bytes)} restored to {target}; `penstock up --data {target}` serves them"
    )
    Printer(json=json).done(made, text)
