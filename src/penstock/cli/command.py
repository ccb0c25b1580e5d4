"""How a command that speaks to a node is declared: its own parameters, plus the ones that all of them share.

Owns `--url`, `--token-file` and `--json`. A command function takes a Client, a Printer and its own parameters, and
never sees an address.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import typer

from penstock.cli.client import Client, target
from penstock.cli.printer import Printer

Function = TypeVar("Function", bound=Callable[..., int | None])

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Url = Annotated[
    str | None,
    typer.Option(help="The node's admin API.", envvar="PENSTOCK_URL", show_default="as the configuration here says"),
]


def token_in(path: str | None) -> str | None:
    """Return the token that a file holds, or standard input (`-`), else what the environment has."""
    from penstock.config import secret_in, shown_token

    if path is None:
        return shown_token() or None
    if path != "-":
        return secret_in(path)
    if sys.stdin.isatty():
        from getpass import getpass

        return getpass("Token: ")
    return sys.stdin.readline().strip()


#: Its value is what the file holds: a secret on a command line is everybody's who can run `ps`.
Token = Annotated[
    str | None,
    typer.Option(
        "--token-file",
        help="File that holds the node's token; - asks for it.",
        metavar="PATH",
        show_default="PENSTOCK_TOKEN, or the file that PENSTOCK_TOKEN_FILE names",
        callback=token_in,
    ),
]

SHARED = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    for name, default, annotation in (("url", None, Url), ("token", None, Token), ("json", False, Json))
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
        def run(*, url: str | None, token: str | None, json: bool, **parameters: Any) -> int | None:
            if settings:
                given = [(name, parameters.pop(name)) for name in names]
                parameters["settings"] = {name: value for name, value in given if value is not None}
            client = connect(url, token)
            try:
                return function(client, Printer(json=json), **parameters)
            finally:
                client.close()

        run.__signature__ = signature.replace(parameters=[*own, *SHARED])  # type: ignore[attr-defined]
        group.command(name)(run)
        return function

    return register


def connect(url: str | None, token: str | None) -> Client:
    """Return the node that is meant; a token from the configuration goes to the configuration's node only."""
    if url:
        return Client(url, token or "")
    from penstock.cli.table import load

    return target(load(), token)
