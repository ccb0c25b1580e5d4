"""A node and its listeners in one process, from the lock on its data to the last sync.

The only place that puts real clock, real disk, real sockets and a node together. Everything heavy is imported after
the cheap things that can go wrong: directory and ports.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from penstock.cli import listeners, ready
from penstock.cli.banner import AS_ROOT
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.dialects.nsq.lookup.network import LoopNetwork
    from penstock.dialects.nsq.lookup.registrar import Registrar
    from penstock.dialects.nsq.lookup.service import Lookup
    from penstock.dialects.nsq.stats.document import Observer
    from penstock.dialects.nsq.tcp.server import Server as NsqServer
    from penstock.disk import LocalDisk
    from penstock.node import Node
    from penstock.wire.statsd import Statsd

_log = logging.getLogger("penstock.daemon")

#: How often a stopping node looks whether its consumers are done.
DRAIN_STEP_S = 0.01

#: Allocations before the youngest objects are looked at, and how often older ones are (Python: 700, 10, 10).
GC_THRESHOLDS = (100_000, 50, 100)

#: How long a thread may keep the interpreter lock while the loop wants it; Python's own is 5 ms.
SWITCH_SECONDS = 0.0005


#: Told once everything listens: the configuration and where, (address, port) by the key of the port.
Show = Callable[["Config", Mapping[str, tuple[str, int]]], None]


def run(config: Config, ready_file: str | None = None, show: Show | None = None) -> None:
    """Run a node until a signal asks it to stop."""
    import uvloop

    from penstock.cli.beside import declared

    start_log(config)
    with claimed(config):
        declared(config)  # a pipeline's file that is not there is said before anything starts
        listeners.probe(config)
        if ready_file is not None:
            ready.prepare(ready_file)
        raise_open_files()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_life(config, ready_file, show))


def start_log(config: Config) -> None:
    """Say where everything that is logged in this process goes."""
    from penstock.observe.logging import set_up

    set_up(config.log)


@contextmanager
def claimed(config: Config) -> Iterator[None]:
    """Hold a data directory, made if there is none, against any other process."""
    from penstock.log.lock import Lock

    try:
        lock = Lock(config.data_dir, group=config.data_mode == "group")
    except OSError as error:
        raise unusable(config.data_dir, error) from error
    try:
        yield
    finally:
        lock.release()


async def _life(config: Config, ready_file: str | None, show: Show | None) -> None:
    from penstock.cli.beside import Beside

    daemon = Daemon(config, asyncio.get_running_loop())
    stopped = asyncio.Event()
    on_signals(stopped)
    addresses = await daemon.listen()
    # The first array Arrow takes from numpy imports a module of numpy's, which would stop the first client for 0.1 s.
    import numpy as np
    import pyarrow as pa

    pa.array(np.zeros(1))
    # What is loaded by now stays for good: no collection needs to look at it again. And messages are no cycles, they
    # go when the last reference does: looking through every recent batch for them cost more than carrying them.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    # The loop gives the interpreter lock away with every system call; a thread that seals must not keep it for long.
    sys.setswitchinterval(SWITCH_SECONDS)
    if os.geteuid() == 0:
        _log.warning("%s", AS_ROOT)
    if ready_file is not None:
        ready.write(ready_file, config, addresses)
    if show is not None:
        show(config, addresses)
    beside = Beside(config, daemon.node, Random(os.urandom(32)))
    with ready.announced(config, addresses):
        beside.start()
        await stopped.wait()
        # What runs beside the node ends while it can still reach it.
        await beside.stop()
    await daemon.stop()


class Http(Protocol):
    """A running HTTP listener."""

    port: int

    async def close(self) -> None:
        """End it."""


class Daemon:
    """A node with its listeners."""

    def __init__(self, config: Config, loop: asyncio.AbstractEventLoop) -> None:
        from penstock.clock import LoopClock
        from penstock.dialects.nsq.tcp.server import Server
        from penstock.disk import LocalDisk
        from penstock.node import Node

        self.config = config
        self._loop = loop
        self._disk: LocalDisk = LocalDisk(loop, group=config.data_mode == "group")
        try:
            self.node: Node = Node(config, LoopClock(loop), self._disk, Random(os.urandom(32)))
        except OSError as error:
            raise unusable(config.data_dir, error) from error
        self._nsq: NsqServer = Server(self.node, config.nsq)
        self._acceptor: asyncio.Server | None = None
        self._http: list[Http] = []
        self._lookup: Lookup | None = None
        self._registrar: Registrar | None = None
        self._network: LoopNetwork | None = None
        self._statsd: Statsd | None = None
        loop.set_exception_handler(self._bug)

    async def listen(self) -> dict[str, tuple[str, int]]:
        """Open for clients and return where: (address, port) by the key of the port."""
        from penstock.api.server import serve
        from penstock.dialects.nsq.http.api import observe, serve_http

        tcp_port = await self._accept()
        observer = observe(self.node, self.config, self._nsq)
        nsq_http = partial(
            serve_http, self.node, self.config, tcp_port, observer=observer, relookup=self._announce_elsewhere
        )
        ports = {"nsq.tcp_port": tcp_port}
        starts: dict[str, Callable[[], Awaitable[Http]]] = {}
        if "nsq.https_port" in self.config.listeners():  # first, because the plain one may send clients there
            starts["nsq.https_port"] = partial(nsq_http, secure=True)
        starts["nsq.http_port"] = lambda: nsq_http(https_port=ports.get("nsq.https_port", 0))
        if self.config.api.enabled:
            starts["api.port"] = lambda: serve(self.node, self.config)
        if self.config.flight.enabled:
            starts["flight.port"] = self._fly
        for key, start in starts.items():
            try:
                server = await start()
            except OSError as error:
                raise listeners.refusal(self.config, key, error) from error
            self._http.append(server)
            ports[key] = server.port
        if self.config.nsq.lookup:
            ports |= await self._look_up()
        self._announce(tcp_port, ports["nsq.http_port"])
        self._send_stats(observer, ports["nsq.http_port"])
        return {key: (address, ports[key]) for key, (address, _) in self.config.listeners().items()}

    async def _fly(self) -> Http:
        """Serve Flight clients."""
        from penstock.dialects.flight.server import serve_flight

        return await serve_flight(self.node, self.config)

    async def _accept(self) -> int:
        """Take NSQ connections, and return the port."""
        sock = listeners.bind(self.config, "nsq.tcp_port")
        port: int = sock.getsockname()[1]
        try:
            self._acceptor = await self._loop.create_server(self._nsq.connect, sock=sock, backlog=listeners.BACKLOG)
        except OSError as error:
            sock.close()
            raise listeners.refusal(self.config, "nsq.tcp_port", error) from error
        return port

    async def _look_up(self) -> dict[str, int]:
        """Run the lookup service beside the node, and return its ports."""
        from penstock.dialects.nsq.lookup.host import NodeHost
        from penstock.dialects.nsq.lookup.service import Lookup

        node = self.node

        def fault(code: str, text: str, peer: str) -> None:
            node.count_fault("nsq lookup", code, text, peer)

        self._lookup = Lookup(self.config, node.clock, fault, node.report_bug, NodeHost(node))
        return await open_lookup(self._lookup, self.config)

    def _announce(self, tcp_port: int, http_port: int) -> None:
        """Tell lookup services, the one here and those elsewhere, what the node has."""
        from penstock.config import host_and_port
        from penstock.dialects.nsq.lookup.network import LoopNetwork
        from penstock.dialects.nsq.lookup.registrar import Registrar
        from penstock.dialects.nsq.lookup.service import identity_of

        self._network = LoopNetwork()
        directory = self._lookup.directory if self._lookup is not None else None
        me = identity_of(self.config, tcp_port, http_port)
        self._registrar = Registrar(self.node, me, directory, self._network)
        self._registrar.start(map(host_and_port, self.config.nsq.lookupd_tcp_addresses))

    def _announce_elsewhere(self, places: Iterable[tuple[str, int]]) -> None:
        """Tell other lookup services than the configured ones."""
        if self._registrar is not None:
            self._registrar.replace(places)

    def _send_stats(self, observer: Observer, http_port: int) -> None:
        """Send stats to StatsD, where it is configured."""
        from penstock.config import host_and_port
        from penstock.dialects.nsq.lookup.address import broadcast_address
        from penstock.dialects.nsq.stats.statsd import sender
        from penstock.wire.statsd import dialler

        nsq = self.config.nsq
        if nsq.statsd_address:
            host = f"{broadcast_address(self.config)}:{http_port}"
            dial = dialler(*host_and_port(nsq.statsd_address))
            self._statsd = sender(observer, self.node.clock, nsq, host, dial)

    async def stop(self) -> None:
        """Take nothing more in, let consumers finish what they hold, hang up, and write everything down."""
        if self._statsd is not None:
            self._statsd.close()
        if self._registrar is not None and self._network is not None:
            self._registrar.close()
            await self._network.close()
        if self._acceptor is not None:
            self._acceptor.close()
        self.node.stop()
        end = self._loop.time() + self.config.node.drain_timeout_ns / 1e9
        while self.node.held() and self._loop.time() < end:
            await asyncio.sleep(DRAIN_STEP_S)
        self._nsq.close()
        if self._lookup is not None:
            await self._lookup.close()
        for server in self._http:
            await server.close()
        self.node.close()
        self._disk.close()

    def _bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception):
            self.node.report_bug("loop", error)
        else:
            loop.default_exception_handler(context)


async def open_lookup(lookup: Lookup, config: Config) -> dict[str, int]:
    """Open both ports of a lookup service, and return them."""
    sock = listeners.bind(config, "nsq.lookup_tcp_port")
    try:
        await lookup.accept(sock, listeners.BACKLOG)
    except OSError as error:
        sock.close()
        raise listeners.refusal(config, "nsq.lookup_tcp_port", error) from error
    try:
        await lookup.answer()
    except OSError as error:
        raise listeners.refusal(config, "nsq.lookup_http_port", error) from error
    return {"nsq.lookup_tcp_port": lookup.tcp_port, "nsq.lookup_http_port": lookup.http_port}


def unusable(path: str, error: OSError) -> ConfigError:
    """Return the error about a data directory that the system does not let us use."""
    return ConfigError(
        f"data directory {path} cannot be used: {error.strerror or error}. "
        f"Make it a directory this user can write to, or name another with --data."
    )


def on_signals(stopped: asyncio.Event) -> None:
    """Set an event at the first signal that asks to stop; the second one ends the process."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            # The next one ends the process at once, even while the loop is busy writing.
            signal.signal(number, signal.SIG_DFL)
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def raise_open_files() -> None:
    """Take as many open files as this process may have: each connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # some containers lie about what is allowed; the limit stays then
        return
