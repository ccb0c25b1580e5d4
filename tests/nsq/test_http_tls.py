from __future__ import annotations

import asyncio
import http.client
import os
import ssl
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.api.config import ApiConfig
from penstock.cli import goflags, nsqd
from penstock.cli.daemon import Daemon
from penstock.cli.table import load
from penstock.config import Config
from penstock.dialects.flight.config import FlightConfig
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.sqs.config import SqsConfig
from tests.nsq.certificates import Certificates, certificates

REFUSED = 403


def configured(path: Path, made: Certificates, *, whole_node: bool = False, **nsq: bool | str) -> Config:
    """Return a node whose NSQ side, or which as a whole, has a certificate."""
    files = {"tls_cert": str(made.server), "tls_key": str(made.server_key)}
    own = {} if whole_node else files
    ports = {"tcp_port": 0, "http_port": 0, "https_port": 0, "lookup": False}
    return Config(
        data_dir=str(path),
        parts=(
            ApiConfig(enabled=False),
            FlightConfig(enabled=False),
            SqsConfig(enabled=False),
            msgspec.convert({**ports, **own, **nsq}, NsqConfig),
        ),
        **(files if whole_node else {}),  # type: ignore[arg-type]
    )


def answers(
    config: Config, made: Certificates, *, shown: bool = False, context: ssl.SSLContext | None = None
) -> dict[str, tuple[int, bytes]]:
    """Return what each HTTP port says to a publish, and the port that https is on."""

    def publish(connection: http.client.HTTPConnection) -> tuple[int, bytes]:
        with closing(connection):
            connection.request("POST", "/pub?topic=t", b"x")
            answer = connection.getresponse()
            return answer.status, answer.read()

    async def life() -> dict[str, tuple[int, bytes]]:
        daemon = Daemon(config, asyncio.get_running_loop())
        ports = {bound.endpoint.key: bound.port for bound in await daemon.listen()}
        try:
            plain = http.client.HTTPConnection("127.0.0.1", ports["nsq.http_port"], timeout=30)
            found = {"http": await asyncio.to_thread(publish, plain), "port": (ports["nsq.https_port"], b"")}
            secure = http.client.HTTPSConnection(
                "localhost", ports["nsq.https_port"], timeout=30, context=context or made.client_context(shown=shown)
            )
            return {**found, "https": await asyncio.to_thread(publish, secure)}
        finally:
            await daemon.stop()

    return asyncio.run(life())


@pytest.mark.parametrize("whole_node", [False, True])
def test_https_listens_wherever_the_certificate_is_named(tmp_path: Path, whole_node: bool) -> None:
    made = certificates()
    found = answers(configured(tmp_path, made, whole_node=whole_node), made)
    assert found["http"] == found["https"] == (200, b"OK")


def test_plain_http_is_refused_where_tls_is_required(tmp_path: Path) -> None:
    made = certificates()
    found = answers(configured(tmp_path, made, tls_required=True), made)
    status, content = found["http"]
    assert status == REFUSED
    assert msgspec.json.decode(content) == {"message": "TLS_REQUIRED", "https_port": found["port"][0]}
    assert found["https"] == (200, b"OK")


def test_plain_http_may_stay_open_where_tls_is_required(tmp_path: Path) -> None:
    made = certificates()
    found = answers(configured(tmp_path, made, tls_required=True, plain_http=True), made)
    assert found["http"] == found["https"] == (200, b"OK")


def test_a_client_without_a_certificate_publishes_nowhere_where_one_is_asked_for(tmp_path: Path) -> None:
    made = certificates()
    asked: dict[str, Any] = {
        "tls_required": True,
        "tls_client_auth_policy": "require-verify",
        "tls_root_ca_file": str(made.authority),
    }
    config = configured(tmp_path, made, **asked)
    with pytest.raises((ssl.SSLError, ConnectionError)):  # by TLS 1.3 the client learns it with the answer
        answers(config, made)
    assert answers(config, made, shown=True)["https"] == (200, b"OK")


def test_the_oldest_version_of_tls_holds_for_https(tmp_path: Path) -> None:
    made = certificates()
    old = made.client_context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert answers(configured(tmp_path, made), made, context=old)["https"] == (200, b"OK")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        answers(configured(tmp_path, made, tls_min_version="tls1.3"), made, context=old)


@pytest.mark.parametrize(
    ("word", "required", "plain"), [("true", True, False), ("tcp-https", True, True), ("false", False, False)]
)
def test_nsqds_flag_says_which_of_them_it_is(word: str, required: bool, plain: bool) -> None:
    made = certificates()
    flags = [f"--tls-required={word}", f"--tls-cert={made.server}", f"--tls-key={made.server_key}"]
    chosen = nsqd.chosen(goflags.parse(flags, nsqd.FLAGS), lambda text: None)
    nsq = load(os.devnull, chosen, {}).config.of(NsqConfig)
    assert (nsq.tls_required, nsq.plain_http) == (required, plain)
