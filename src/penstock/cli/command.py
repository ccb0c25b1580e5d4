"""How a command that speaks to a node is declared: its own parameters, plus the ones that all of them share.

Owns `--url`, `--token` and `--json`. A command function takes a Client, a Printer and its own parameters, and
never sees an address.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import typer

from penstock.cli.client import Client, default_target
from penstock.cli.printer import Printer

Function = TypeVar("Function", bound=Callable[..., int | None])

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Url = Annotated[
    str | None,
    typer.Option(help="The node's admin API.", envvar="PENSTOCK_URL", show_default="as the configuration here says"),
]
Token = Annotated[
    str | None, typer.Option(help="What the node asks clients to show.", envvar="PENSTOCK_TOKEN", show_default=False)
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
    address, configured = default_target()
    return Client(address, token or configured)
