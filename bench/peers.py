"""The servers of a benchmark: how each is started, asked to stop, killed and started again.

All listen on loopback on free ports and keep their data below `bench/build/data`, on the disk of the checkout.
This is the only module that knows a server's command line. Knows no row and no target.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.metadata
import itertools
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal
from urllib.request import urlopen

import msgspec

from bench import generator, measure, supply
from bench.generator import LoadFailed, Run
from bench.measure import Sample
from bench.ports import free_offset, free_port, owns_port
from bench.supply import Missing

Durability = Literal["memory", "os", "fsync"]

START_SECONDS_MAX = 30.0
#: nsqd writes its memory queues to disk when it is asked to stop.
STOP_SECONDS_MAX = 60.0
#: A node that stores nothing for so long will not.
STALL_SECONDS_MAX = 10.0

_topics = itertools.count(1)


class Server:
    """One server process with its own data directory; the same directory across restarts."""

    name: ClassVar[str]
    dialect: ClassVar[str]
    #: How long a start is waited for.
    start_seconds_max = START_SECONDS_MAX

    def __init__(self, durability: Durability = "os") -> None:
        self.durability = durability
        #: Raises Missing before anything is started.
        self.program = self.find()
        data = supply.BUILD / "data"
        data.mkdir(parents=True, exist_ok=True)
        self.data = Path(tempfile.mkdtemp(prefix=self.name + "-", dir=data))
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @classmethod
    def find(cls) -> Path:
        """Return its program; raises Missing where there is none."""
        raise NotImplementedError

    @classmethod
    def version(cls) -> str:
        """Return the first version number that its program prints."""
        said = subprocess.run([cls.find(), "--version"], capture_output=True, text=True, timeout=30, check=False)
        found = re.search(r"\d+(\.\d+)+", said.stdout + said.stderr)
        return found.group() if found else "unknown"

    def command(self) -> list[str]:
        raise NotImplementedError

    def topic(self) -> str:
        """Return the name of a topic that nobody used yet, ready to be published to."""
        return f"bench{next(_topics)}"

    def listening(self) -> tuple[int, ...]:
        """Return the ports that it has opened when it is ready."""
        return (self.port,)

    @property
    def pid(self) -> int:
        if self.process is None:
            raise RuntimeError(f"{self.name} is not running")
        return self.process.pid

    def start(self, wait: bool = True) -> None:
        """Start it, and unless told otherwise return when it takes connections."""
        with (self.data / "server.log").open("ab") as log:
            # The server ends with the benchmark, even when that is killed.
            prefix = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
            self.process = subprocess.Popen([*prefix, *self.command()], stdout=log, stderr=log, cwd=self.data)
        if wait:
            self.await_port()

    def stop(self) -> None:
        """Ask it to stop and wait until it has."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it as a power cut would, page cache kept."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def remove(self) -> None:
        """Kill it and throw its data away."""
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)

    def load(self, mode: str, **options: str | float) -> Run:
        """Run the load generator against it."""
        run = generator.load(mode, **{"dialect": self.dialect, "port": self.port, **options})
        # Another server may have the port; its numbers must not pass as this one's.
        if not owns_port(self.pid, self.port):
            raise LoadFailed(f"{self.name} does not listen on port {self.port}: {self._last_words()}")
        return run

    def sample(self, mode: str, **options: str | float) -> Sample:
        """Run the load generator and count the CPU time that it cost the server."""
        return self.measured(lambda: self.load(mode, **options))

    def pids(self) -> tuple[int, ...]:
        """Return the processes whose CPU time is its."""
        return (self.pid,)

    def measured(self, load: Callable[[], Run]) -> Sample:
        """Put some load on it and count the CPU time that this cost the server."""
        self._settle()
        before_ns = self._cpu_ns()
        run = load()
        self._settle()
        cpu_us = (self._cpu_ns() - before_ns) / 1000
        if run.redelivered:
            raise LoadFailed(f"{self.name} delivered {run.redelivered} messages again")
        messages = run.published or run.messages
        return Sample(messages / run.seconds, cpu_us / messages, run.p50_us, run.p99_us)

    def sample_fresh(self, mode: str, options: Mapping[str, str | float]) -> Sample:
        """Run the load generator on a topic that nobody used yet."""
        return self.sample(mode, topic=self.topic(), **options)

    def _settle(self) -> None:
        for pid in self.pids():
            measure.settle(pid)

    def _cpu_ns(self) -> int:
        return sum(measure.cpu_ns(pid) for pid in self.pids())

    def await_port(self) -> None:
        """Return when it takes connections."""
        end = time.monotonic() + self.start_seconds_max
        while time.monotonic() < end and self._alive():
            if all(owns_port(self.pid, port) for port in self.listening()):
                return
            time.sleep(0.02)
        raise Missing(f"{self.name} did not start: {self._last_words()}")

    def _alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def _last_words(self) -> str:
        lines = (self.data / "server.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def _end(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        self.process.send_signal(number)
        try:
            self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


class Nsqd(Server):
    """nsqd 1.3.0 with its defaults: 10,000 messages of a queue in memory, the rest in files."""

    name = "nsqd"
    dialect = "nsq"
    #: Options beside the addresses.
    extra: ClassVar[tuple[str, ...]] = ()

    def __init__(self, durability: Durability = "os") -> None:
        super().__init__(durability)
        self.http_port = free_port()

    @classmethod
    def find(cls) -> Path:
        return supply.nsqd()

    def command(self) -> list[str]:
        addresses = [f"--tcp-address=127.0.0.1:{self.port}", f"--http-address=127.0.0.1:{self.http_port}"]
        return [str(self.program), f"--data-path={self.data}", *addresses, *self.extra]


class NsqdInMemory(Nsqd):
    """nsqd that never writes a queue to a file: faster than its defaults, and it keeps nothing."""

    name = "nsqd in memory"
    extra = ("--mem-queue-size=100000000",)


class NsqdSynced(Nsqd):
    """nsqd that writes every message to a file and syncs it, which it does before it answers."""

    name = "nsqd synced"
    extra = ("--mem-queue-size=0", "--sync-every=1")


class Redis(Server):
    """Redis Streams with an append-only file: written before the reply (os), or synced too (fsync).

    Snapshots and rewrites of the file are off, which favours it.
    """

    name = "redis"
    dialect = "redis"

    @classmethod
    def find(cls) -> Path:
        return supply.redis()

    def command(self) -> list[str]:
        listen = ["--port", str(self.port), "--bind", "127.0.0.1", "--daemonize", "no", "--dir", str(self.data)]
        sync = "always" if self.durability == "fsync" else "no"
        keep = ["--save", "", "--appendonly", "yes", "--appendfsync", sync, "--auto-aof-rewrite-percentage", "0"]
        return [str(self.program), *listen, *keep]


class Nats(Server):
    """NATS JetStream with file storage, synced in the background as by default."""

    name = "nats"
    dialect = "nats"

    @classmethod
    def find(cls) -> Path:
        return supply.nats()

    def command(self) -> list[str]:
        return [str(self.program), "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.data)]

    def topic(self) -> str:
        """Return a fresh subject with a stream behind it."""
        name = super().topic()
        stream = {"name": name, "subjects": [name], "storage": "file", "num_replicas": 1}
        body = msgspec.json.encode(stream)
        hello = b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB _INBOX.a 1\r\n'
        request = b"PUB $JS.API.STREAM.CREATE.%s _INBOX.a %d\r\n%s\r\n" % (name.encode(), len(body), body)
        with socket.create_connection(("127.0.0.1", self.port), 5) as line:
            line.sendall(hello + request)
            answer = b""
            while b'"type"' not in answer:
                answer += line.recv(65536) or b'"type" connection closed'
        if b'"created"' not in answer:
            raise Missing(f"nats made no stream: {answer[-200:].decode(errors='replace')}")
        return name


#: A broker that is a controller, too, with the defaults of Kafka but for what one, or a few on one machine, need.
KAFKA_PROPERTIES = """\
process.roles=broker,controller
node.id={number}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
controller.quorum.voters={voters}
log.dirs={data}/log
num.partitions=2
default.replication.factor={copies}
min.insync.replicas={in_sync}
offsets.topic.replication.factor={copies}
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={in_sync}
share.coordinator.state.topic.replication.factor={copies}
share.coordinator.state.topic.min.isr={in_sync}
"""
KAFKA_LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %m%n
"""


class Kafka(Server):
    """Apache Kafka 4: one broker, or one of several; a topic is made by its first publish and has two partitions."""

    name = "kafka"
    #: Java on a machine that is busy with others.
    start_seconds_max = 120.0

    def __init__(self, durability: Durability = "os") -> None:
        super().__init__(durability)
        self.java = supply.java()
        self.settings = self.data / "server.properties"
        self.controller = free_port()
        # It must not begin with a dash, which Kafka takes for an option.
        self.cluster = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        self.join([self])
        (self.data / "log4j2.properties").write_text(KAFKA_LOGGING)

    def join(self, brokers: Sequence[Kafka]) -> None:
        """Be one of several brokers, before it is started; a topic has a copy on each of them, three at most."""
        self.cluster, copies = brokers[0].cluster, min(3, len(brokers))
        voters = ",".join(f"{number}@127.0.0.1:{each.controller}" for number, each in enumerate(brokers, 1))
        places = {"number": brokers.index(self) + 1, "port": self.port, "controller": self.controller}
        counts = {"copies": copies, "in_sync": max(1, copies - 1)}
        self.settings.write_text(KAFKA_PROPERTIES.format(voters=voters, data=self.data, **places, **counts))

    @classmethod
    def find(cls) -> Path:
        supply.java()
        return supply.kafka()

    @classmethod
    def version(cls) -> str:
        """Return the version that the broker's jar has in its name; a broker that was never fetched has none."""
        for jar in supply.place_of_jars("kafka").glob("kafka_2.13-*.jar"):
            return jar.stem.rpartition("-")[2]
        raise Missing("Kafka was not fetched")

    def command(self) -> list[str]:
        return [*self._java("-Xms512m", "-Xmx1g"), "kafka.Kafka", str(self.settings)]

    def start(self, wait: bool = True) -> None:
        """Start it; its directory is made ready before the first time."""
        if not (self.data / "log").exists():
            words = ["kafka.tools.StorageTool", "format", "-t", self.cluster, "-c", str(self.settings)]
            made = subprocess.run([*self._java("-Xmx128m"), *words], capture_output=True, text=True, check=False)
            if made.returncode:
                raise Missing(f"kafka could not make its directory ready: {made.stderr.strip()[-300:]}")
        super().start(wait)

    def _java(self, *switches: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.data / 'log4j2.properties'}"
        return [str(self.java), *switches, logging, "-cp", f"{self.program}/*"]


#: What ElasticMQ is told: where it listens, Amazon's limits, and no page of statistics.
ELASTICMQ_CONFIG = """\
include classpath("application.conf")
node-address {{ protocol = http, host = localhost, port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = "127.0.0.1", sqs-limits = strict }}
rest-stats {{ enabled = false }}
"""


class ElasticMq(Server):
    """ElasticMQ: SQS in memory, in a Java that may use as much of it as it likes up to 4 GB."""

    name = "elasticmq"
    dialect = "sqs"

    def __init__(self, durability: Durability = "os") -> None:
        super().__init__(durability)
        self.java = supply.java()
        self.settings = self.data / "elasticmq.conf"
        self.settings.write_text(ELASTICMQ_CONFIG.format(port=self.port))

    @property
    def sqs_port(self) -> int:
        return self.port

    @classmethod
    def find(cls) -> Path:
        supply.java()
        return supply.elasticmq()

    @classmethod
    def version(cls) -> str:
        """Return the version that its jar has in its name; one that was never fetched has none."""
        for jar in supply.place_of_jars("elasticmq").glob("elasticmq-server_2.13-*.jar"):
            return jar.stem.rpartition("-")[2]
        raise Missing("ElasticMQ was not fetched")

    def command(self) -> list[str]:
        words = [f"-Dconfig.file={self.settings}", "-cp", f"{self.program}/*", "org.elasticmq.server.Main"]
        return [str(self.java), "-Xmx4g", *words]

    def live_bytes(self) -> int:
        """Return what its heap holds that is not garbage."""
        told = self._jcmd("GC.class_histogram").strip().splitlines()[-1]  # which collects before it counts
        return int(told.split()[2])

    def _jcmd(self, command: str) -> str:
        words = ["jcmd", str(self.pid), command]
        try:
            return subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout
        except (OSError, subprocess.SubprocessError) as error:
            raise Missing(f"what Java's heap holds cannot be asked: {error}") from error


#: The least that puts a message behind a path into Redis: one route, no middleware, and a client that is a dozen lines.
STARLETTE_APP = """\
import asyncio, os
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

lines = []

async def enqueue(request):
    body = await request.body()
    reader, writer = lines.pop() if lines else await asyncio.open_connection("127.0.0.1", int(os.environ["REDIS_PORT"]))
    words = b"XADD", request.path_params["queue"].encode(), b"*", b"b", body
    writer.write(b"*5\\r\\n" + b"".join([b"$%d\\r\\n%b\\r\\n" % (len(word), word) for word in words]))
    size = int((await reader.readline())[1:])
    told = await reader.readexactly(size + 2)
    lines.append((reader, writer))
    return PlainTextResponse(told[:-2])

app = Starlette(routes=[Route("/v1/queues/{queue}/message", enqueue, methods=["PUT"])])
"""


class Starlette(Server):
    """Redis behind a bare handler: Starlette on uvicorn with uvloop and httptools, one process, without its log."""

    name = "starlette + redis"
    dialect = "dynamiq"

    def __init__(self, durability: Durability = "os") -> None:
        super().__init__(durability)
        self.redis = Redis(durability)
        (self.data / "enqueue.py").write_text(STARLETTE_APP)

    @classmethod
    def find(cls) -> Path:
        return supply.uvicorn()

    def command(self) -> list[str]:
        place = ["env", f"REDIS_PORT={self.redis.port}", str(self.program), "enqueue:app", "--port", str(self.port)]
        return [*place, "--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning"]

    def start(self, wait: bool = True) -> None:
        self.redis.start()
        super().start(wait)

    def stop(self) -> None:
        super().stop()
        self.redis.stop()

    def kill(self) -> None:
        super().kill()
        self.redis.kill()

    def remove(self) -> None:
        super().remove()
        self.redis.remove()

    def pids(self) -> tuple[int, ...]:
        return (self.pid, self.redis.pid)


class Penstock(Server):
    """This project's node; topics made by the first publish get the durability it was started with."""

    name = "penstock"
    dialect = "nsq"
    nsq_port: ClassVar[int] = 4150
    #: Every port of the node; an offset is good when all of them are free.
    ports: ClassVar[tuple[int, ...]] = (4150, 4151, 4152, 4160, 4161, 7070, 7071, 7507, 8081, 9000, 9324)

    def __init__(self, durability: Durability = "os") -> None:
        super().__init__(durability)
        self.offset = free_offset(self.ports)
        self.port = self.nsq_port + self.offset
        self.http_port = self.port + 1
        self.flight_port = 7071 + self.offset
        self.dynamiq_port = 8081 + self.offset
        self.sqs_port = 9324 + self.offset
        self.node_data = self.data / "node"

    @classmethod
    def find(cls) -> Path:
        return supply.penstock()

    def listening(self) -> tuple[int, ...]:
        return (self.port, self.flight_port)

    def command(self) -> list[str]:
        place = ["--data", str(self.node_data), "--port-offset", str(self.offset)]
        return [str(self.program), "up", *place, "--durability", self.durability, "--quiet"]


class PenstockM3Msg(Penstock):
    """The same node, spoken to as M3's producers do; its one topic is there for all turns."""

    dialect = "m3msg"
    nsq_port = 7507

    def __init__(self, durability: Durability = "os") -> None:
        super().__init__(durability)
        self.http_port = 4151 + self.offset


class PenstockRelay(PenstockM3Msg):
    """The same, with a consumer service on a port of its own that gets whatever comes in."""

    shards: ClassVar[int] = 64

    def __init__(self, durability: Durability = "os") -> None:
        super().__init__(durability)
        self.service_port = free_port()
        topology, config = self.data / "m3.toml", self.data / "penstock.toml"
        topology.write_text(
            f"[topics.aggregated_metrics]\nshards = {self.shards}\n"
            '[[topics.aggregated_metrics.services]]\nname = "service"\n'
            f'[placements.service.instances.a]\nendpoint = "127.0.0.1:{self.service_port}"\n'
        )
        # A topic in memory drops its oldest rows where there is no room; the load must not be more than fits.
        config.write_text(
            f'[m3msg_relay]\ntopics = ["aggregated_metrics"]\ntopology = "{topology}"\n'
            '[memory]\nbudget_bytes = "4GiB"\ntopic_bytes = "1GiB"\n'
        )

    def command(self) -> list[str]:
        return [*super().command(), "--config", str(self.data / "penstock.toml")]

    def through(self, count: int, size: int) -> Run:
        """Send so many metrics in, and take the time from the first of them to when the service acked the last."""
        service = generator.started("service", port=self.service_port, count=count)
        sent = generator.load("pub", dialect=self.dialect, port=self.port, topic="any", size=size, count=count)
        return Run(count, generator.finished(service).ended_at - sent.first_at)


class PenstockDory(Penstock):
    """The same node with Dory's two UNIX sockets."""

    def __init__(self, durability: Durability = "os") -> None:
        super().__init__(durability)
        self.paths = {"datagrams": self.data / "datagrams.socket", "stream": self.data / "stream.socket"}

    def command(self) -> list[str]:
        sockets = {"unix_datagram_path": self.paths["datagrams"], "unix_stream_path": self.paths["stream"]}
        settings = {**sockets, "http": "false"}
        return [*super().command(), *(f"--set=dory.{key}={value}" for key, value in settings.items())]

    def stored(self, mode: str, count: int, size: int) -> Run:
        """Send so many messages to a new topic and wait until it has them all: nothing tells a sender so."""
        topic = self.topic()
        path = str(self.paths[mode])
        sent = generator.load(mode, dialect="dory", path=path, topic=topic, count=count, size=size)
        self.await_stored(topic, count)
        return Run(count, time.monotonic() - sent.first_at)

    def await_stored(self, topic: str, count: int) -> None:
        """Wait until a topic has so many messages; one that gets no more of them has lost some."""
        found, moved = 0, time.monotonic()
        while found != count:
            before, found = found, self._published(topic)
            if found != before:
                moved = time.monotonic()
            elif time.monotonic() - moved > STALL_SECONDS_MAX:
                raise LoadFailed(f"{found} of {count} messages were stored")
            time.sleep(0.01)

    def _published(self, topic: str) -> int:
        url = f"http://127.0.0.1:{self.http_port}/stats?format=json&include_mem=false&topic={topic}"
        with urlopen(url, timeout=STALL_SECONDS_MAX) as answer:
            found: int = sum(each["message_count"] for each in msgspec.json.decode(answer.read())["topics"])
        return found


class Fleet:
    """The servers of one row that could be started, and why the others could not."""

    def __init__(self) -> None:
        self.servers: dict[str, Server] = {}
        self.missing: dict[str, str] = {}

    def turns(self, mode: str, options: Mapping[str, str | float]) -> dict[str, Callable[[], Sample]]:
        """Return one run of the load generator on a fresh topic per server, under its name."""
        return self.each(lambda server: server.sample_fresh(mode, options))

    def each(self, turn: Callable[[Server], Sample]) -> dict[str, Callable[[], Sample]]:
        """Return one turn per server, under its name."""
        return {name: partial(turn, server) for name, server in self.servers.items()}


@contextlib.contextmanager
def fleet(*kinds: type[Server], durability: Durability = "os") -> Iterator[Fleet]:
    """Start one server of each kind for a row; a kind that cannot be had is noted as missing."""
    made = Fleet()
    try:
        for kind in kinds:
            try:
                server = made.servers[kind.name] = kind(durability)
                server.start()
            except Missing as reason:
                made.missing[kind.name] = str(reason)
                broken = made.servers.pop(kind.name, None)
                if broken is not None:
                    broken.remove()
        yield made
    finally:
        for server in made.servers.values():
            server.remove()


def versions() -> dict[str, str]:
    """Return the version of every server that this machine has, and of Spark."""
    found = {}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found["spark"] = importlib.metadata.version("pyspark")
    for kind in (Nsqd, Redis, Nats, Kafka, ElasticMq, Starlette, Penstock):
        with contextlib.suppress(Missing):
            found[kind.name] = kind.version()
    return found
