"""`penstock routing`: which bit each traffic type is, and what a filter would say."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from penstock.cli.client import Client
from penstock.cli.command import remote
from penstock.cli.failure import REFUSED, USAGE, Failure
from penstock.cli.printer import Printer, count
from penstock.cli.values import pairs
from penstock.cli.values import traffic as traffic_of

app = typer.Typer(help="Look at, set and test the traffic types.", no_args_is_help=True)


class Mapping(msgspec.Struct):
    """The bit of each traffic type."""

    traffic_types: dict[str, int]
    retired: dict[str, int] = {}


class Verdict(msgspec.Struct):
    """What a filter says, and why."""

    accepted: bool
    reason: str


@remote(app, "show")
def show(client: Client, out: Printer) -> None:
    """Show the routing mapping."""
    answer = client.get("/routing")
    mapping = answer.read(Mapping)
    rows = [(str(bit), name, "") for name, bit in mapping.traffic_types.items()]
    rows += [(str(bit), name, "retired") for name, bit in mapping.retired.items()]
    rows.sort(key=lambda row: int(row[0]))
    empty = "no routing mapping is set; `penstock routing set NAME=BIT...` sets one"
    out.table(answer.raw, ("bit", "traffic type", ""), rows, empty)


@remote(app, "set")
def set_(
    client: Client,
    out: Printer,
    types: Annotated[list[str], typer.Argument(metavar="NAME=BIT...", help="Traffic types with their bits, 0 to 63.")],
    replace: Annotated[bool, typer.Option("--replace", help="Retire the types that are not named.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also move a type or reuse a bit: producers and consumers must agree anew.")
    ] = False,
) -> None:
    """Add traffic types, or replace the whole mapping; it applies at once."""
    named = {name: _bit(name, text) for name, text in pairs("routing set", types).items()}
    before = {} if replace else client.get("/routing").read(Mapping).traffic_types
    answer = client.call("PUT", "/routing", {"traffic_types": {**before, **named}}, query={"force": force})
    known = answer.read(Mapping).traffic_types
    out.done(
        answer.raw, f"{count(len(known), 'traffic type')} known: {', '.join(f'{n}={b}' for n, b in known.items())}"
    )


@remote(app, "test")
def try_(
    client: Client,
    out: Printer,
    types: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TYPE]...", help="What a message carries: names, or all bits as a number."),
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option("--allow", help="A type the filter takes. May be repeated.")
    ] = None,
    is_default: Annotated[bool, typer.Option("--default", help="The filter takes what it cannot judge.")] = False,
) -> int | None:
    """Say whether a filter would take a message, and why; exit code 1 if not."""
    body = {"traffic": traffic_of(types) or 0, "allowed": allow or [], "is_default": is_default}
    answer = client.call("POST", "/routing/test", body)
    verdict = answer.read(Verdict)
    out.done(answer.raw, f"{'taken' if verdict.accepted else 'passed over'}: {verdict.reason}")
    return None if verdict.accepted else REFUSED


def _bit(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise Failure(f'{name}={text}: "{text}" is no bit; write a number from 0 to 63', USAGE)
    return int(text)
