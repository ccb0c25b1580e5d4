"""`penstock import nsq`: the unread messages of a stopped nsqd, brought into the data directory of a stopped node.

Owns what a person sees of it: counts, progress, and why it does not begin. The reading and the moving are the
dialect's.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.cli.command import Json
from penstock.cli.config import File
from penstock.cli.data import REGISTRY, Directory, topics
from penstock.cli.failure import USAGE, Failure
from penstock.cli.printer import Printer, count
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.dialects.nsq.takeover.queues import Problem, Queues
    from penstock.dialects.nsq.takeover.transfer import Transferred

app = typer.Typer(help="Bring messages over from another broker.", no_args_is_help=True)

#: Without a terminal, a line this often says how far it is.
SAY_EVERY_S = 10.0
#: Damage is told this many times; it seldom comes alone.
PROBLEMS_SHOWN = 10


class Found(msgspec.Struct, kw_only=True):
    """What nsqd's files hold of one topic."""

    topic: str
    #: Different messages, and how many of them an earlier import brought.
    messages: int
    earlier: int
    #: Unread in the topic itself, and in each channel.
    unread: int
    channels: dict[str, int]


class Report(msgspec.Struct, kw_only=True):
    """What the command says to a script."""

    dry_run: bool
    found: list[Found]
    messages: int = 0
    earlier: int = 0
    problems: list[str] = []
    notes: list[str] = []


@app.callback()
def _import() -> None:
    """Keep `nsq` a command of its own while it is the only one."""


@app.command()
def nsq(
    source: Annotated[str, typer.Argument(metavar="DIR", help="The --data-path of the stopped nsqd.")],
    data: Directory = None,
    file: File = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and change nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Bring what is whole although files are damaged.")] = False,
    json: Json = False,
) -> None:
    """Bring the unread messages of a stopped nsqd into the topics and channels of a stopped node."""
    from penstock.cli.table import load
    from penstock.dialects.nsq.takeover.queues import Queues, locked

    config = load(file, {"data_dir": data} if data is not None else {}).config
    if config.registry.kind != "embedded":
        way_out = "bring them to a node with the embedded registry, or publish them to this one"
        raise Failure(f"{config.data_dir} keeps its registry in etcd, which this does not write to; {way_out}")
    printer = Printer(json=json)
    with locked(source):
        queues = Queues(source)
        found, problems = _survey(queues, config.data_dir)
        if problems and not (force or dry_run):
            raise Failure(_damaged(problems))
        report = Report(dry_run=dry_run, found=found, problems=[*map(str, problems)], notes=[*queues.left_out])
        if not dry_run:
            for one in _run(config, queues, found, printer):
                report.messages += one.messages
                report.earlier += one.earlier
                report.notes += one.notes
    _tell(printer, report, config.data_dir)


def _survey(queues: Queues, data: str) -> tuple[list[Found], list[Problem]]:
    """Read everything once, so that nothing is begun that cannot be ended."""
    from penstock.dialects.nsq.takeover.backlog import Backlog
    from penstock.dialects.nsq.takeover.transfer import Brought

    numbers = topics(data) if os.path.exists(os.path.join(data, REGISTRY)) else {}
    found, problems = [], [*queues.problems]
    for topic in queues.topics:
        backlog = Backlog(topic)
        problems += backlog.problems
        earlier = 0
        if topic.name in numbers:
            brought = Brought(os.path.join(data, "topics", str(numbers[topic.name])))
            earlier = int(brought.among(backlog.keys).sum())
        unread = backlog.unread()
        own = unread.pop(None)
        channels = {name or "": rows for name, rows in unread.items()}
        found.append(
            Found(topic=topic.name, messages=len(backlog), earlier=earlier, unread=own, channels=channels),
        )
    return found, problems


def _run(config: Config, queues: Queues, found: list[Found], printer: Printer) -> list[Transferred]:
    from penstock.cli.daemon import claimed

    total = sum(one.messages - one.earlier for one in found)
    with _exclusive(config.data_dir), claimed(config), _progress(printer, total) as told:
        try:
            return asyncio.run(_bring(config, queues, told))
        except KeyboardInterrupt:
            raise Failure("interrupted; what is there is there. Run it again, and it goes on from here.") from None
        except OSError as error:
            raise Failure(f"{error.filename or config.data_dir}: {error.strerror}. Run it again to go on.") from error


async def _bring(config: Config, queues: Queues, told: Callable[[int], None]) -> list[Transferred]:
    from random import Random

    from penstock.clock import LoopClock
    from penstock.config import EventsConfig
    from penstock.dialects import DIALECTS
    from penstock.dialects.nsq.takeover.backlog import Backlog
    from penstock.dialects.nsq.takeover.transfer import Transfer
    from penstock.disk import LocalDisk
    from penstock.node.node import Node

    loop = asyncio.get_running_loop()
    disk = LocalDisk(loop, group=config.data_mode == "group")
    # What happened to these messages, happened elsewhere: the history does not tell of it.
    config = msgspec.structs.replace(config, events=EventsConfig(mode="off"))
    node = Node(config, LoopClock(loop), disk, Random(os.urandom(32)), dialects=DIALECTS)
    try:
        return [await Transfer(node, topic, Backlog(topic), told).run() for topic in queues.topics]
    finally:
        node.close()
        disk.close()


@contextmanager
def _exclusive(data: str) -> Iterator[None]:
    """Say what to do about a node that runs on the data directory."""
    try:
        yield
    except ConfigError as error:
        if "in use by another Penstock" not in str(error):
            raise
        raise Failure(
            f"a node runs on {data}. Stop it for the time of the import, or import into another directory with --data.",
            USAGE,
        ) from error


@contextmanager
def _progress(printer: Printer, total: int) -> Iterator[Callable[[int], None]]:
    """Show how far it is: a bar on a terminal, now and then a line elsewhere, nothing to a script."""
    if printer.json:
        yield lambda rows: None
    elif printer.terminal:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("messages"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(file=printer.stream), transient=True) as bar:
            task = bar.add_task("import", total=total)
            yield lambda rows: bar.advance(task, rows)
    else:
        done, said = 0, time.monotonic()

        def told(rows: int) -> None:
            nonlocal done, said
            done += rows
            if time.monotonic() - said >= SAY_EVERY_S:
                said = time.monotonic()
                printer.line(f"{done:,} of {count(total, 'message')}")

        yield told


def _damaged(problems: list[Problem]) -> str:
    shown = "; ".join(map(str, problems[:PROBLEMS_SHOWN]))
    more = f"; and {len(problems) - PROBLEMS_SHOWN} more" if len(problems) > PROBLEMS_SHOWN else ""
    return f"the files are damaged: {shown}{more}. Nothing was imported; --force imports what is whole."


def _tell(printer: Printer, report: Report, data: str) -> None:
    if printer.json:
        printer.document(report)
        return
    rows = []
    for one in report.found:
        if one.unread or not one.channels:
            rows.append((one.topic, "-", f"{one.unread:,}"))
        rows += [(one.topic, name, f"{unread:,}") for name, unread in one.channels.items()]
    printer.table(None, ("topic", "channel", "unread"), rows, empty="nsqd has no topics there.")
    for text in (*report.problems, *report.notes):
        printer.line(text)
    if report.dry_run:
        total, earlier = sum(one.messages for one in report.found), sum(one.earlier for one in report.found)
        printer.line(f"{count(total, 'message')}, {earlier:,} of them imported before; nothing was changed")
    else:
        text = f"{count(report.messages, 'message')} imported, {report.earlier:,} were there from an earlier import"
        printer.line(f"{text}; `penstock up --data {data}` serves them")
