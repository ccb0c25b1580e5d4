"""Layers under an NSQ session: TLS, snappy and deflate as IDENTIFY grants them, in their order, on a live stream."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.dialects.nsq.codec import OK
from penstock.errors import ConfigError
from penstock.wire.layers import Deflate, Layer, Snappy, Stack
from penstock.wire.tls import Tls
from tests.nsq.certificates import certificates
from tests.nsq.parts import Broker, Client, pub, sized


class Layered(Client):
    """A client that goes through the upgrades it is granted."""

    def __init__(self, broker: Broker, *, step: int = 0) -> None:
        self.raw = bytearray()
        self.stack: Stack | None = None
        self.step = step
        self.context = certificates().client_context()
        super().__init__(broker)
        self.send(b"  V2")

    def write(self, data: Any) -> None:
        if self.stack is None:
            self.raw += memoryview(data)
        else:
            self.out += self.stack.receive(bytes(memoryview(data)))

    def send(self, data: bytes) -> None:
        data = self.stack.send(data) if self.stack is not None else data
        step = self.step or len(data) or 1
        for at in range(0, len(data), step):
            super().send(data[at : at + step])

    def upgrade(self, behind: bytes = b"", /, **asked: Any) -> tuple[dict[str, Any], list[bytes]]:
        """Identify, take up every granted layer, and return the reply and the OK of each layer."""
        body = msgspec.json.encode({"feature_negotiation": True, **asked})
        self.send(b"IDENTIFY\n" + sized(body) + behind)
        size = int.from_bytes(self.raw[:4], "big")
        reply = msgspec.json.decode(bytes(self.raw[8 : 4 + size]))
        del self.raw[: 4 + size]
        layers: list[Layer] = []
        oks = []
        plain = bytes(self.raw)
        self.raw.clear()
        if reply["tls_v1"]:
            assert plain == b""
            tls = Tls(self.context, server_side=False, name="localhost")
            self.send(tls.handshake(b""))
            while not tls.done:
                taken, self.raw = bytes(self.raw), bytearray()
                answer = tls.handshake(taken)
                if answer:
                    self.send(answer)
            plain = tls.receive(bytes(self.raw))
            self.raw.clear()
            layers.append(tls)
            oks.append(plain[: len(OK)])
            plain = plain[len(OK) :]
        compression: Layer | None = Snappy() if reply["snappy"] else Deflate() if reply["deflate"] else None
        if compression is not None:
            layers.append(compression)
            oks.append(compression.receive(plain))
            plain = b""
        assert plain == b""
        self.stack = Stack(layers)
        return reply, oks


def secured(path: Path, **nsq: Any) -> Broker:
    files = certificates()
    return Broker(path, tls_cert=str(files.server), tls_key=str(files.server_key), **nsq)


@pytest.mark.parametrize("step", [0, 1, 1000])
@pytest.mark.parametrize(
    "asked",
    [
        {"tls_v1": True},
        {"tls_v1": True, "deflate": True},
        {"tls_v1": True, "snappy": True},
        {"snappy": True},
        {"deflate": True},
    ],
)
def test_nsq_case_20_one_ok_per_layer_and_an_intact_body(tmp_path: Path, asked: dict[str, bool], step: int) -> None:
    broker = secured(tmp_path)
    client = Layered(broker, step=step)
    reply, oks = client.upgrade(**asked)
    assert {name for name in ("tls_v1", "snappy", "deflate") if reply[name]} == set(asked)
    assert oks == [OK] * len(asked)
    rng = random.Random(1)
    bodies = [rng.randbytes(128 * 1024 if step != 1 else 300), b"x" * 200_000 if step != 1 else b"x" * 900, b"small"]
    client.send(b"SUB t ch\nRDY 10\n" + b"".join(pub("t", body) for body in bodies))
    frames = client.frames()
    assert [data for kind, data in frames if kind == 0] == [b"OK"] * 4
    assert [data[26:] for kind, data in frames if kind == 2] == bodies
    client.send(b"ASDF\n")
    assert client.replies() == ["E_INVALID invalid command ASDF"]
    assert client.closed


def test_nsq_case_21_tls_is_required(tmp_path: Path) -> None:
    broker = secured(tmp_path, tls_required=True)
    for command in (b"SUB t ch\n", b"NOP\n", pub("t", b"x")):
        client = broker.client()
        client.send(command)
        assert client.replies() == [f"E_INVALID cannot {command[:3].decode()} in current state (TLS required)"]
        assert client.closed
    client = Layered(broker)
    client.upgrade(tls_v1=True)
    client.send(b"SUB t ch\n")
    assert client.replies() == ["OK"]
    facts = client.connection.facts
    assert facts is not None
    assert facts.version.startswith("TLSv1")


def test_tls_cannot_be_required_without_a_certificate(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tls_required"):
        Broker(tmp_path, tls_required=True)


def test_layers_that_are_off_or_not_there_are_not_granted(tmp_path: Path) -> None:
    client = Layered(Broker(tmp_path, snappy=False, deflate=False))
    reply, oks = client.upgrade(tls_v1=True, snappy=True, deflate=True)
    assert [reply[name] for name in ("tls_v1", "snappy", "deflate")] == [False] * 3
    assert oks == []
    client.send(pub("t", b"x"))
    assert client.replies() == ["OK"]


def test_both_compressions_at_once_are_refused(tmp_path: Path) -> None:
    client = Broker(tmp_path).client()
    assert client.identify(snappy=True, deflate=True).startswith("E_IDENTIFY_FAILED ")
    assert client.closed


def test_without_negotiation_there_is_no_upgrade(tmp_path: Path) -> None:
    client = Broker(tmp_path).client()
    client.send(b"IDENTIFY\n" + sized(b'{"snappy":true}') + pub("t", b"x"))
    assert client.replies() == ["OK", "OK"]


@pytest.mark.parametrize(("asked", "granted"), [(None, 6), (0, 6), (3, 3), (9, 7)])
def test_the_level_of_deflate_is_capped(tmp_path: Path, asked: int | None, granted: int) -> None:
    reply, oks = Layered(Broker(tmp_path, max_deflate_level=7)).upgrade(deflate=True, deflate_level=asked)
    assert (reply["deflate_level"], reply["max_deflate_level"], oks) == (granted, 7, [OK])


def test_bytes_sent_behind_identify_belong_to_the_layer(tmp_path: Path) -> None:
    client = Layered(Broker(tmp_path))
    _, oks = client.upgrade(Snappy().send(pub("t", b"early")), snappy=True)
    assert oks == [OK + OK]
    assert client.broker.node.topic("t").published == 1


def test_replies_still_waited_for_leave_before_the_layers_come(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    settings = msgspec.structs.replace(broker.config.topic.settings(), durability="fsync")
    broker.node.create_topic("t", settings).now()
    broker.disk.eager = False
    client = broker.client()
    body = msgspec.json.encode({"feature_negotiation": True, "snappy": True})
    client.send(pub("t", b"x") + b"IDENTIFY\n" + sized(body))
    assert client.out == b""
    while broker.disk.work:
        broker.disk.step()
    assert bytes(client.out[: len(OK)]) == OK
    size = int.from_bytes(client.out[len(OK) : len(OK) + 4], "big")
    layer = Snappy()
    assert layer.receive(bytes(client.out[len(OK) + 4 + size :])) == OK


@pytest.mark.parametrize("asked", [{"tls_v1": True}, {"snappy": True}, {"deflate": True}])
def test_bytes_that_are_not_of_the_layer_end_the_connection(tmp_path: Path, asked: dict[str, bool]) -> None:
    broker = secured(tmp_path)
    client = broker.client()
    body = msgspec.json.encode({"feature_negotiation": True, **asked})
    client.send(b"IDENTIFY\n" + sized(body))
    client.send(b"\xff" * 5000)
    assert client.closed
    assert broker.node.bugs == 0


def test_a_handshake_that_takes_too_long_is_cut_off(tmp_path: Path) -> None:
    broker = secured(tmp_path)
    client = broker.client()
    client.identify(tls_v1=True)
    broker.advance(4.9)
    assert not client.closed
    broker.advance(0.2)
    assert client.closed


def test_a_second_identify_gets_no_second_layer(tmp_path: Path) -> None:
    client = Layered(secured(tmp_path))
    client.upgrade(tls_v1=True)
    client.send(b"IDENTIFY\n" + sized(b'{"feature_negotiation":true,"tls_v1":true,"snappy":true}'))
    (reply,) = client.replies()
    assert msgspec.json.decode(reply)["tls_v1"] is False


def test_a_bomb_is_unpacked_in_turns(tmp_path: Path) -> None:
    client = Layered(Broker(tmp_path))
    client.upgrade(deflate=True)
    body = bytes(1 << 20)
    client.send(b"".join(pub("t", body) for _ in range(8)))
    assert client.replies() == ["OK"] * 8
