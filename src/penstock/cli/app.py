"""The program: every command under its name, and what a failure looks like from outside.

Invariant: what goes wrong for a known reason is one line on standard error and an exit code, never a traceback.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock import __version__
from penstock.cli import (
    backup,
    bench,
    cluster,
    config,
    context,
    doctor,
    import_nsq,
    lake,
    ledger,
    log,
    lookupd,
    m3,
    pipeline,
    publish,
    read,
    registry,
    replay,
    report,
    routing,
    status,
    stop,
    subscribe,
    subscription,
    timeline,
    topic,
    up,
    user,
)
from penstock.cli.client import ELSEWHERE
from penstock.cli.command import Before, Context, Json, Target, Token, remote
from penstock.cli.failure import OK, REFUSED, USAGE, Failure
from penstock.cli.printer import Printer, complain
from penstock.errors import ConfigError, PenstockError

EXIT_CODES = "Exit codes: 0 done, 1 refused or failed, 2 usage or configuration, 3 no node reachable."

app = typer.Typer(
    name="penstock",
    help="Penstock, a message broker: run a node, and speak to a running one.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.command()(up.up)
app.command()(stop.stop)
remote(app)(status.status)
remote(app)(status.top)
app.command()(lookupd.lookupd)
remote(app)(publish.pub)
remote(app)(subscribe.sub)
remote(app)(read.tail)
remote(app)(read.peek)
remote(app)(subscription.redrive)
app.add_typer(topic.app, name="topic")
app.add_typer(subscription.app, name="subscription")
app.add_typer(timeline.app, name="timeline")
app.add_typer(cluster.app, name="cluster")
app.add_typer(routing.app, name="routing")
app.add_typer(m3.app, name="m3")
remote(app)(ledger.ledger)
app.add_typer(log.app, name="log")
app.add_typer(registry.app, name="registry")
app.command()(backup.backup)
app.command()(backup.restore)
app.add_typer(import_nsq.app, name="import")
app.add_typer(pipeline.app, name="pipeline")
for job in (lake.archive, lake.compact, replay.replay, report.report):
    pipeline.app.command()(job)
remote(app)(bench.bench)
app.command()(doctor.doctor)
app.add_typer(config.app, name="config")
app.add_typer(user.app, name="user")
app.add_typer(context.app, name="context")


@app.command()
def version(json: Json = False) -> None:
    """Print the version."""
    Printer(json=json).done({"penstock": __version__}, f"penstock {__version__}")


@app.callback(invoke_without_command=True)
def _top(
    called: typer.Context,
    url: Before = None,
    token: Token = None,
    name: Context = None,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if show_version:
        Printer().line(f"penstock {__version__}")
        raise typer.Exit(OK)
    sources = {each: called.get_parameter_source(each) for each in ("url", "name")}
    given = [each for each, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if url and name:
        # What stands here is nearer than what the environment says.
        if len(given) != 1:
            raise Failure("--url and --context both say which node is meant; choose one", USAGE)
        url, name = (url, None) if given == ["url"] else (None, name)
    called.obj = Target(url, token, name, bool(given))


def run(arguments: list[str]) -> int:
    """Carry out one command line and return its exit code."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if any(option.partition("=")[0] == "--token" for option in options):
        complain(f"--token would show the token to everybody who can run ps; {ELSEWHERE}.")
        return USAGE
    try:
        code = _program()(arguments, prog_name="penstock", standalone_mode=False)
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
            Printer().line(error.format_message())
        else:
            complain(_usage(error))
        return USAGE
    except typer.Abort:
        return REFUSED
    except Failure as failure:
        complain(str(failure))
        return failure.code
    except ConfigError as error:
        complain(str(error))
        return USAGE
    except PenstockError as error:
        complain(str(error))
        return REFUSED
    return code if isinstance(code, int) else OK


def _program() -> Any:
    """Return the whole of it; every command ends its help with the exit codes."""
    program = typer.main.get_command(app)
    left: list[Any] = [program]
    while left:
        command = left.pop()
        command.epilog = EXIT_CODES
        left += getattr(command, "commands", {}).values()
    return program


def _usage(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "penstock"
    way_out = f"`{path} --help` says how it is used."
    text = error.format_message()
    if not text:
        return way_out
    return f"{text if text.endswith(('.', '?')) else text + '.'} {way_out}"
