"""`penstock pub`: messages from arguments, standard input or files, in batches."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, BinaryIO

import msgspec
import typer

from penstock.cli.client import Client, Query, part
from penstock.cli.failure import USAGE, Failure
from penstock.cli.message import described, outgoing
from penstock.cli.printer import Printer, count
from penstock.cli.settings import chosen
from penstock.cli.values import note_spelling, pairs, traffic

#: One request holds at most this much unless a single message is larger; the node takes 16 MiB.
REQUEST_BYTES_MAX = 4 << 20


class Published(msgspec.Struct):
    """What the node said to one request."""

    count: int
    ids: list[str]


def pub(
    client: Client,
    out: Printer,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic; made if there is none.")],
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help="One message each; without any, every line of standard input is one."),
    ] = None,
    file: Annotated[
        list[str] | None, typer.Option("--file", "-f", help="Every line is a message. May be repeated.", metavar="PATH")
    ] = None,
    jsonl: Annotated[
        bool,
        typer.Option(
            "--jsonl",
            help="Each message is a JSON object with body, key, headers, tag, due and so on, as `peek --json` prints.",
        ),
    ] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Standard input, or each file, is one message.")] = False,
    due: Annotated[str | None, typer.Option(help="Not before: 30s, or 2026-01-31T12:00:00Z.", metavar="WHEN")] = None,
    expires: Annotated[str | None, typer.Option(help="Not after: 1h, or a time.", metavar="WHEN")] = None,
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--traffic", help="Traffic type by name (may be repeated), or all bits as a number.", metavar="TYPE"
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(help="The key.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", help="May be repeated.", metavar="NAME=VALUE")
    ] = None,
    tag: Annotated[str | None, typer.Option(help="The dispatch tag.")] = None,
    dedup: Annotated[str | None, typer.Option(help="A second message with it is dropped.", metavar="KEY")] = None,
    shard: Annotated[int | None, typer.Option(min=0, help="Into this shard.", show_default=False)] = None,
    batch: Annotated[int, typer.Option("--batch", "-b", min=1, help="Messages per request.")] = 1000,
    no_create: Annotated[bool, typer.Option("--no-create", help="Refuse if there is no such topic.")] = False,
) -> None:
    """Publish messages.

    With --jsonl the options fill what an object does not say itself; a body that is no text is sent as JSON.
    """
    if texts and file:
        raise Failure("messages come from arguments or from --file, not from both", USAGE)
    columns = chosen(
        due=due,
        expires=expires,
        traffic=traffic(types),
        key=key,
        headers=pairs("--header", header) or None,
        tag=tag,
        dedup=dedup,
    )
    note_spelling(topic)
    query = {"create": not no_create, "shard": shard}
    sender = Sender(client, out, f"/topics/{part(topic)}/messages", query, columns, described if jsonl else outgoing)
    if texts:
        sender.send([text.encode(errors="surrogateescape") for text in texts], batch)
    elif file:
        for path in file:
            with _opened(path) as stream, _progress(out, path) as step:
                sender.send(_bodies(stream, whole=whole, step=step), batch)
    else:
        sender.send(_bodies(sys.stdin.buffer, whole=whole, step=_no_step), batch)
    sender.finish(topic)


class Sender:
    """Requests of one command, and what came of them."""

    def __init__(
        self,
        client: Client,
        out: Printer,
        path: str,
        query: Query,
        columns: dict[str, object],
        line_of: Callable[[bytes, dict[str, object]], bytes],
    ) -> None:
        self._client = client
        self._out = out
        self._path = path
        self._query = query
        self._columns = columns
        self._line_of = line_of
        self._seen = 0
        self._sent = 0
        self._last: list[str] = []

    def send(self, bodies: Iterable[bytes], batch: int) -> None:
        """Publish bodies in requests of at most `batch`."""
        lines: list[bytes] = []
        size = 0
        for body in bodies:
            self._seen += 1
            try:
                line = self._line_of(body, self._columns)
            except ValueError as error:
                text = f"message {self._seen} is no JSON object: {error}"
                raise Failure(f"{text} ({count(self._sent, 'message')} before that were published)", USAGE) from error
            if lines and (len(lines) >= batch or size + len(line) > REQUEST_BYTES_MAX):
                self._request(lines)
                lines, size = [], 0
            lines.append(line)
            size += len(line)
        if lines:
            self._request(lines)

    def finish(self, topic: str) -> None:
        """Say what was published; in JSON each request has said so already."""
        if self._out.json:
            return
        last = f", id {self._last[-1]}" if self._sent == 1 and self._last else ""
        self._out.line(f"{count(self._sent, 'message')} published to {topic}{last}")

    def _request(self, lines: list[bytes]) -> None:
        try:
            answer = self._client.call(
                "POST", self._path, query=self._query, raw=b"".join(lines), content="application/x-ndjson"
            )
        except Failure as failure:
            if not self._sent:
                raise
            text = f"{failure} ({count(self._sent, 'message')} before that were published)"
            raise Failure(text, failure.code) from failure
        published = answer.read(Published)
        self._sent += published.count
        self._last = published.ids
        if self._out.json:
            self._out.document(answer.raw)


def _bodies(stream: BinaryIO, *, whole: bool, step: Callable[[int], None]) -> Iterator[bytes]:
    if whole:
        content = stream.read()
        yield content
        step(len(content))
        return
    for line in stream:
        yield line.removesuffix(b"\n")
        step(len(line))


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    try:
        stream = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}", USAGE) from error
    with stream:
        yield stream


@contextmanager
def _progress(out: Printer, path: str) -> Iterator[Callable[[int], None]]:
    """Show how far a file is, where a person looks on."""
    if out.json or not sys.stderr.isatty():
        yield _no_step
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(os.path.basename(path), total=os.path.getsize(path))
        yield lambda advance: progress.advance(task, advance)


def _no_step(advance: int) -> None:
    """Show nothing."""
