"""`penstock config`: whether a configuration can be used, and every value with its origin."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.command import Json
from penstock.cli.printer import Printer
from penstock.errors import ConfigError

app = typer.Typer(help="Check and show the configuration.", no_args_is_help=True)

File = Annotated[
    str | None,
    typer.Option(
        "--config", help="TOML file.", envvar="PENSTOCK_CONFIG", show_default="./penstock.toml if it is there"
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any setting, as `config show` lists them. May be repeated.", metavar="KEY=VALUE"),
]

Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Listen beyond this machine even without TLS, or without asking who comes."),
]


@app.command()
def check(file: File = None, settings: Settings = None, json: Json = False) -> None:
    """Say whether a node could start with this configuration."""
    from penstock.cli.table import load

    loaded = load(file, flags(settings))
    chosen = {name: origin for name, _, origin in loaded.rows() if origin != "default"}
    differ = "setting is not the default" if len(chosen) == 1 else "settings are not the defaults"
    Printer(json=json).done({"ok": True, "chosen": chosen}, f"The configuration is good; {len(chosen)} {differ}.")


@app.command()
def show(file: File = None, settings: Settings = None, json: Json = False) -> None:
    """Show every setting with its value and where that comes from."""
    from penstock.cli.table import load

    rows = load(file, flags(settings)).rows()
    document = [{"name": name, "value": value, "origin": origin} for name, value, origin in rows]
    Printer(json=json).table(document, ("setting", "value", "origin"), rows)


def flags(settings: list[str] | None) -> dict[str, object]:
    """Return `--set key=value` options by key."""
    from penstock.cli.table import TABLE
    from penstock.config import Keys

    chosen: dict[str, object] = {}
    known = {name: key.kind for name, key in Keys(TABLE).items()} if settings else {}
    for setting in settings or ():
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise ConfigError(
                f'--set "{setting}" is not understood; write --set KEY=VALUE, like --set nsq.tcp_port=5150'
            )
        if known.get(key.strip()) == "secret":
            raise ConfigError(
                f"--set {key.strip()}=... would show the secret to everybody who can run ps; put it into a file and "
                "name that (token_file), into the file of the configuration, or into the environment (PENSTOCK_TOKEN)"
            )
        chosen[key.strip()] = value
    return chosen
