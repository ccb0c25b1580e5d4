"""Certificates of clients: who must show one, who vouches for it, and which versions of TLS are spoken."""

from __future__ import annotations

import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.table import load
from penstock.config import Config
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.nsq.tls import server_context
from penstock.errors import ConfigError
from tests.cli.test_nsqd import configured, warned
from tests.nsq.caller import Caller
from tests.nsq.certificates import certificates
from tests.nsq.lookup.programs import Program, ours
from tests.nsq.parts import pub
from tests.nsq.test_auth import ALL, AuthServer
from tests.nsq.test_upgrade import Layered, secured
from tests.served import Served

FILES = certificates()
POLICY = {"tls_required": True, "tls_client_auth_policy": "require-verify", "tls_root_ca_file": str(FILES.authority)}


def served(path: Path, **nsq: Any) -> Served:
    return Served(
        path, nsq=NsqConfig(tcp_port=0, http_port=0, tls_cert=str(FILES.server), tls_key=str(FILES.server_key), **nsq)
    )


@pytest.fixture(params=["require", "require-verify"])
def strict(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, **POLICY | {"tls_client_auth_policy": request.param}) as node:
        yield node


def stranger(folder: Path) -> ssl.SSLContext:
    """Return a client's context with a certificate that it signed itself."""
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    files = ["-subj", "/CN=someone", "-keyout", str(folder / "own.key"), "-out", str(folder / "own.pem")]
    subprocess.run(["openssl", *words, *files], check=True, capture_output=True)
    context = certificates().client_context()
    context.load_cert_chain(folder / "own.pem", folder / "own.key")
    return context


def test_a_client_with_a_certificate_is_let_in(strict: Served) -> None:
    with Caller(strict.tcp_port, FILES.client_context(shown=True)) as client:
        client.identify(tls_v1=True)
        client.send(pub("t", b"x"))
        assert client.told() == "OK"


def test_a_client_without_a_certificate_publishes_nothing(strict: Served) -> None:
    with Caller(strict.tcp_port, FILES.client_context()) as client:
        # A client of TLS 1.3 believes in the connection until it reads the alert.
        with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
            client.identify(tls_v1=True)
        with suppress(OSError):
            client.send(pub("t", b"x"))
        assert client.ended()
    strict.until(lambda: strict.node.ledger.total("nsq:bad_layer") > 0)
    assert strict.do(lambda: "t" not in strict.node.topics)


def test_a_certificate_that_nobody_vouches_for_is_refused(strict: Served, tmp_path: Path) -> None:
    with (
        Caller(strict.tcp_port, stranger(tmp_path)) as client,
        pytest.raises((ssl.SSLError, ConnectionError, EOFError)),
    ):
        client.identify(tls_v1=True)


def test_nobody_gets_around_it_without_tls(strict: Served) -> None:
    with Caller(strict.tcp_port) as client:
        client.send(pub("t", b"x"))
        assert client.told() == "E_INVALID cannot PUB in current state (TLS required)"


def test_the_auth_server_hears_the_name_in_the_certificate(tmp_path: Path) -> None:
    asked = AuthServer(ALL)
    broker = secured(tmp_path, ask=asked.ask, **POLICY)
    client = Layered(broker)
    client.context = FILES.client_context(shown=True)
    client.upgrade(tls_v1=True)
    client.send(b"AUTH\n\0\0\0\6secret")
    assert client.replies() == ['{"identity":"","identity_url":"","permission_count":1}']
    assert (asked.asked[0].tls, asked.asked[0].common_name) == (True, "someone")


def test_an_old_version_is_not_spoken(tmp_path: Path) -> None:
    with served(tmp_path, tls_min_version="tls1.3") as node:
        old = FILES.client_context()
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with Caller(node.tcp_port, old) as client, pytest.raises((ssl.SSLError, ConnectionError)):
            client.identify(tls_v1=True)
        with Caller(node.tcp_port) as client:
            client.identify(tls_v1=True)
            assert isinstance(client.socket, ssl.SSLSocket)
            assert client.socket.version() == "TLSv1.3"
    assert server_context(node.config) is not None


def test_without_a_policy_nobody_is_asked_and_without_a_file_the_system_vouches() -> None:
    def context(**nsq: Any) -> ssl.SSLContext:
        files = {"tls_cert": str(FILES.server), "tls_key": str(FILES.server_key)}
        made = server_context(Config(**files, parts=(NsqConfig(**nsq),)))  # type: ignore[arg-type]
        assert made is not None
        return made

    assert context().verify_mode == ssl.CERT_NONE
    assert context().minimum_version == ssl.TLSVersion.TLSv1_2
    assert context(tls_client_auth_policy="require").verify_mode == ssl.CERT_REQUIRED
    assert server_context(Config()) is None


def test_a_file_that_holds_no_certificates_is_told(tmp_path: Path) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    with pytest.raises(ConfigError, match=r"nsq.tls_root_ca_file .* cannot be used"):
        secured(tmp_path, **POLICY | {"tls_root_ca_file": str(junk)})


def test_a_policy_alone_would_leave_the_door_open_and_is_refused(tmp_path: Path) -> None:
    keys = {"nsq.tls_client_auth_policy": "require", "tls_cert": str(FILES.server), "tls_key": str(FILES.server_key)}
    with pytest.raises(ConfigError, match=r"needs nsq.tls_required = true"):
        load("/dev/null", keys, {})
    config = load("/dev/null", keys | {"nsq.tls_required": True}, {}).config
    assert config.of(NsqConfig).tls_client_auth_policy == "require"


def test_upstreams_flags_ask_for_all_of_it() -> None:
    flags = (f"--tls-cert={FILES.server}", f"--tls-key={FILES.server_key}", f"--tls-root-ca-file={FILES.authority}")
    nsq = configured(*flags, "--tls-client-auth-policy=require-verify", "--tls-min-version=tls1.3").of(NsqConfig)
    assert (nsq.tls_client_auth_policy, nsq.tls_min_version, nsq.tls_required) == ("require-verify", "tls1.3", True)
    assert nsq.tls_root_ca_file == str(FILES.authority)
    assert configured(*flags, "--tls-client-auth-policy=").of(NsqConfig).tls_client_auth_policy == "none"
    assert configured("--tls-min-version=tls1.0").of(NsqConfig).tls_min_version == "tls1.2"
    assert warned("--tls-min-version=tls1.0") == ["--tls-min-version: TLS 1.2 is the oldest that is spoken"]
    assert any("must be signed" in text for text in warned("--tls-client-auth-policy=require"))
    assert not any("signed" in text for text in warned("--tls-client-auth-policy=require-verify"))
    assert warned("--tls-min-version=tls1.2") == []


def test_nsqd_asks_its_clients_for_certificates(tmp_path: Path) -> None:
    flags = (
        *(f"--tls-cert={FILES.server}", f"--tls-key={FILES.server_key}", f"--tls-root-ca-file={FILES.authority}"),
        *("--tls-client-auth-policy=require-verify", "--https-address=127.0.0.1:0", f"--data-path={tmp_path / 'd'}"),
    )
    with Program(ours("nsqd"), *flags, cwd=tmp_path, ports=3) as node:
        with Caller(node.port("TCP"), FILES.client_context(shown=True)) as client:
            client.identify(tls_v1=True)
            client.send(pub("t", b"x"))
            assert client.told() == "OK"
        with Caller(node.port("TCP"), FILES.client_context()) as client, pytest.raises((OSError, EOFError)):
            client.identify(tls_v1=True)
        with socket.create_connection(("127.0.0.1", node.port("TCP"))) as plain:
            plain.sendall(b"  V2NOP\n")
            assert b"TLS required" in plain.recv(1000)
