"""`penstock lookupd`: the lookup service alone, without a node and without data."""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.config import File, Insecure, Settings, flags

if TYPE_CHECKING:
    from penstock.cli.daemon import Show
    from penstock.cli.listeners import Listeners
    from penstock.config import Config, Endpoint
    from penstock.dialect import Bound

#: What holds whatever the configuration says: there is no node, so its ports must not stand in the way.
ALONE = {
    "nsq.lookup": True,
    "api.enabled": False,
    "flight.enabled": False,
    "sqs.enabled": False,
    "dynamiq.enabled": False,
    "m3msg.enabled": False,
    "timeline.enabled": False,
    "nsq.tcp_port": 0,
    "nsq.http_port": 0,
}

#: How it is made safe for a network.
MEND = "its protocol has no TLS, so reach it by a network that strangers are kept out of"

_log = logging.getLogger("penstock.nsq.lookup")


def lookupd(
    file: File = None,
    port_offset: Annotated[int | None, typer.Option(min=0, help="Added to every port.", show_default="0")] = None,
    insecure: Insecure = False,
    settings: Settings = None,
    ready_file: Annotated[
        str | None, typer.Option(help="Write pid and ports there, as JSON, once it listens.", metavar="PATH")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not print what listens where.")] = False,
) -> None:
    """Run the NSQ lookup service alone, in the foreground."""
    chosen = flags(settings)
    if port_offset is not None:
        chosen["port_offset"] = port_offset
    if insecure:
        chosen["insecure"] = True
    run(load(file, chosen), ready_file, None if quiet else _show)


def load(file: str | None, chosen: Mapping[str, object]) -> Config:
    """Return the checked configuration of a lookup service, which listens nowhere else."""
    from penstock.cli import table
    from penstock.dialects.nsq import DIALECT

    alone = [each._replace(endpoints=_endpoints) if each is DIALECT else each for each in table.TABLE]
    return table.load(file, {**chosen, **ALONE}, table=alone).config


def _endpoints(config: Config) -> Sequence[Endpoint]:
    from penstock.dialects.nsq.config import lookup_endpoints

    return [each._replace(mend=MEND) for each in lookup_endpoints(config)]


def run(config: Config, ready_file: str | None = None, show: Show | None = None) -> None:
    """Run a lookup service until a signal asks it to stop."""
    import uvloop

    from penstock.cli import daemon, ready
    from penstock.cli.listeners import Listeners

    daemon.start_log(config)
    listeners = Listeners(config, _endpoints(config))
    if ready_file is not None:
        ready.prepare(ready_file)
    daemon.raise_open_files()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_life(config, listeners, ready_file, show))


async def _life(config: Config, listeners: Listeners, ready_file: str | None, show: Show | None) -> None:
    from penstock.callers import Gate
    from penstock.cli import banner, daemon, ready
    from penstock.clock import LoopClock
    from penstock.dialects.nsq.lookup.service import Lookup
    from penstock.disk import LocalDisk

    stopped = asyncio.Event()
    daemon.on_signals(stopped)
    clock = LoopClock(asyncio.get_running_loop())
    listeners.open()
    gate = Gate(config, clock, LocalDisk(asyncio.get_running_loop()))
    daemon.on_reload(gate)
    lookup = await Lookup.start(config, clock, listeners.bound, _fault, _bug, gate)
    bound = list(listeners.bound.values())
    for risk in banner.risks(bound):
        _log.warning("%s", risk)
    if ready_file is not None:
        ready.write(ready_file, config, bound)
    if show is not None:
        show(config, bound)
    await stopped.wait()
    gate.close()
    await lookup.close()


def _show(config: Config, bound: Sequence[Bound]) -> None:
    from penstock.cli import banner

    lines = ["The NSQ lookup service is up, with nothing on disk."]
    lines += [f"  {what} {place}" for what, place in banner.aligned(banner.listed(bound))]
    lines += [f"Warning: {risk}." for risk in banner.risks(bound)]
    sys.stdout.write("\n".join([*lines, "Stop with Ctrl-C."]) + "\n")
    sys.stdout.flush()


def _fault(code: str, text: str, peer: str) -> None:
    # Clients ask for topics that are not there yet all the time.
    level = logging.DEBUG if code == "TOPIC_NOT_FOUND" else logging.WARNING
    _log.log(level, "%s from %s: %s", code, peer, text)


def _bug(where: str, error: BaseException) -> None:
    _log.error("%s failed: %s", where, "".join(traceback.format_exception(error)))
