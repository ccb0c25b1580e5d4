"""A client certificate that the listener's TLS verified is the user of its common name."""

from __future__ import annotations

import http.client
import ssl
import subprocess
from pathlib import Path

import pytest

from penstock.callers.book import User
from penstock.config import CallersConfig
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.sqs.config import SqsConfig
from penstock.dialects.timeline.config import TimelineConfig
from tests.callers.parts import user, users_in
from tests.nsq.caller import Caller as Client
from tests.nsq.certificates import certificates
from tests.nsq.parts import pub
from tests.served import PATIENCE_S, Served

FILES = certificates()
#: The common name of the client's certificate.
NAME = "someone"


def served(path: Path, *users: User) -> Served:
    users_in(path, users)
    nsq = NsqConfig(
        tls_cert=str(FILES.server),
        tls_key=str(FILES.server_key),
        tls_required=True,
        tls_client_auth_policy="require-verify",
        tls_root_ca_file=str(FILES.authority),
    )
    return Served(path, nsq=nsq, callers=CallersConfig(anonymous="off"))


def lone_certificate(path: Path) -> tuple[str, str]:
    """Make a certificate that only its owner signed."""
    certificate, key = str(path / "lone.pem"), str(path / "lone.key")
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={NAME}"]
    command = ["openssl", "req", "-x509", *new, "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


@pytest.mark.parametrize("known", [True, False])
def test_nsq_knows_a_client_by_its_certificate(tmp_path: Path, known: bool) -> None:
    users = user(NAME if known else "bob", ("publish", "t"), secret="")
    context = FILES.client_context(shown=True)
    with served(tmp_path, users) as node, Client(node.tcp_port, context) as client:
        assert client.identify(tls_v1=True)["auth_required"] is False  # the certificate says who it is
        client.send(pub("t", b"x"))
        assert client.told() == ("OK" if known else "E_AUTH_FIRST AUTH required before PUB")
        if known:
            client.send(b"SUB t c\n")
            assert client.told() == 'E_UNAUTHORIZED AUTH failed for SUB on "t" "c"'


@pytest.mark.parametrize("known", [True, False])
def test_https_knows_a_client_by_its_certificate(tmp_path: Path, known: bool) -> None:
    users = user(NAME if known else "bob", ("publish", "t"), secret="")
    with served(tmp_path, users) as node:
        port, context = node.ports["nsq.https_port"], FILES.client_context(shown=True)
        connection = http.client.HTTPSConnection("localhost", port, timeout=PATIENCE_S, context=context)
        for path, status in (("/pub?topic=t", 200), ("/pub?topic=u", 403)):
            connection.request("POST", path, b"x")
            answer = connection.getresponse()
            answer.read()
            assert answer.status == (status if known else 401)
        connection.close()


@pytest.mark.parametrize("left", [None, b""])
def test_a_file_of_users_that_goes_away_opens_nothing(tmp_path: Path, left: bytes | None) -> None:
    context, path = FILES.client_context(shown=True), tmp_path / "users.json"
    with served(tmp_path, user(NAME, ("publish", "t"), secret="")) as node:
        path.unlink()
        if left is not None:
            path.write_bytes(left)
        node.do(node.node.gate.reload)
        with Client(node.tcp_port, context) as client:
            client.identify(tls_v1=True)
            client.send(pub("t", b"x"))
            assert client.told() == "OK"
            client.send(pub("u", b"x"))
            assert client.told().startswith("E_UNAUTHORIZED")


#: Every listener that speaks HTTP, with a question to it.
ASKED = {
    "api.port": "/api/v1/topics/t",
    "sqs.port": "/?Action=ListQueues",
    "dynamiq.port": "/v1/queues/t",
    "timeline.port": "/v1/topics",
    "nsq.https_port": "/stats",
}


@pytest.mark.parametrize("key", ASKED)
def test_any_https_listener_knows_a_client_by_its_certificate_and_speaks_no_older_tls(tmp_path: Path, key: str) -> None:
    users_in(tmp_path, [user(NAME, ("admin", "*"), secret="")])
    node = Served(
        tmp_path,
        sqs=SqsConfig(port=0),
        timeline=TimelineConfig(port=0),
        tls_cert=str(FILES.server),
        tls_key=str(FILES.server_key),
        tls_client_ca=str(FILES.authority),
        tls_min_version="tls1.3",
        callers=CallersConfig(anonymous="off"),
    )

    def status(context: ssl.SSLContext) -> int:
        connection = http.client.HTTPSConnection("localhost", node.ports[key], timeout=PATIENCE_S, context=context)
        try:
            connection.request("GET", ASKED[key])
            return connection.getresponse().status
        finally:
            connection.close()

    old, stranger = FILES.client_context(shown=True), FILES.client_context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    # One that nobody vouches for.
    stranger.load_cert_chain(*lone_certificate(tmp_path))
    with node:
        assert status(FILES.client_context(shown=True)) not in (401, 403)
        assert status(FILES.client_context()) in (401, 403)
        for refused in (old, stranger):
            with pytest.raises(OSError):
                status(refused)


@pytest.mark.parametrize("shown", [True, False])
def test_nsq_knows_a_client_by_the_authority_of_the_node_and_speaks_no_older_tls(tmp_path: Path, shown: bool) -> None:
    users_in(tmp_path, [user(NAME, ("publish", "t"), secret="")])
    node = Served(
        tmp_path,
        tls_cert=str(FILES.server),
        tls_key=str(FILES.server_key),
        tls_client_ca=str(FILES.authority),
        tls_min_version="tls1.3",
        callers=CallersConfig(anonymous="off"),
    )
    old = FILES.client_context(shown=shown)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with node, Client(node.tcp_port, FILES.client_context(shown=shown)) as client, Client(node.tcp_port, old) as late:
        client.identify(tls_v1=True)
        client.send(pub("t", b"x"))
        assert client.told() == ("OK" if shown else "E_AUTH_FIRST AUTH required before PUB")
        with pytest.raises(OSError):
            late.identify(tls_v1=True)
