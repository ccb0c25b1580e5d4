"""A node with all its listeners, and somebody who says anything to it and looks whether it is well afterwards."""

from __future__ import annotations

import shutil
import socket
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import pyarrow as pa
import pyarrow.flight as flight

from penstock.cli import daemon
from penstock.config import ClusterConfig
from penstock.config.tree import LimitsConfig
from penstock.dialects.dory.config import DATAGRAM, STREAM, DoryConfig
from penstock.dialects.flight.config import FlightConfig
from penstock.dialects.m3msg.config import M3MsgConfig
from penstock.dialects.sqs.config import SqsConfig
from penstock.dialects.timeline.config import TimelineConfig
from tests.cluster.fake_store import FakeStore
from tests.fuzz.mutation import pieces
from tests.peers.pair import FakeLogs
from tests.served import Served

#: Longer than the node thinks about anything that fits into an example.
ANSWER_S = 20.0

#: Clients make up names of topics all the time here; more than these are refused, as they shall be.
LIMITS = LimitsConfig(topics=40, shards=400, topic_shards=8)

#: Sockets with a name instead of a port.
UNIX = {DATAGRAM: socket.SOCK_DGRAM, STREAM: socket.SOCK_STREAM}

#: What is put, where a command says so.
BODY = pa.RecordBatch.from_pydict({"body": [b"a", b"b"]})


class Sick(AssertionError):
    """The node did not bear what it was told."""


class Victim:
    """A node that has to bear everything."""

    def __init__(self, path: Path) -> None:
        flown, queues, m3msg = FlightConfig(port=0), SqsConfig(port=0), M3MsgConfig(port=0)
        self._folder = tempfile.mkdtemp(prefix="penstock-fuzz-")  # names of sockets are short
        self._sockets = {key: f"{self._folder}/{kind.name}" for key, kind in UNIX.items()}
        dory = DoryConfig(
            tcp=True,
            tcp_port=0,
            http_port=0,
            unix_datagram_path=self._sockets[DATAGRAM],
            unix_stream_path=self._sockets[STREAM],
        )
        timeline = TimelineConfig(port=0, auto_create=True)
        path.mkdir(parents=True)
        secret = path / "secret"
        secret.write_text("known to the nodes of this cluster, and to nobody here\n")
        cluster = ClusterConfig(name="test", node="n1", port=0, slots=1, secret_file=str(secret))
        dialects: dict[str, Any] = {"flight": flown, "sqs": queues, "m3msg": m3msg, "dory": dory, "timeline": timeline}
        self._served = Served(path, lookup=True, limits=LIMITS, cluster=cluster, **dialects)
        self._flight: flight.FlightClient | None = None

    def __enter__(self) -> Self:
        with patch.object(daemon, "SharedLogs", partial(FakeLogs, FakeStore())):
            self._served.__enter__()
        self._flight = flight.connect(f"grpc://127.0.0.1:{self._served.ports['flight.port']}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._flight is not None:
            self._flight.close()
        self._served.__exit__()
        shutil.rmtree(self._folder)

    @property
    def node_bugs(self) -> int:
        """What the node itself calls a bug."""
        return self._served.node.bugs

    def tell(self, port: str, data: bytes, cuts: list[float]) -> None:
        """Say something to a listener, and hear what it says until it hangs up."""
        with self._line(port) as line:
            try:
                for piece in pieces(data, cuts):
                    line.sendall(piece)
                line.shutdown(socket.SHUT_WR)
                end = time.monotonic() + ANSWER_S
                while port != DATAGRAM and line.recv(1 << 16):  # where nobody is answered
                    if time.monotonic() > end:
                        raise Sick(f"{port} still talks {ANSWER_S} s after the last word")
            except TimeoutError:
                raise Sick(f"{port} neither answers nor hangs up for {ANSWER_S} s") from None
            except OSError:
                pass  # it hung up first
        self._check(port)

    def _line(self, port: str) -> socket.socket:
        if port in UNIX:
            line = socket.socket(socket.AF_UNIX, UNIX[port])
            line.settimeout(ANSWER_S)
            line.connect(self._sockets[port])
            return line
        line = socket.create_connection(("127.0.0.1", self._served.ports[port]), ANSWER_S)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return line

    def order(self, data: bytes, kind: str) -> None:
        """Send a document over Flight: an action's body, or the command of a put or an exchange."""
        client = self._flight
        assert client is not None
        options = flight.FlightCallOptions(timeout=ANSWER_S)
        try:
            if kind == "info":
                client.get_flight_info(flight.FlightDescriptor.for_command(data), options)
            elif kind == "put":
                writer, _ = client.do_put(flight.FlightDescriptor.for_command(data), BODY.schema, options)
                with writer:
                    writer.write_batch(BODY)
            elif kind == "exchange":
                writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(data), options)
                with writer:
                    writer.done_writing()
                    reader.read_all()
            elif kind == "get":
                client.do_get(flight.Ticket(data), options).read_all()
            else:
                list(client.do_action(flight.Action(kind, data), options))
        except flight.FlightTimedOutError:
            raise Sick(f"Flight {kind} had no answer for {ANSWER_S} s") from None
        except flight.FlightInternalError as error:
            raise Sick(f"Flight {kind}: {error}") from None
        except (flight.FlightError, OSError, ValueError, KeyError, NotImplementedError):
            pass  # a refusal
        self._check(f"Flight {kind}")

    def _check(self, who: str) -> None:
        if self.node_bugs:
            entries = self._served.do(lambda: self._served.node.ledger.entries("bug"))
            said = [sample.content for entry in entries for sample in entry.samples]
            raise Sick(f"{who} met a bug of the node: {said[-1:]}")

    def check_well(self) -> None:
        """Publish and consume, as somebody else does meanwhile."""
        served, name = self._served, "well"
        if served.get(f"topics/{name}/subscriptions/s").status == 404:
            served.post("topics", {"name": name})
            served.post(f"topics/{name}/subscriptions", {"name": "s"})
        ids = served.publish(name, "a")
        got = served.lease(name, "s")
        served.post(f"topics/{name}/subscriptions/s/ack", {"receipts": [message["receipt"] for message in got]})
        if [message["id"] for message in got] != ids:
            raise Sick(f"published {ids}, and a consumer got {got}")
