"""`penstock context`: nodes by name, so that a command says `--context prod` instead of an address and a token.

Owns the file of them in the user's configuration directory. It holds no secret: a token stays in its own file.
"""

from __future__ import annotations

import os
from typing import Annotated

import msgspec
import typer

from penstock.cli.client import Client
from penstock.cli.command import Json
from penstock.cli.failure import USAGE, Failure
from penstock.cli.printer import Printer
from penstock.errors import hint

app = typer.Typer(help="Name nodes, and choose the one that commands speak to.", no_args_is_help=True)

FILE = "contexts.json"

Name = Annotated[str, typer.Argument(metavar="NAME", help="The context.")]


class Context(msgspec.Struct, omit_defaults=True):
    """Where a node is, and which file holds its token."""

    url: str
    token_file: str | None = None


class Contexts(msgspec.Struct):
    """All that were named, and the one in use."""

    contexts: dict[str, Context] = {}
    current: str | None = None

    def one(self, name: str) -> Context:
        """Return a context that must be there."""
        if name not in self.contexts:
            way_out = "name one with `penstock context add NAME --url URL`"
            more = hint(name, self.contexts, way_out) if self.contexts else way_out
            raise Failure(f"there is no context {name!r}; {more}", USAGE)
        return self.contexts[name]


def path() -> str:
    """Return where contexts are kept."""
    return os.path.join(typer.get_app_dir("penstock"), FILE)


def load() -> Contexts:
    """Return the contexts of this user."""
    try:
        with open(path(), "rb") as file:
            return msgspec.json.decode(file.read(), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except (OSError, msgspec.MsgspecError) as error:
        raise Failure(f"{path()} cannot be read: {error}. Mend it, or remove it.", USAGE) from error


def save(contexts: Contexts) -> None:
    """Keep contexts, in one step."""
    target = path()
    try:
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        with open(target + ".new", "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(contexts)) + b"\n")
        os.replace(target + ".new", target)
    except OSError as error:
        raise Failure(f"{target} cannot be written: {error.strerror}", USAGE) from error


def found(name: str | None) -> Context | None:
    """Return the context that is named, else the one in use; None if there is none."""
    contexts = load()
    name = name or contexts.current
    return contexts.one(name) if name else None


@app.command()
def add(
    name: Name,
    url: Annotated[str, typer.Option(help="The node's admin API.", metavar="URL")],
    token_file: Annotated[
        str | None, typer.Option(help="File that holds the node's token.", metavar="PATH", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Name a node; the first one is in use at once."""
    if "://" not in url:
        # A word without a port is more often a slip than a host, and would be found out much later.
        raise Failure(f'--url "{url}" is no address; write one like http://127.0.0.1:7070', USAGE)
    Client(url).close()  # refuses what else is no address
    if token_file is not None:
        token_file = os.path.abspath(token_file)
        if not os.access(token_file, os.R_OK):
            raise Failure(f"--token-file {token_file} cannot be read", USAGE)
    contexts = load()
    contexts.contexts[name] = Context(url, token_file)
    contexts.current = contexts.current or name
    save(contexts)
    used = "it is in use" if contexts.current == name else f"`penstock context use {name}` uses it"
    Printer(json=json).done({"name": name, "url": url, "token_file": token_file}, f"context {name} is {url}; {used}")


@app.command("list")
def list_(json: Json = False) -> None:
    """List the contexts; the one in use has a star."""
    contexts = load()
    rows = [
        ("*" if name == contexts.current else "", name, one.url, one.token_file or "-")
        for name, one in sorted(contexts.contexts.items())
    ]
    way_out = "there is no context yet; `penstock context add NAME --url URL` names a node"
    Printer(json=json).table(contexts, ("", "context", "url", "token file"), rows, way_out)


@app.command()
def use(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The context; - for none.")], json: Json = False
) -> None:
    """Let commands speak to this node, where they name no other."""
    contexts = load()
    contexts.current = None if name == "-" else name
    if contexts.current is not None:
        contexts.one(name)
    save(contexts)
    text = (
        f"context {name} is in use" if contexts.current else "no context is in use: the configuration here says where"
    )
    Printer(json=json).done({"current": contexts.current}, text)


@app.command()
def remove(name: Name, json: Json = False) -> None:
    """Forget a context; the node and the token's file stay as they are."""
    contexts = load()
    contexts.one(name)
    del contexts.contexts[name]
    if contexts.current == name:
        contexts.current = None
    save(contexts)
    Printer(json=json).done({"removed": name}, f"context {name} is forgotten")
