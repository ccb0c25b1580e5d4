"""How a command that speaks to a node is declared: its own parameters, plus the ones that all of them share.

Owns `--url`, `--context`, `--token-file` and `--json`. A command function takes a Client, a Printer and its own
parameters, and never sees an address.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from penstock.cli.client import Client, target
from penstock.cli.failure import USAGE, Failure
from penstock.cli.printer import Printer

Function = TypeVar("Function", bound=Callable[..., int | None])

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def token_in(path: str | None) -> str | None:
    """Return the token that a file holds, or standard input (`-`), else what the environment has."""
    from penstock.config import shown_token

    return shown_token() or None if path is None else token_of(path)


def token_of(path: str | None) -> str | None:
    """Return the token that a file holds, or standard input (`-`); None if none was named."""
    from penstock.config import secret_in

    if path is None:
        return None
    if path != "-":
        return secret_in(path)
    if sys.stdin.isatty():
        from getpass import getpass

        return getpass("Token: ")
    return sys.stdin.readline().strip()


_TOKEN_HELP = "File that holds the node's token; - asks for it."
_TOKEN_DEFAULT = "PENSTOCK_TOKEN, or the file that PENSTOCK_TOKEN_FILE names"

#: Before the command, for all of them; what stands behind one wins.
Before = Annotated[
    str | None,
    typer.Option(
        "--url", help="The node's admin API.", envvar="PENSTOCK_URL", show_default="as the configuration here says"
    ),
]
#: Its value is what the file holds: a secret on a command line is everybody's who can run `ps`.
Token = Annotated[
    str | None,
    typer.Option("--token-file", help=_TOKEN_HELP, metavar="PATH", show_default=_TOKEN_DEFAULT, callback=token_in),
]
Context = Annotated[
    str | None,
    typer.Option(
        "--context",
        help="The node of this name; see `penstock context`.",
        envvar="PENSTOCK_CONTEXT",
        metavar="NAME",
        show_default="the one in use",
    ),
]
Url = Annotated[
    str | None,
    typer.Option(help="The node's admin API.", show_default="PENSTOCK_URL, or as the configuration here says"),
]
_TokenBehind = Annotated[
    str | None,
    typer.Option("--token-file", help=_TOKEN_HELP, metavar="PATH", show_default=_TOKEN_DEFAULT, callback=token_of),
]


class Target(NamedTuple):
    """The node that was named before the command, by its address or its context."""

    url: str | None = None
    token: str | None = None
    name: str | None = None
    #: On this command line, and not by the environment.
    said: bool = False
    #: By a context that stands behind the command, which no address beside it may contradict.
    behind: bool = False


def _named_behind(context: typer.Context, name: str | None) -> None:
    """Have a context that stands behind the command in place of whatever was named before it."""
    if name:
        root = context.find_root()
        root.obj = Target(token=before_of(context).token, name=name, said=True, behind=True)


ContextBehind = Annotated[
    str | None,
    typer.Option(
        "--context",
        help="The node of this name; see `penstock context`.",
        metavar="NAME",
        show_default="the one in use",
        callback=_named_behind,
    ),
]


def before_of(context: typer.Context, *others: str | None) -> Target:
    """Return the node that was named before the command, or by a context behind it, which goes with no other word."""
    before: Target = context.find_root().obj or Target()
    if before.behind and any(others):
        raise Failure("--context and another option both say which node is meant; choose one", USAGE)
    return before


CONTEXT = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
SHARED = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    for name, default, annotation in (
        ("url", None, Url),
        ("behind", None, ContextBehind),
        ("token", None, _TokenBehind),
        ("json", False, Json),
    )
]


def remote(
    group: typer.Typer, name: str | None = None, settings: Sequence[inspect.Parameter] = ()
) -> Callable[[Function], Function]:
    """Register a command whose first two parameters, the Client and the Printer, are made from shared options.

    Options of settings that were given come as one more parameter, `settings`, by name.
    """
    names = [option.name for option in settings]

    def register(function: Function) -> Function:
        signature = inspect.signature(function, eval_str=True)
        own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in list(signature.parameters.values())[2:]]
        if settings:
            own = [*(parameter for parameter in own if parameter.name != "settings"), *settings]

        @functools.wraps(function)
        def run(
            context: typer.Context,
            *,
            url: str | None,
            behind: str | None,
            token: str | None,
            json: bool,
            **parameters: Any,
        ) -> int | None:
            if settings:
                given = [(name, parameters.pop(name)) for name in names]
                parameters["settings"] = {name: value for name, value in given if value is not None}
            before = before_of(context, url)
            client = connect(url or before.url, token or before.token, before.name)
            try:
                return function(client, Printer(json=json), **parameters)
            finally:
                client.close()

        run.__signature__ = signature.replace(parameters=[CONTEXT, *own, *SHARED])  # type: ignore[attr-defined]
        group.command(name)(run)
        return function

    return register


def connect(url: str | None, token: str | None, name: str | None = None) -> Client:
    """Return the node that is meant: by its address, its context, the context in use, or the configuration here.

    A token from a context or the configuration goes to that node only.
    """
    if url:
        return Client(url, token or "")
    from penstock.cli import context

    found = context.found(name)
    if found is not None:
        return Client(found.url, token or token_of(found.token_file) or "")
    from penstock.cli.table import load

    return target(load(), token)
