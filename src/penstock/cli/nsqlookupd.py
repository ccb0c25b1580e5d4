"""`nsqlookupd`: the lookup service alone, under the name and flags of upstream's daemon.

Owns what each of nsqlookupd's flags means here. Settings without a flag come from PENSTOCK_* variables; no
penstock.toml is read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from penstock.cli import goflags, lookupd, nsqd
from penstock.cli.goflags import Flag, Given

FLAGS: dict[str, Flag] = {
    **nsqd.SHARED,
    "tcp-address": Flag("HOST:PORT for nodes (127.0.0.1:4160)"),
    "http-address": Flag("HOST:PORT for HTTP clients (127.0.0.1:4161)"),
    "broadcast-address": Flag("address of this service", "nsq.broadcast_address"),
    "inactive-producer-timeout": Flag(
        "time without a ping after which a node is not shown", "nsq.inactive_producer_timeout"
    ),
    "tombstone-lifetime": Flag("time a tombstone hides a producer", "nsq.tombstone_lifetime"),
}

#: The ports that nsqlookupd opens, by flag.
PORTS = {"tcp-address": "nsq.lookup_tcp_port", "http-address": "nsq.lookup_http_port"}


def main() -> None:
    """Run the program and end with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Carry out one command line and return its exit code."""
    show = nsqd.shower("nsqlookupd")
    return nsqd.program(
        "nsqlookupd", arguments, FLAGS, chosen, lambda config: lookupd.run(config, None, show), lookupd.load
    )


def chosen(given: Given, warn: Callable[[str], None]) -> dict[str, object]:
    """Return the settings that a command line of nsqlookupd's asks for, by dotted name."""
    return {**goflags.settings(given, FLAGS, warn), **nsqd.ports(given, PORTS)}
