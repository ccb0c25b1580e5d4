"""`penstock config`: whether a configuration can be used, and every value with its origin."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from penstock.cli.command import Json
from penstock.cli.printer import Printer
from penstock.errors import ConfigError

app = typer.Typer(help="Check, show and import the configuration.", no_args_is_help=True)

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
    """Say whether a node could start with this configuration; brokers that it names are asked for their limits."""
    from penstock.cli.brokers import complaints
    from penstock.cli.printer import complain
    from penstock.cli.table import load
    from penstock.relays.kafka.config import KafkaRelayConfig

    loaded = load(file, flags(settings))
    warnings = complaints(loaded.config.of(KafkaRelayConfig))
    for warning in warnings:
        complain(warning)
    chosen = {name: origin for name, _, origin in loaded.rows() if origin != "default"}
    differ = "setting is not the default" if len(chosen) == 1 else "settings are not the defaults"
    document = {"ok": True, "chosen": chosen, **({"warnings": warnings} if warnings else {})}
    Printer(json=json).done(document, f"The configuration is good; {len(chosen)} {differ}.")


@app.command()
def show(file: File = None, settings: Settings = None, json: Json = False) -> None:
    """Show every setting with its value and where that comes from."""
    from penstock.cli.table import load

    rows = load(file, flags(settings)).rows()
    document = [{"name": name, "value": value, "origin": origin} for name, value, origin in rows]
    Printer(json=json).table(document, ("setting", "value", "origin"), rows)


@app.command("import")
def import_(
    file: Annotated[
        str,
        typer.Argument(help="Dynamiq's config.gcfg, Dory's XML, or the YAML file of an m3aggregator.", metavar="FILE"),
    ],
    json: Json = False,
) -> None:
    """Print a penstock.toml with what Dynamiq's, Dory's or M3's file says, and tell what could not be carried over."""
    import sys

    from penstock.cli import import_dory, import_m3
    from penstock.cli.table import load
    from penstock.config.toml import as_toml
    from penstock.dialects.dynamiq import gcfg

    settings: Mapping[str, object]
    try:
        with open(file, encoding="utf-8") as opened:
            text = opened.read()
            read: Callable[[str], tuple[Mapping[str, object], dict[str, str]]] = gcfg.imported
            if file.endswith((".yaml", ".yml")):
                read = import_m3.imported
            elif file.endswith(".xml") or text.lstrip().startswith("<"):
                read = import_dory.imported
            settings, left = read(text)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    load(os.devnull, dict(settings), {})  # what it says must be what a node can start with
    Printer(json=json).done({"settings": settings, "left": left}, as_toml(settings).rstrip("\n"))
    if not json:
        for name, why in left.items():
            print(f"not carried over: {name}: {why}", file=sys.stderr)


def _kind(known: dict[str, str], key: str) -> str | None:
    """Return of what kind a setting is; one of a zone is what it is in every zone."""
    parts = key.split(".")
    return known.get(".".join(["etcd.zones.default", *parts[3:]]) if parts[:2] == ["etcd", "zones"] else key)


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
        if _kind(known, key.strip()) == "secret":
            name = key.strip()
            raise ConfigError(
                f"--set {name}=... would show the secret to everybody who can run ps; put it into a file and "
                f"name that ({name}_file), into the file of the configuration, or into the environment "
                f"(PENSTOCK_{name.replace('.', '_').replace('-', '_').upper()})"
            )
        chosen[key.strip()] = value
    return chosen
