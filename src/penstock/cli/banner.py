"""What `up` says once a node listens: where, and three commands to try."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

from penstock.cli import beside

if TYPE_CHECKING:
    from penstock.config import Config

#: What is spoken behind each port.
SPOKEN = {
    "api.port": "admin API",
    "flight.port": "Flight",
    "nsq.tcp_port": "NSQ",
    "nsq.http_port": "NSQ HTTP",
    "nsq.https_port": "NSQ HTTPS",
    "nsq.lookup_tcp_port": "NSQ lookup",
    "nsq.lookup_http_port": "NSQ lookup HTTP",
}
#: The longest of them.
WIDTH = max(map(len, SPOKEN.values()))
DEFAULT_API_PORT = 7070
AS_ROOT = "it runs as root, which it never needs: give it a user of its own, as deploy/penstock.service does"

Addresses = Mapping[str, tuple[str, int]]


def places(config: Config, addresses: Addresses) -> dict[str, str]:
    """Return where to reach each listener, by the key of its port."""
    schemes = dict.fromkeys(("nsq.http_port", "nsq.lookup_http_port"), "http://")
    schemes["nsq.https_port"] = "https://"
    schemes["flight.port"] = "grpc+tls://" if config.tls_cert else "grpc://"
    schemes["api.port"] = "https://" if config.tls_cert else "http://"
    found = {}
    for key, (address, port) in addresses.items():
        host = f"[{address}]" if ":" in address else address
        found[key] = f"{schemes.get(key, '')}{host}:{port}"
    return found


def show(config: Config, addresses: Addresses, version: str, stream: TextIO | None = None) -> None:
    """Print the banner; in colour on a terminal."""
    stream = stream if stream is not None else sys.stdout
    reach = places(config, addresses)
    head = f"Penstock {version} is up. Data in {config.data_dir}, durability {config.topic.durability}."
    rows = [(SPOKEN[key], place) for key, place in reach.items()]
    tries = suggestions(reach, addresses)
    pipeline = beside.declared(config)
    if pipeline is not None:
        rows += pipeline_rows(config, pipeline)
        tries += watching(config, pipeline, url_option(reach, addresses))
    warnings = [f"Warning: {AS_ROOT}."] if os.geteuid() == 0 else []
    if stream.isatty():
        _show_rich(stream, head, rows, tries, warnings)
        return
    lines = [head, *(f"  {what:<{WIDTH}} {place}" for what, place in rows)]
    lines += ["Try:", *(f"  {line}" for line in tries), *warnings, "Stop with Ctrl-C."]
    stream.write("\n".join(lines) + "\n")
    stream.flush()


def suggestions(reach: Mapping[str, str], addresses: Addresses) -> list[str]:
    """Return commands that work against this very node."""
    curl = f"curl -d hello '{reach['nsq.http_port']}/pub?topic=greetings'"
    if "api.port" not in reach:
        return [curl]
    url = url_option(reach, addresses)
    return [f'penstock pub greetings "hello"{url}', f"penstock sub greetings first --max 1{url}", curl]


def url_option(reach: Mapping[str, str], addresses: Addresses) -> str:
    """Return the option that brings a command to this node; empty where it finds it by itself."""
    if "api.port" not in reach or addresses["api.port"] == ("127.0.0.1", DEFAULT_API_PORT):
        return ""
    return f" --url {reach['api.port']}"


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
        console.print(Text.assemble(f"  {what:<{WIDTH}} ", (place, "cyan")))
    console.print(Text("Try:", style="bold"))
    for line in tries:
        console.print(Text(f"  {line}"))
    for line in warnings:
        console.print(Text(line, style="yellow"))
    console.print(Text("Stop with Ctrl-C.", style="dim"))
