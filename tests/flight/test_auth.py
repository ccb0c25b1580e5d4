"""A node with a token hears nobody without it; with a certificate it speaks TLS alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.flight as flight
import pytest

from penstock.config import Config, check
from penstock.dialects import DIALECTS
from penstock.dialects.flight.config import FlightConfig
from penstock.errors import ConfigError
from tests.callers.parts import SECRET, user, users_in
from tests.flight.parts import Flown, many
from tests.nsq.certificates import certificates

TOKEN = "open sesame"

CALLS: list[Callable[[flight.FlightClient, flight.FlightCallOptions], Any]] = [
    lambda client, options: list(client.do_action(flight.Action("topics", b""), options)),
    lambda client, options: list(client.list_actions(options)),
    lambda client, options: list(client.list_flights(b"", options)),
    lambda client, options: client.get_flight_info(flight.FlightDescriptor.for_path("t"), options),
    lambda client, options: client.do_get(flight.Ticket(b'{"topic":"t"}'), options).read_all(),
    lambda client, options: client.do_exchange(
        flight.FlightDescriptor.for_command(b'{"subscribe":{"topic":"t","subscription":"s"}}'), options
    )[1].read_chunk(),
    lambda client, options: client.do_put(flight.FlightDescriptor.for_path("t"), many(1).schema, options)[0].close(),
]


def with_token(token: str | bytes) -> flight.FlightCallOptions:
    shown = token if isinstance(token, bytes) else b"Bearer " + token.encode()
    return flight.FlightCallOptions(timeout=60, headers=[(b"authorization", shown)])


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("shown", [None, b"", b"Bearer", b"Bearer wrong", b"Basic open sesame", b"open sesame"])
def test_every_call_needs_the_token(tmp_path: Path, call: Any, shown: bytes | None) -> None:
    with Flown(tmp_path / "data", token=TOKEN) as flown:
        client = flown.connect()
        options = flight.FlightCallOptions(timeout=60) if shown is None else with_token(shown)
        with pytest.raises(flight.FlightUnauthenticatedError, match="unauthorized: "):
            call(client, options)
        assert flown.faults() == {"unauthorized": 1}
        assert flown.do(lambda: flown.node.topics) == {}


def test_the_token_opens_everything(tmp_path: Path) -> None:
    with Flown(tmp_path / "data", token=TOKEN) as flown:
        client = flown.connect()
        (result,) = client.do_action(flight.Action("create-topic", b'{"name":"t"}'), with_token(TOKEN))
        assert b'"name":"t"' in result.body.to_pybytes()
        for call in CALLS[:5]:
            call(client, with_token(TOKEN))


def test_tls_with_the_certificate_of_the_node(tmp_path: Path) -> None:
    files = certificates()
    tls = {"tls_cert": str(files.server), "tls_key": str(files.server_key)}
    with Flown(tmp_path / "data", **tls) as flown:
        client = flown.connect(tls_root_certs=files.authority.read_bytes())
        assert list(client.list_flights()) == []
        flown.put("t", many(3))
        assert len(flown.bodies("t")) == 3
        plain = flight.connect(f"grpc://localhost:{flown.flight.port}")
        with pytest.raises(flight.FlightUnavailableError):
            list(plain.list_flights(b"", flight.FlightCallOptions(timeout=5)))
        plain.close()


def test_a_hold_is_ended_only_by_who_may_read_what_it_holds(tmp_path: Path) -> None:
    users_in(tmp_path, [user("bob", ("consume", "t")), user("eve", ("consume", "other"))])
    with Flown(tmp_path) as flown:
        info = flown.act("create-topic", name="t")
        held = {"name": "query", "topic": "t", "incarnation": info["incarnation"], "offsets": [0], "ttl_ms": 60_000}
        flown.act("hold", **held)
        release = flight.Action("release-hold", b'{"name":"query"}')
        with pytest.raises(flight.FlightUnauthorizedError, match="forbidden: "):
            list(flown.client.do_action(release, with_token(f"eve:{SECRET}")))
        assert flown.do(lambda: len(flown.node.holds)) == 1
        list(flown.client.do_action(release, with_token(f"bob:{SECRET}")))
        assert flown.do(lambda: len(flown.node.holds)) == 0


def test_beyond_this_machine_a_token_and_tls_are_needed() -> None:
    beyond = (FlightConfig(address="0.0.0.0"),)
    with pytest.raises(ConfigError, match=r'flight.address = "0.0.0.0" opens Flight .* without TLS and callers'):
        check(Config(parts=beyond), DIALECTS)
    with pytest.raises(ConfigError, match="without TLS;"):
        check(Config(parts=beyond, token="x"), DIALECTS)
    check(Config(parts=beyond, token="x", insecure=True), DIALECTS)
