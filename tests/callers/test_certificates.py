"""A client certificate that the listener's TLS verified is the user of its common name."""

from __future__ import annotations

import http.client
from pathlib import Path

import pytest

from penstock.callers.book import User
from penstock.config import CallersConfig
from penstock.dialects.nsq.config import NsqConfig
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
