"""Real Kafka brokers on free ports: one, or three, that can be killed, paused and started again.

Every broker is its own controller. It listens in the clear (`port`), for users (`sasl_port`), with TLS (`tls_port`) and
with both (`sasl_tls_port`); the users are USERS, known to PLAIN and to both SCRAMs. Read back with librdkafka.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewTopic

from bench.ports import free_ports
from tests.signals import stand_still

#: Longer than anything here takes on a slow machine.
PATIENCE_S = 180.0
#: What every user's password is; the names are plain, because Kafka's SCRAM takes no others.
USERS: Mapping[str, str] = {"alice": "alice's secret", "bjorn": "päss=wörd,"}
#: So long a login by SCRAM-SHA-256 in the clear holds; others hold for ever.
LOGIN_MS = 3000

_LISTENERS = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL", "CONTROLLER")
#: Quick to start rather than quick in the long run.
_JAVA = ("-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
#: Sessions are short, so that the others learn soon that one is gone.
_PROPERTIES = """\
process.roles=broker,controller
node.id={id}
listeners={listeners}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT
controller.quorum.voters={voters}
log.dirs={data}
offsets.topic.num.partitions=4
offsets.topic.replication.factor={copies}
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={in_sync}
share.coordinator.state.topic.replication.factor={copies}
share.coordinator.state.topic.min.isr={in_sync}
auto.create.topics.enable={autocreate}
group.initial.rebalance.delay.ms=0
log.cleaner.enable=false
log.retention.ms=-1
num.io.threads=4
num.network.threads=2
broker.session.timeout.ms=6000
broker.heartbeat.interval.ms=1000
controller.quorum.election.timeout.ms=1000
controller.quorum.fetch.timeout.ms=2000
controlled.shutdown.enable={controlled}
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
{logins}
ssl.keystore.type=PEM
ssl.keystore.location={key}
ssl.client.auth=none
"""
_LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %m%n
"""


def wait_for(holds: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.02)


class Broker:
    """One broker."""

    def __init__(self, jars: Path, folder: Path, number: int, ports: list[int], host: str = "127.0.0.1") -> None:
        self.id = number
        self.host = host
        self.folder = folder
        self.port, self.sasl_port, self.tls_port, self.sasl_tls_port, self.controller_port = ports
        self._jars = jars
        self._process: subprocess.Popen[bytes] | None = None

    def java(self, *words: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.folder.parent / 'log4j2.properties'}"
        return ["java", *_JAVA, logging, "-cp", f"{self._jars}/*", *words]

    def start(self) -> None:
        """Start it, or start it again with the data it has."""
        # It ends with the tests, even when those are killed.
        prefix = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        command = self.java("kafka.Kafka", str(self.folder / "server.properties"))
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen([*prefix, *command], stdout=log, stderr=log)

    @property
    def is_started(self) -> bool:
        return self._process is not None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def answers(self) -> bool:
        """Tell whether somebody listens."""
        assert self._process is not None
        assert self._process.poll() is None, self.log()[-3000:]
        try:
            socket.create_connection((self.host, self.port), 1).close()
        except OSError:
            return False
        return True

    def log(self) -> str:
        """Return what it wrote."""
        return (self.folder / "log").read_text(errors="replace")

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end, and wait until it has: its leaderships move first."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Stop it, and wait until it stands."""
        if self._process is not None:
            stand_still(self._process)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)


class Brokers:
    """One Kafka of one broker or several, started and well."""

    def __init__(self, jars: Path, folder: Path, count: int = 1, host: str = "127.0.0.1") -> None:
        self.folder = folder
        ports = free_ports(len(_LISTENERS) * count)
        self.members = [
            Broker(jars, folder / f"b{each + 1}", each + 1, ports[each::count], host) for each in range(count)
        ]
        self.ca = folder / "ca.pem"
        self._admin: AdminClient | None = None
        self._prepare()
        try:
            for member in self.members:
                member.start()
            self.wait()
            self._enrol()
        except BaseException:
            self.close()
            raise

    @property
    def addresses(self) -> str:
        """Where they listen in the clear, as clients of Kafka take it."""
        return ",".join(member.address for member in self.members)

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.addresses, "log_level": 0})
        return self._admin

    def wait(self) -> None:
        """Wait until every broker that was not killed takes connections, and all of them know of each other."""
        started = [member for member in self.members if member.is_started]
        for member in started:
            wait_for(member.answers, f"Kafka {member.id}")
        if 2 * len(started) > len(self.members):
            ids = {member.id for member in started}
            wait_for(lambda: ids <= self._known(), f"Kafka's brokers {ids} to know each other")

    def heal(self) -> None:
        """Let all brokers run again."""
        sick = False
        for member in self.members:
            member.resume()
            if not member.is_started:
                member.start()
                sick = True
        if sick:
            self.wait()

    def close(self) -> None:
        self._admin = None
        for member in self.members:
            member.resume()
            member.kill()

    def create(self, topic: str, partitions: int = 1, copies: int = 1, **config: str | int) -> str:
        """Make a topic and wait until every partition of it has a leader; `min_insync_replicas` is a setting's name."""
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        new = NewTopic(topic, num_partitions=partitions, replication_factor=copies, config=settings)
        self.admin.create_topics([new], operation_timeout=PATIENCE_S)[topic].result(PATIENCE_S)
        wait_for(lambda: len(self.leaders(topic)) == partitions, f"leaders of {topic}")
        wait_for(lambda: self._lead(topic, partitions), f"leaders of {topic} to know that they are")
        return topic

    def delete(self, topic: str) -> None:
        """Delete a topic and wait until nobody lists it."""
        self.admin.delete_topics([topic], operation_timeout=PATIENCE_S)[topic].result(PATIENCE_S)
        wait_for(lambda: topic not in self.admin.list_topics(timeout=PATIENCE_S).topics, f"{topic} to be gone")

    def configure(self, topic: str, name: str, value: str) -> None:
        """Change a setting of a topic."""
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)

    def leaders(self, topic: str) -> dict[int, int]:
        """Return which broker leads each partition that has a leader and no error."""
        try:
            found = self.admin.list_topics(topic, timeout=10).topics[topic]
        except KafkaException:
            return {}
        return {each.id: each.leader for each in found.partitions.values() if each.leader >= 0 and each.error is None}

    def leader(self, topic: str, partition: int = 0) -> Broker:
        """Return the broker that leads a partition."""
        wait_for(lambda: partition in self.leaders(topic), f"a leader of {topic} {partition}")
        return self.members[self.leaders(topic)[partition] - 1]

    def in_sync(self, topic: str, partition: int = 0) -> set[int]:
        """Return the brokers that have all of a partition."""
        return set(self.admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions[partition].isrs)

    def read(self, topic: str) -> list[Message]:
        """Return all messages that a topic has now, partition by partition, as librdkafka reads them."""
        settings = {"bootstrap.servers": self.addresses, "group.id": "unused", "enable.auto.commit": False}
        consumer = Consumer({**settings, "check.crcs": True, "enable.partition.eof": True, "log_level": 0})
        found: list[Message] = []
        try:
            unread = set(self.leaders(topic))
            consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in unread])
            deadline = time.monotonic() + PATIENCE_S
            while unread:
                assert time.monotonic() < deadline, f"read {len(found)} messages of {topic} and no more"
                for message in consumer.consume(10_000, timeout=0.05):
                    error = message.error()
                    if error is None:
                        found.append(message)
                    elif error.code() == KafkaError._PARTITION_EOF:
                        unread.discard(message.partition())
                    else:
                        assert error.retriable(), error
        finally:
            consumer.close()
        return sorted(found, key=lambda each: (each.partition() or 0, each.offset() or 0))

    def kcat(self, topic: str, partition: int = 0) -> list[str]:
        """Return what kcat reads of a partition: key, value, time and headers of each message."""
        words = ["-C", "-q", "-t", topic, "-p", str(partition), "-o", "beginning", "-e", "-f", "%k|%s|%T|%h\\n"]
        done = subprocess.run(
            ["kcat", "-b", self.addresses, *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def dump(self, topic: str, partitions: Iterable[int] = (0,)) -> str:
        """Return what Kafka's own kafka-dump-log says of partitions' first segments, every record included."""
        files = [
            str(self.leader(topic, each).folder / "data" / f"{topic}-{each}" / f"{0:020}.log") for each in partitions
        ]
        leader = self.members[0]
        words = ["org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--files", ",".join(files)]
        done = subprocess.run(leader.java(*words), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _lead(self, topic: str, partitions: int) -> bool:
        """Tell whether all leaders of a topic act as such: they know of it a little later than others."""
        places = {TopicPartition(topic, each): OffsetSpec.latest() for each in range(partitions)}  # type: ignore[no-untyped-call]
        try:
            for found in self.admin.list_offsets(places, request_timeout=10).values():
                found.result(PATIENCE_S)
        except KafkaException:
            return False
        return True

    def _known(self) -> set[int]:
        try:
            return set(self.admin.list_topics(timeout=5).brokers)
        except KafkaException:
            return set()

    def _prepare(self) -> None:
        (self.folder / "log4j2.properties").write_text(_LOGGING)
        key = self._certificate()
        count = len(self.members)
        voters = ",".join(f"{each.id}@{each.host}:{each.controller_port}" for each in self.members)
        for member in self.members:
            member.folder.mkdir()
            ports = (member.port, member.sasl_port, member.tls_port, member.sasl_tls_port, member.controller_port)
            text = _PROPERTIES.format(
                id=member.id,
                listeners=",".join(
                    f"{name}://{member.host}:{port}" for name, port in zip(_LISTENERS, ports, strict=True)
                ),
                voters=voters,
                data=member.folder / "data",
                copies=count,
                in_sync=max(1, count - 1),
                autocreate=str(count == 1).lower(),
                controlled=str(count > 1).lower(),
                logins=_logins(),
                key=key,
            )
            (member.folder / "server.properties").write_text(text, encoding="latin-1")  # as Java reads it
        self._format(_new_id())

    def _format(self, cluster: str) -> None:
        """Have one directory made ready, and the others after it: a Java less to wait for each."""
        first, *others = self.members
        words = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(first.folder / "server.properties")]
        done = subprocess.run(first.java(*words), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        for member in others:
            data = shutil.copytree(first.folder / "data", member.folder / "data")
            lines = (data / "meta.properties").read_text().splitlines()
            own = [line for line in lines if not line.startswith(("node.id=", "directory.id="))]
            own += [f"node.id={member.id}", f"directory.id={_new_id()}"]
            (data / "meta.properties").write_text("\n".join(own) + "\n")

    def _enrol(self) -> None:
        """Make the users of both SCRAMs."""
        for way in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            new: list[UserScramCredentialAlteration] = [
                UserScramCredentialUpsertion(user, ScramCredentialInfo(way, 4096), password.encode())
                for user, password in USERS.items()
            ]
            for made in self.admin.alter_user_scram_credentials(new).values():
                made.result(PATIENCE_S)

    def _certificate(self) -> Path:
        """Make a certificate that is its own authority, for localhost and 127.0.0.1."""
        key, both = self.folder / "key.pem", self.folder / "both.pem"
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=localhost"),
                *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
                *("-keyout", str(key), "-out", str(self.ca)),
            ],
            check=True,
            capture_output=True,
            timeout=PATIENCE_S,
            env={**os.environ, "RANDFILE": str(self.folder / "rnd")},
        )
        both.write_bytes(key.read_bytes() + self.ca.read_bytes())
        return both


def _new_id() -> str:
    """Return what Kafka takes for a name of a cluster or a directory."""
    # It must not begin with a dash, which would be taken for an option.
    return base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")


def _logins() -> str:
    """Return who may log in by PLAIN, and that SCRAM's users are Kafka's own."""
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required " + " ".join(
        f'user_{user}="{password}"' for user, password in USERS.items()
    )
    lines = []
    for listener in ("sasl_plaintext", "sasl_ssl"):
        lines.append(f"listener.name.{listener}.plain.sasl.jaas.config={plain};")
        for way in ("256", "512"):
            module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            lines.append(f"listener.name.{listener}.scram-sha-{way}.sasl.jaas.config={module}")
    lines.append(f"listener.name.sasl_plaintext.scram-sha-256.connections.max.reauth.ms={LOGIN_MS}")
    return "\n".join(lines)
