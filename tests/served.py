"""A real node with its HTTP listeners on free ports, in a thread of its own, and a plain client for it."""

from __future__ import annotations

import asyncio
import http.client
import shutil
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Self, TypeVar

import msgspec
import uvloop

from penstock.api.config import ApiConfig
from penstock.api.server import ApiServer
from penstock.cli.daemon import Daemon
from penstock.clock import SECOND
from penstock.config import CallersConfig, Config, EventsConfig
from penstock.dialects.dory.config import DoryConfig
from penstock.dialects.dynamiq.config import DynamiqConfig
from penstock.dialects.flight.config import FlightConfig
from penstock.dialects.m3msg.config import M3MsgConfig
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.nsq.running import Nsq
from penstock.dialects.sqs.config import SqsConfig
from penstock.dialects.timeline.config import TimelineConfig
from penstock.http import Listener
from penstock.node.node import Node
from penstock.registry.registry import Registry

T = TypeVar("T")

#: Longer than anything here takes on a slow machine.
PATIENCE_S = 60.0

API = "/api/v1"


FREE = ApiConfig(port=0)
NSQ = NsqConfig()
NO_FLIGHT = FlightConfig(enabled=False)
NO_SQS = SqsConfig(enabled=False)
QUEUES = DynamiqConfig(port=0)
NO_M3MSG = M3MsgConfig(enabled=False)
NO_DORY = DoryConfig()
NO_TIMELINE = TimelineConfig(enabled=False)


class MovableClock:
    """The real clock, which a test may set forward."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.ahead_ns = 0

    def now(self) -> int:
        return time.time_ns() + self.ahead_ns

    def monotonic(self) -> int:
        return time.monotonic_ns() + self.ahead_ns

    def call_soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call)

    def call_at(self, monotonic_ns: int, call: Callable[[], None]) -> asyncio.TimerHandle:
        def due() -> None:
            if self.monotonic() < monotonic_ns:
                self._loop.call_later(0.0005, due)
            else:
                call()

        return self._loop.call_later(max(monotonic_ns - self.monotonic(), 0) / SECOND, due)


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.content)

    @property
    def code(self) -> str:
        """The code of an error."""
        return str(self.json["error"]["code"])

    @property
    def message(self) -> str:
        """The message of an error."""
        return str(self.json["error"]["message"])


class Served:
    """A node that listens. Every call on the node itself is made in its own thread."""

    def __init__(
        self,
        path: Path,
        *,
        ahead_s: int = 0,
        api: ApiConfig = FREE,
        nsq: NsqConfig = NSQ,
        flight: FlightConfig = NO_FLIGHT,
        sqs: SqsConfig = NO_SQS,
        dynamiq: DynamiqConfig = QUEUES,
        m3msg: M3MsgConfig = NO_M3MSG,
        dory: DoryConfig = NO_DORY,
        timeline: TimelineConfig = NO_TIMELINE,
        lookup: bool = False,
        seed: int = 1,
        **config: Any,
    ) -> None:
        self.path = path
        self._ahead_s = ahead_s
        self._seed = seed
        #: Of several nodes in one loop; None = one of its own.
        self.registry: Registry | None = None
        own = msgspec.structs.replace(
            nsq, tcp_port=0, http_port=0, https_port=0, lookup=lookup, lookup_tcp_port=0, lookup_http_port=0
        )
        self.config = Config(
            data_dir=str(path),
            parts=(api, own, flight, sqs, dynamiq, m3msg, dory, timeline),
            **{
                # It is written after a second: a slow machine would find one topic more in its lists than a fast one.
                "events": EventsConfig(mode="off"),
                "callers": CallersConfig(audit="off"),
                **config,
            },
        )
        self.node: Node
        self.clock: MovableClock
        self.api: ApiServer
        #: The HTTP side of NSQ, and all of it.
        self.nsq: Listener
        self.nsq_running: Nsq
        #: Where NSQ clients connect.
        self.tcp_port: int
        #: Every port by its key.
        self.ports: dict[str, int]
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread
        self._end: asyncio.Event
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> Self:
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="node")
        self._thread.start()
        started.result(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self, started: Future[None]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runner.run(self._life(started))
            except BaseException as error:
                if started.done():
                    raise
                started.set_exception(error)

    async def _life(self, started: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        self.clock = MovableClock(self._loop)
        self.clock.ahead_ns = self._ahead_s * SECOND
        random = Random(self._seed)
        daemon = Daemon(self.config, self._loop, clock=self.clock, random=random, registry=self.registry)
        self.node = daemon.node
        self.ports = {bound.endpoint.key: bound.port for bound in await daemon.listen()}
        self.tcp_port = self.ports["nsq.tcp_port"]
        api, nsq = (self.node.served[name].running for name in ("api", "nsq"))
        assert isinstance(api, ApiServer)
        assert isinstance(nsq, Nsq)
        self.api, self.nsq_running = api, nsq
        self.nsq = nsq.http["nsq.http_port"]
        started.set_result(None)
        await self._end.wait()
        await daemon.stop()

    def stop(self) -> None:
        """End it cleanly."""
        self.hang_up()
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive(), "the node did not end"

    # --- inside the node ------------------------------------------------------------------------------------------

    def do(self, work: Callable[[], T]) -> T:
        """Do something in the node's thread."""

        async def worker() -> T:
            return work()

        return self.run(worker())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the node's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def advance(self, seconds: float) -> None:
        """Let time pass for the node."""
        self.do(lambda: setattr(self.clock, "ahead_ns", self.clock.ahead_ns + int(seconds * SECOND)))

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds inside the node."""

        async def look() -> None:
            end = self._loop.time() + PATIENCE_S
            while not condition():
                assert self._loop.time() < end, "it never came true"
                await asyncio.sleep(0.001)

        self.run(look())

    def crash_copy(self, path: Path) -> Path:
        """Copy the data as a process killed at this moment would leave it."""

        def copy() -> None:
            for _ in range(100):
                try:
                    shutil.copytree(self.path, path)
                    return
                except shutil.Error:  # a thread of the node renamed a file meanwhile
                    shutil.rmtree(path)
            raise AssertionError("the data never stood still")

        self.do(copy)
        return path

    # --- from outside ---------------------------------------------------------------------------------------------

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        raw: bytes | str | None = None,
        headers: dict[str, str] | None = None,
        port: int = 0,
    ) -> Answer:
        """Send one request; a path that does not begin with / is below /api/v1/."""
        content = msgspec.json.encode(body) if body is not None else raw.encode() if isinstance(raw, str) else raw
        target = path if path.startswith("/") else f"{API}/{path}"
        kept = not port
        connection = self._kept() if kept else http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        try:
            connection.request(method, target, content, headers or {})
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        except BaseException:
            self.hang_up()
            raise
        finally:
            if not kept:
                connection.close()

    def get(self, path: str) -> Answer:
        """Ask for something."""
        return self.ask("GET", path)

    def post(self, path: str, body: object = None, **more: Any) -> Answer:
        """Ask to do something."""
        return self.ask("POST", path, body, **more)

    def publish(self, topic: str, *bodies: str, **columns: object) -> list[str]:
        """Publish bodies with the same columns; the topic is made. Return the ids."""
        lines = [msgspec.json.encode({"body": body, **columns}) for body in bodies]
        answer = self.post(f"topics/{topic}/messages?create=true", raw=b"\n".join(lines))
        assert answer.status == 200, answer
        ids: list[str] = answer.json["ids"]
        return ids

    def lease(self, topic: str, subscription: str, **body: object) -> list[dict[str, Any]]:
        """Lease messages."""
        answer = self.post(f"topics/{topic}/subscriptions/{subscription}/lease", {"max": 10, **body})
        assert answer.status == 200, answer
        messages: list[dict[str, Any]] = answer.json["messages"]
        return messages

    def _kept(self) -> http.client.HTTPConnection:
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self.api.port, timeout=PATIENCE_S)
        return self._connection

    def hang_up(self) -> None:
        """Close the client's connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
