"""`penstock redrive`: dead letters go back to where they failed."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from penstock.cli.client import Client, part
from penstock.cli.failure import REFUSED, Failure
from penstock.cli.printer import Printer, count
from penstock.cli.settings import chosen

#: A million letters are moved in one request.
WAIT_S = 600.0


class Redriven(msgspec.Struct):
    """What became of the letters."""

    moved: int
    topics: dict[str, int]
    left: int
    problem: str | None


def redrive(
    client: Client,
    out: Printer,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The dead-letter topic, like orders.dead.")],
    to: Annotated[
        str | None, typer.Option(help="Move them to this topic.", metavar="TOPIC", show_default="where each failed")
    ] = None,
    most: Annotated[int | None, typer.Option("--max", "-n", min=1, help="So many at most.", show_default="all")] = None,
) -> None:
    """Move dead letters back to the topic they failed in."""
    answer = client.call("POST", f"/topics/{part(topic)}/redrive", chosen(to=to, max=most), wait_s=WAIT_S)
    done = answer.read(Redriven)
    where = ", ".join(f"{number} to {name}" for name, number in done.topics.items())
    out.done(answer.raw, f"{count(done.moved, 'dead letter')} moved{f': {where}' if where else ''}; {done.left} left")
    if done.problem:
        raise Failure(done.problem, REFUSED)
