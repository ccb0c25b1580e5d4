"""What `up` says once a node listens: where, and three commands to try."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from penstock.cli import beside
from penstock.config import exposed, lacks

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.dialect import Bound

DEFAULT_API = "http://127.0.0.1:7070"
AS_ROOT = "it runs as root, which it never needs: give it a user of its own, as deploy/penstock.service does"


def show(config: Config, bound: Sequence[Bound], version: str, stream: TextIO | None = None) -> None:
    """Print the banner; in colour on a terminal."""
    stream = stream if stream is not None else sys.stdout
    head = f"Penstock {version} is up. Data in {config.data_dir}, durability {config.topic.durability}."
    rows = listed(bound)
    tries = suggestions(bound)
    pipeline = beside.declared(config)
    if pipeline is not None:
        rows += pipeline_rows(config, pipeline)
        tries += watching(config, pipeline, url_option(bound))
    warnings = [f"Warning: {text}." for text in risks(bound)]
    if stream.isatty():
        _show_rich(stream, head, aligned(rows), tries, warnings)
        return
    lines = [head, *(f"  {what} {place}" for what, place in aligned(rows))]
    lines += ["Try:", *(f"  {line}" for line in tries), *warnings, "Stop with Ctrl-C."]
    stream.write("\n".join(lines) + "\n")
    stream.flush()


def risks(bound: Sequence[Bound]) -> list[str]:
    """Return what whoever starts a node like this should know."""
    found = [AS_ROOT] if os.geteuid() == 0 else []
    for each in bound:
        if exposed([each.endpoint]):
            what, lacking = f"{each.endpoint.purpose} at {each.place}", lacks(each.endpoint)
            found.append(f"insecure: {what} is open beyond this machine without {lacking}")
    return found


def say(text: str) -> None:
    """Print one line about the end; who started it may not listen any more."""
    with suppress(OSError, ValueError):
        print(text, flush=True)


def listed(bound: Sequence[Bound]) -> list[tuple[str, str]]:
    """Return what is spoken where."""
    return [(each.endpoint.purpose, each.place) for each in bound]


def aligned(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return rows whose first parts are equally long."""
    width = max(len(what) for what, _ in rows)
    return [(f"{what:<{width}}", place) for what, place in rows]


def suggestions(bound: Sequence[Bound]) -> list[str]:
    """Return commands that work against this very node."""
    examples = [each.endpoint.example.format(each.place) for each in bound if each.endpoint.example]
    if api_place(bound) is None:
        return examples
    url = url_option(bound)
    return [f'penstock pub greetings "hello"{url}', f"penstock sub greetings first --max 1{url}", *examples]


def api_place(bound: Sequence[Bound]) -> str | None:
    """Return where the admin API is, if it is on."""
    return next((each.place for each in bound if each.endpoint.key == "api.port"), None)


def url_option(bound: Sequence[Bound]) -> str:
    """Return the option that brings a command to this node; empty where it finds it by itself."""
    place = api_place(bound)
    return "" if place in (None, DEFAULT_API) else f" --url {place}"


def pipeline_rows(config: Config, pipeline: beside.Declared) -> list[tuple[str, str]]:
    """Return what to know of the pipeline beside the node: what it does, and where it leaves what."""
    if config.pipeline.setup and beside.missing():
        does = "starts once PySpark is installed, which has begun"
    elif beside.missing():
        does = "waits for PySpark: pip install 'penstock[spark]'"
    else:
        does = "starts now"
    rows = [("pipeline", f"{pipeline.name} {does}"), ("", f"log {pipeline.log}")]
    if pipeline.is_default:
        tables = os.path.join(config.data_dir, beside.TABLES)
        rows.append(("", f"topic {beside.DEMO_TOPIC} -> topic {beside.ROLLUP_TOPIC}, tables in {tables}"))
    return rows


def watching(config: Config, pipeline: beside.Declared, url: str) -> list[str]:
    """Return commands that show a pipeline at work."""
    status = f"penstock pipeline status {pipeline.name} --data {config.data_dir}"
    if not pipeline.is_default:
        return [status]
    return [
        f"penstock tail {beside.DEMO_TOPIC}{url}",
        status,
        f"penstock tail {beside.ROLLUP_TOPIC}{url}",
    ]


def _show_rich(stream: TextIO, head: str, rows: list[tuple[str, str]], tries: list[str], warnings: list[str]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False, soft_wrap=True)
    console.print(Text(head, style="bold green"))
    for what, place in rows:
        console.print(Text.assemble(f"  {what} ", (place, "cyan")))
    console.print(Text("Try:", style="bold"))
    for line in tries:
        console.print(Text(f"  {line}"))
    for line in warnings:
        console.print(Text(line, style="yellow"))
    console.print(Text("Stop with Ctrl-C.", style="dim"))
