"""A node and everything served on it in one process, from the lock on its data to the last sync.

The only place that puts real clock, real disk, real sockets and a node together. It knows the table's rows, not what
they are. Everything heavy is imported after the cheap things that can go wrong: directory and ports.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any

from penstock.cli import banner, ready
from penstock.cli.listeners import Listeners
from penstock.cli.table import TABLE
from penstock.config import endpoints
from penstock.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from penstock.callers import Gate
    from penstock.clock import Clock
    from penstock.config import Config
    from penstock.dialect import Bound, Dialect
    from penstock.disk import LocalDisk
    from penstock.log.kafka.engine import Engine
    from penstock.node.node import Node
    from penstock.node.share import ClusterShare
    from penstock.registry import Registry
    from penstock.registry.etcd.zones import Zones

_log = logging.getLogger("penstock.daemon")

#: How often a stopping node looks whether its consumers are done.
DRAIN_STEP_S = 0.01
#: A node of a cluster that is dealt nothing for so long serves what others have.
SETTLE_S = 5.0
#: A disk that does nothing for this long, while the node ends, is not waited for.
STALL_S = 60.0

#: Allocations before the youngest objects are looked at, and how often older ones are (Python: 700, 10, 10). A look at
#: so few takes half a millisecond; older ones are looked at when the process grows (`resident.py`).
GC_THRESHOLDS = (5_000, 100_000, 100)

#: How long a thread may keep the interpreter lock while the loop wants it; Python's own is 5 ms.
SWITCH_SECONDS = 0.0005


#: Told once everything listens: the configuration, and where.
Show = Callable[["Config", Sequence["Bound"]], None]

#: Hears what is being stopped, one thing at a time.
Say = Callable[[str], None]


def silent(text: str) -> None:
    """Say nothing."""


def run(
    config: Config,
    ready_file: str | None = None,
    show: Show | None = None,
    table: Sequence[Dialect] = TABLE,
    say: Say = silent,
) -> None:
    """Run a node until a signal asks it to stop."""
    import uvloop

    from penstock.cli.beside import declared
    from penstock.resident import keep_little, without_pandas

    start_log(config)
    keep_little()
    without_pandas()
    with claimed(config):
        declared(config)  # a pipeline's file that is not there is said before anything starts
        listeners = Listeners(config, endpoints(config, table))
        if ready_file is not None:
            ready.prepare(ready_file)
        raise_open_files()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_life(config, table, listeners, ready_file, show, say))


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


async def _life(
    config: Config, table: Sequence[Dialect], listeners: Listeners, ready_file: str | None, show: Show | None, say: Say
) -> None:
    if config.registry.kind == "embedded":
        await _serve(config, table, listeners, ready_file, show, say)
        return
    from penstock.cli.etcd import Etcd

    etcd = Etcd(config)
    try:
        registry = await etcd.open_registry()
        await _serve(config, table, listeners, ready_file, show, say, registry, etcd.zones)
    finally:
        await etcd.close()


async def _serve(
    config: Config,
    table: Sequence[Dialect],
    listeners: Listeners,
    ready_file: str | None,
    show: Show | None,
    say: Say,
    registry: Registry | None = None,
    zones: Zones | None = None,
) -> None:
    from penstock.cli.beside import Beside

    # Messages are no cycles, they go when the last reference does: looking through every recent batch for them cost
    # more than carrying them. Nor are topics: looking through 10,000 again and again was half of their start.
    gc.set_threshold(*GC_THRESHOLDS)
    daemon = Daemon(config, asyncio.get_running_loop(), table, listeners, registry=registry, zones=zones)
    stopped = asyncio.Event()
    on_signals(stopped)
    on_reload(daemon.node.gate)
    on_reopen()
    bound = await daemon.listen()
    # The first array Arrow takes from numpy imports a module of numpy's, which would stop the first client for 0.1 s.
    import numpy as np
    import pyarrow as pa

    pa.array(np.zeros(1))
    # What is loaded by now stays for good: no collection needs to look at it again.
    gc.collect()
    gc.freeze()
    # The loop gives the interpreter lock away with every system call; a thread that seals must not keep it for long.
    sys.setswitchinterval(SWITCH_SECONDS)
    for risk in banner.risks(bound):
        _log.warning("%s", risk)
    if ready_file is not None:
        ready.write(ready_file, config, bound)
    if show is not None:
        show(config, bound)
    beside = Beside(config, daemon.node, Random(os.urandom(32)))
    with ready.announced(config, bound):
        beside.start()
        await stopped.wait()
        say("Stopping. A second Ctrl-C ends it at once; the next start then recovers.")
        # What runs beside the node ends while it can still reach it.
        await beside.stop(say)
    whole = await daemon.stop(say)
    say("Stopped." if whole else "Stopped: the disk does not answer, so the next start checks what was written.")
    if not whole:
        logging.shutdown()
        os._exit(1)  # the way out through Python would wait for threads that wait for the disk


class Daemon:
    """A node with everything that is served on it."""

    def __init__(
        self,
        config: Config,
        loop: asyncio.AbstractEventLoop,
        table: Sequence[Dialect] = TABLE,
        listeners: Listeners | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
        registry: Registry | None = None,
        zones: Zones | None = None,
    ) -> None:
        from penstock.cli.follow import Routing
        from penstock.clock import LoopClock
        from penstock.disk import LocalDisk
        from penstock.node.node import Node
        from penstock.resident import Resident

        self.config = config
        self._table = [dialect for dialect in table if dialect.starts(config)]
        self._ways_out = {dialect.name for dialect in table if dialect.is_way_out}
        self._listeners = listeners if listeners is not None else Listeners(config, endpoints(config, table))
        self._loop = loop
        self._disk: LocalDisk = LocalDisk(loop, group=config.data_mode == "group")
        try:
            chance = random or Random(os.urandom(32))
            self._shared = SharedLogs(config, loop) if config.cluster.name else None
            engine = self._shared.engine(self._disk) if self._shared is not None else None
            self.node: Node = Node(config, clock or LoopClock(loop), self._disk, chance, registry, table, engine, zones)
        except OSError as error:
            raise unusable(config.data_dir, error) from error
        #: Clients that nobody else closes.
        self._zones = self.node.zones if zones is None else None
        self._routing = Routing(self.node)
        self._resident = Resident(self.node.clock, self._run)
        loop.set_exception_handler(self._bug)

    async def listen(self) -> Sequence[Bound]:
        """Open for clients and return where."""
        from penstock.node.node import Served

        await self._routing.begin()
        self._listeners.open()
        for dialect in self._table:
            keys = [endpoint.key for endpoint in dialect.endpoints(self.config)]
            bound = {key: self._listeners.bound[key] for key in keys}
            try:
                running = await dialect.start(self.node, self.config, bound)
            except OSError as error:  # one that binds by itself could not
                own = next((each for each in bound.values() if each.sock is None), None)
                if own is None:
                    raise
                raise self._listeners.refusal(own.endpoint, error) from error
            self.node.served[dialect.name] = Served(running, list(bound.values()))
        every = list(self._listeners.bound.values())
        if self.node.share is not None:
            await self.node.share.start({each.endpoint.key: f"{each.endpoint.address}:{each.port}" for each in every})
            await self._settle_in(self.node.share)
        return every

    async def stop(self, say: Say = silent) -> bool:
        """Take nothing more in, let consumers finish what they hold, hang up, and write everything down.

        False if the disk does not take that, and threads still wait for it.
        """
        from penstock.units.quantity import format_duration

        if self.node.share is not None:
            say("  cluster: other nodes take over")
            await self._hand_over(self.node.share)
        last_first = list(reversed(self.node.served))
        names = sorted(last_first, key=self._ways_out.__contains__)
        say(f"  {', '.join(names)}: taking nothing more in")
        for name in names:
            await self.node.served[name].running.drain()
        self.node.stop()
        if held := self.node.held():
            patience = format_duration(self.config.node.drain_timeout_ns)
            them, acks = ("1 message is", "its ack") if held == 1 else (f"{held} messages are", "their acks")
            say(f"  consumers: {them} with them, waiting up to {patience} for {acks}")
        end = self._loop.time() + self.config.node.drain_timeout_ns / 1e9
        while self.node.held() and self._loop.time() < end:
            await asyncio.sleep(DRAIN_STEP_S)
        for served in reversed(self.node.served.values()):
            await served.running.close()
        self._listeners.close()
        self._resident.stop()
        await self._routing.close()
        if self._zones is not None:
            await self._zones.close()
        say(f"  topics: writing down {len(self.node.topics)}")
        whole = await self._end()
        if self.node.share is not None:
            await self.node.share.close()
        if self._shared is not None:
            await asyncio.to_thread(self._shared.close)
        self._disk.close(wait=whole)
        return whole

    async def _settle_in(self, share: ClusterShare) -> None:
        """Wait a moment for a part of the cluster: whoever hears that the node is ready makes topics at once."""
        end = self._loop.time() + SETTLE_S
        while not share.holdings.ready and self._loop.time() < end:
            await asyncio.sleep(DRAIN_STEP_S)

    async def _hand_over(self, share: ClusterShare) -> None:
        """Give this node's part of the cluster to the others; what they do not take in time, they find afterwards."""
        try:
            async with asyncio.timeout(self.config.cluster.lease_ns / 1e9):
                await share.leave()
        except TimeoutError:
            _log.warning("not all of the cluster's topics were handed over in time; others find them all the same")
        except PenstockError as error:
            _log.warning("not all of the cluster's topics were handed over: %s", error)

    async def _end(self) -> bool:
        """Write everything down; False if the disk does not answer any more."""
        from penstock.node.ending import Ending

        done = self._loop.create_future()
        ending = Ending(self.node, lambda: done.set_result(None))
        ending.start()
        while True:
            steps = ending.steps
            if (await asyncio.wait([done], timeout=STALL_S))[0]:
                return True
            said = f"{ending.closed} of {ending.shards} shards are closed"
            if ending.steps == steps:
                _log.error("%s, and the disk does not answer: the next start checks what was written", said)
                return False
            _log.info("%s", said)

    def _run(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        """Run something beside the loop."""
        self._loop.run_in_executor(None, work).add_done_callback(lambda _: done())

    def _bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception):
            self.node.report_bug("loop", error)
        else:
            loop.default_exception_handler(context)


class SharedLogs:
    """What logs on Kafka run on, from the start of a node of a cluster to its end."""

    def __init__(self, config: Config, loop: asyncio.AbstractEventLoop) -> None:
        from penstock.log.kafka.librdkafka import KafkaStore
        from penstock.log.kafka.threads import RealThreads

        self._store = KafkaStore(config.shared_log, config.cluster.name)
        self._threads = RealThreads(loop)

    def engine(self, cache: LocalDisk) -> Engine:
        """Return what a node needs of it."""
        from penstock.log.kafka.engine import Engine

        return Engine(self._store, self._threads, cache)

    def close(self) -> None:
        """Let go of it; blocking."""
        self._threads.close()
        self._store.close()


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


def on_reload(gate: Gate) -> None:
    """Take up changes of the users: soon by itself, at once by a signal."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, gate.reload)
    gate.watch()


def on_reopen() -> None:
    """Open the log's file anew at SIGUSR1, for whoever has renamed it."""
    from penstock.observe.logging import reopen

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, reopen)


def raise_open_files() -> None:
    """Take as many open files as this process may have: each connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # some containers lie about what is allowed; the limit stays then
        return
