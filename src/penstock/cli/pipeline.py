"""`penstock pipeline`: check, run and watch pipelines that are declared in TOML files.

Each command of a pipeline reads the same file and makes the same checks. Spark is imported only by those that need it.
"""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command import ContextBehind, Json, Token
from penstock.cli.failure import USAGE, Failure
from penstock.cli.place import Data, Url, place_of
from penstock.cli.printer import Printer

if TYPE_CHECKING:
    from penstock.client.wire import PipelineReport
    from penstock.pipeline.plan.document import Document
    from penstock.pipeline.run.home import Home
    from penstock.pipeline.run.runner import Runner

app = typer.Typer(help="Run declared pipelines on Spark, and the jobs that need no declaration.", no_args_is_help=True)

File = Annotated[str, typer.Argument(help="A pipeline in TOML.", metavar="FILE")]
Master = Annotated[str, typer.Option(help="Where Spark runs: local[*], spark://host:port or sc://host:port.")]
#: For commands on a file, which may say it as well.
FilesMaster = Annotated[
    str | None,
    typer.Option(
        "--master",
        help="Where Spark runs: local[*], spark://host:port or sc://host:port.",
        show_default="as the file says, else local[*]",
    ),
]
Plain = Annotated[bool, typer.Option("--plain", help="Lines instead of a table, also on a terminal.")]
Name = Annotated[str, typer.Argument(help="The pipeline's name.", metavar="NAME")]


@app.command()
def check(
    context: typer.Context,
    file: File,
    data: Data = None,
    url: Url = None,
    behind: ContextBehind = None,
    token: Token = None,
    master: FilesMaster = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Start Spark, too: check columns, and show its plans.")
    ] = False,
    json: Json = False,
) -> None:
    """Check a pipeline without running it: keys, order, topics, paths, who owns its checkpoints."""
    needs_spark()
    from penstock.pipeline.run.query import delays
    from penstock.pipeline.run.runner import home_of, prepared

    document = read(context, file, data, url, token)
    found = prepared(document)
    home_of(document).check()
    notes = delays(document, found)
    explained = _explained(document, master) if explain else []
    names = [query.name for query in found]
    printer = Printer(json=json)
    if json:
        values = {"name": document.name, "queries": names, "notes": notes}
        printer.document(values | ({"plans": explained} if explain else {}))
        return
    _show(printer, explained)
    columns = "" if explain else " (columns were not looked at: --explain does, with Spark)"
    printer.line(f"{file} is good: {_queries(names)}{columns}")
    for note in notes:
        printer.line(f"note: {note}")


@app.command()
def run(
    context: typer.Context,
    file: File,
    data: Data = None,
    url: Url = None,
    behind: ContextBehind = None,
    token: Token = None,
    master: FilesMaster = None,
    once: Annotated[bool, typer.Option("--once", help="Read what is there, and end.")] = False,
    plain: Plain = False,
    json: Annotated[
        bool, typer.Option("--json", help="Progress as a JSON document a line, on standard output.")
    ] = False,
) -> None:
    """Run a pipeline until it is stopped; it goes on where it was."""
    needs_spark()
    document = read(context, file, data, url, token)
    carry_out(document, master=master or document.master, once=once, plain=plain, json=json)


@app.command()
def explain(
    context: typer.Context,
    file: File,
    data: Data = None,
    url: Url = None,
    behind: ContextBehind = None,
    token: Token = None,
    master: FilesMaster = None,
    json: Json = False,
) -> None:
    """Show the queries of a pipeline, from source to sinks, and Spark's plans for them."""
    needs_spark()
    from penstock.pipeline.run.runner import prepared

    document = read(context, file, data, url, token)
    prepared(document)
    printer, explained = Printer(json=json), _explained(document, master)
    if json:
        printer.document({"name": document.name, "queries": explained})
    else:
        _show(printer, explained)


def _explained(document: Document, master: str | None) -> list[dict[str, Any]]:
    """Return each query as plain values, with Spark's plan for it."""
    from penstock.pipeline.run.runner import opened, put_together

    found = []
    with one_line():
        for built in put_together(opened(document, master or document.master), document):
            query, plan = built.query, io.StringIO()
            with redirect_stdout(plan):  # there is no other way to it that Spark Connect has, too
                built.frame.explain()
            dead = {step: document.steps[step].dead for step in query.buries}
            found.append({**query._asdict(), "dead": dead, "plan": plan.getvalue()})
    return found


def _show(printer: Printer, explained: list[dict[str, Any]]) -> None:
    for query in explained:
        way = " → ".join((query["source"], *query["steps"]))
        printer.line(f"query {query['name']}: {way} → {', '.join(query['sinks'])}, every {query['trigger']}")
        for step, topic in query["dead"].items():
            printer.line(f"  what {step} cannot use goes to {topic or 'the topic a row came from, and .dead'}")
        printer.line(query["plan"])


@app.command("list")
def list_(data: Data = None, json: Json = False) -> None:
    """List the pipelines of a data directory, or of those that run in this directory."""
    found = [(home, _report(home)) for home in _homes(data)]
    rows = [
        (
            home.name,
            report.state if report else "?",
            str(report.pid) if report and home.owner() else "-",
            str(len(report.queries)) if report else "",
            f"{sum(query.rows_total for query in report.queries):,}" if report else "",
            report.error if report else "",
        )
        for home, report in found
    ]
    Printer(json=json).table(
        [asdict(report) for _, report in found if report],
        ("name", "state", "pid", "queries", "rows", "error"),
        rows,
        empty="no pipeline has run here",
    )


@app.command()
def status(name: Name, data: Data = None, json: Json = False) -> None:
    """Show how a pipeline is."""
    from penstock.cli.progress import COLUMNS, cells

    home = _home(name, data)
    report = _report(home)
    if report is None:
        raise Failure(f"pipeline {name} has not said anything yet")
    printer = Printer(json=json)
    if json:
        printer.document(asdict(report))
        return
    printer.line(f"{report.name}: {report.state}, pid {report.pid}, on {report.master}, kept in {home.path}")
    if report.error:
        printer.line(report.error)
    printer.table(None, COLUMNS, [cells(query) for query in report.queries], empty="no query has started")


@app.command()
def stop(
    name: Name,
    data: Data = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for its end.", min=0)] = 60.0,
    json: Json = False,
) -> None:
    """Stop a pipeline after the batch it is at."""
    pid = _home(name, data).stop(wait)
    Printer(json=json).done({"name": name, "pid": pid}, f"pipeline {name} (pid {pid}) has ended")


def _queries(names: list[str]) -> str:
    return f"{len(names)} {'query' if len(names) == 1 else 'queries'}: {', '.join(names)}"


def needs_spark() -> None:
    """Refuse to go on where the packages for Spark are not installed."""
    from importlib.util import find_spec

    missing = [name for name in ("pyspark", "deltalake") if find_spec(name) is None]
    if missing:
        raise Failure(f"{' and '.join(missing)} not installed: pip install 'penstock[spark]' (here: make spark)", USAGE)


def read(context: typer.Context, file: str, data: str | None, url: str | None, token: str | None) -> Document:
    """Return the pipeline of a file, with the node that is meant."""
    from penstock.pipeline.plan.document import at, loaded

    document = loaded(file)
    return at(document, place_of(context, data, url, token, document.node))


def carry_out(document: Document, *, master: str, once: bool, plain: bool, json: bool = False) -> None:
    """Run a pipeline with its progress on standard error, or as JSON, until it ends or a signal asks it to."""
    from penstock.cli.progress import Board, Documents, Lines
    from penstock.pipeline.run.runner import Runner

    with Documents() if json else Lines() if plain or not sys.stderr.isatty() else Board() as view:
        runner = Runner(document, master=master, once=once, show=view.show)
        with _signals(runner), one_line():
            runner.run()


@contextmanager
def one_line() -> Iterator[None]:
    """Say what goes wrong in Spark in one line, as everything else."""
    from penstock.pipeline.run.fault import reason

    try:
        yield
    except Exception as error:
        if not _is_sparks(error):
            raise
        raise Failure(reason(error)) from None


def _is_sparks(error: Exception) -> bool:
    if sys.modules.get("pyspark") is None:
        return False
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException | Py4JError)


@contextmanager
def _signals(runner: Runner) -> Iterator[None]:
    """Let the first signal stop a run between two batches, and the second one end it at once."""

    def stop(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        runner.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _homes(data: str | None) -> list[Home]:
    """Return the pipelines of a data directory; of the one here and of nodes elsewhere, if none was named."""
    from penstock.cli.table import load
    from penstock.pipeline.plan.document import Place
    from penstock.pipeline.run.home import base_of, homes

    if data:
        return homes(base_of(Place(path=data)))
    return homes(base_of(Place())) + homes(base_of(Place(path=load().config.data_dir)))


def _home(name: str, data: str | None) -> Home:
    # Where two have the name, the one that runs is meant.
    found = {home.name: home for home in sorted(_homes(data), key=lambda home: home.owner() is not None)}
    if name not in found:
        there = ", ".join(found) or "none"
        raise Failure(f"there is no pipeline {name} here; there are: {there}")
    return found[name]


def _report(home: Home) -> PipelineReport | None:
    """Return what a pipeline said, corrected by whether it still lives."""
    report = home.told()
    if report is not None and home.owner() is None and report.state not in ("stopped", "failed"):
        return replace(report, state="died")
    return report
