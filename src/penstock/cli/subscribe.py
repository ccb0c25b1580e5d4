"""`penstock sub`: take messages of a subscription, print them, and finish them.

A message is finished after it was printed, so one that never reached the reader comes again.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from penstock.cli.client import Client, part
from penstock.cli.failure import REFUSED, Failure, Refused
from penstock.cli.message import Format, FormatOption, Message, Verbose, format_of, read
from penstock.cli.printer import Printer
from penstock.cli.settings import chosen

#: One long poll; the node allows 60 s.
POLL_S = 30
BATCH_MAX = 1000


class Leased(msgspec.Struct):
    """What one poll brought."""

    messages: list[msgspec.Raw]


class Results(msgspec.Struct):
    """What became of receipts."""

    ok: int


def sub(
    client: Client,
    out: Printer,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    subscription: Annotated[
        str, typer.Argument(metavar="SUBSCRIPTION", help="The subscription; made if there is none.")
    ],
    most: Annotated[
        int | None, typer.Option("--max", "-n", min=1, help="End after so many.", show_default="all")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, for ever.")] = False,
    wait: Annotated[str, typer.Option(help="Wait so long for the first message.", metavar="DURATION")] = "0",
    no_ack: Annotated[bool, typer.Option("--no-ack", help="Give messages back instead of finishing them.")] = False,
    lease: Annotated[
        str | None,
        typer.Option(help="How long to hold a message.", metavar="DURATION", show_default="as the subscription says"),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", "-b", min=1, max=BATCH_MAX, help="Messages per poll.")] = 100,
    no_create: Annotated[bool, typer.Option("--no-create", help="Refuse if there is no such subscription.")] = False,
    verbose: Verbose = False,
    text: FormatOption = None,
) -> None:
    """Take messages, print their bodies, and finish them."""
    printed = format_of(text, verbose=verbose)
    path = f"/topics/{part(topic)}/subscriptions/{part(subscription)}"
    if not no_create:
        _ensure(client, topic, subscription, path)
    left = most
    kept: list[str] = []
    try:
        while left is None or left > 0:
            limit = batch if left is None else min(batch, left)
            patience = f"{POLL_S}s" if follow else wait
            body = chosen(max=limit, wait=patience, lease=lease)
            leased = client.call("POST", f"{path}/lease", body, wait_s=2 * POLL_S).read(Leased).messages
            if not leased and not follow:
                return
            kept += _printed(client, out, path, leased, printed, ack=not no_ack)
            left = None if left is None else left - len(leased)
            wait = "0"
    finally:
        # Only now: given back earlier, they would be the next to come.
        for at in range(0, len(kept), BATCH_MAX):
            client.call("POST", f"{path}/release", {"receipts": kept[at : at + BATCH_MAX]})


def _printed(
    client: Client, out: Printer, path: str, leased: list[msgspec.Raw], printed: Format, *, ack: bool
) -> list[str]:
    """Print messages and finish them; return the receipts of those that were only looked at."""
    messages = [(raw, read(raw)) for raw in leased]
    done = 0
    try:
        for raw, message in messages:
            _print(out, raw, message, printed)
            done += 1
    finally:
        shown = [message.receipt for _, message in messages[:done]]
        unseen = [message.receipt for _, message in messages[done:]]
        if unseen:
            client.call("POST", f"{path}/release", {"receipts": unseen})
        if shown and ack:
            finished = client.call("POST", f"{path}/ack", {"receipts": shown}).read(Results).ok
            if finished < len(shown):
                raise Failure(
                    f"{len(shown) - finished} of {len(shown)} messages were not finished: their lease had ended. "
                    "They come again; take a longer --lease or a smaller --batch",
                    REFUSED,
                )
    return [] if ack else shown


def _print(out: Printer, raw: msgspec.Raw, message: Message, printed: Format) -> None:
    if out.json:
        out.document(bytes(raw))
    else:
        out.bytes(printed.of(message))


def _ensure(client: Client, topic: str, subscription: str, path: str) -> None:
    """Make the subscription if there is none."""
    try:
        client.get(path)
    except Refused as refused:
        if refused.reason != "not_found":
            raise
        client.call("POST", f"/topics/{part(topic)}/subscriptions", {"name": subscription})
