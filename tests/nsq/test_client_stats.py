"""What /stats says of clients behind layers and of clients that authenticated, each on a real connection."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from penstock.dialects.nsq.config import NsqConfig
from tests.nsq.asking import ask, stats, topic_of
from tests.nsq.caller import Caller
from tests.nsq.certificates import certificates
from tests.nsq.parts import pub, sized
from tests.served import Served

FILES = certificates()
SECURED: dict[str, Any] = {"tls_cert": str(FILES.server), "tls_key": str(FILES.server_key)}


class AuthHandler(BaseHTTPRequestHandler):
    """Lets everybody do everything who knows the secret, and remembers what was asked."""

    asked: list[dict[str, list[str]]]

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        self.asked.append(query)
        known = query["secret"] == ["open sesame"]
        allowed = [{"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}] if known else []
        answer = {"ttl": 60, "identity": "ali", "identity_url": "http://ali", "authorizations": allowed}
        body = msgspec.json.encode(answer)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def auth() -> Iterator[HTTPServer]:
    AuthHandler.asked = []
    server = HTTPServer(("127.0.0.1", 0), AuthHandler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def served(path: Path, **nsq: Any) -> Served:
    return Served(path, nsq=NsqConfig(tcp_port=0, http_port=0, **(SECURED | nsq)))


def shown(node: Served) -> Any:
    """Return the one client of the channel."""
    (client,) = topic_of(node, "t")["channels"][0]["clients"]
    return client


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"tls_v1": True},
        {"deflate": True, "deflate_level": 3},
        {"snappy": True},
        {"tls_v1": True, "deflate": True},
        {"tls_v1": True, "snappy": True},
    ],
)
def test_a_client_shows_the_layers_it_speaks_through(tmp_path: Path, asked: dict[str, Any]) -> None:
    with served(tmp_path) as node, Caller(node.tcp_port) as client:
        client.identify(client_id="c", hostname="h", user_agent="caller/1", **asked)
        client.send(b"SUB t ch\nRDY 2\n" + pub("t", b"x" * 1000))
        assert [client.frame()[0] for _ in range(3)].count(2) == 1
        one = shown(node)
        assert (one["client_id"], one["hostname"], one["user_agent"]) == ("c", "h", "caller/1")
        assert (one["remote_address"], one["state"], one["in_flight_count"]) == (client.address, 3, 1)
        for layer in ("deflate", "snappy"):
            assert one[layer] is bool(asked.get(layer))
        if asked.get("tls_v1"):
            assert isinstance(client.socket, ssl.SSLSocket)
            cipher = client.socket.cipher()
            assert cipher is not None
            assert (one["tls"], one["tls_version"], one["tls_cipher_suite"]) == (
                True,
                client.socket.version(),
                cipher[0],
            )
        else:
            assert (one["tls"], one["tls_version"], one["tls_cipher_suite"]) == (False, "", "")
        assert (one["tls_negotiated_protocol"], one["tls_negotiated_protocol_is_mutual"]) == ("", False)
        assert "authed" not in one
        (producer,) = stats(node)["producers"]
        assert producer["pub_counts"] == [{"topic": "t", "count": 1}]
        assert producer["tls"] is bool(asked.get("tls_v1"))
        text = ask(node, "GET", "/stats?format=text").content.decode()
        assert f"[V2 h:{client.address.rpartition(':')[2]} caller/1" in text


def test_a_client_that_authenticated_shows_who_it_is(tmp_path: Path, auth: HTTPServer) -> None:
    address = f"127.0.0.1:{auth.server_port}"
    policy = {
        **{"tls_required": True, "plain_http": True},
        **{"tls_client_auth_policy": "require-verify", "tls_root_ca_file": str(FILES.authority)},
    }
    with (
        served(tmp_path, auth_http_addresses=(address,), **policy) as node,
        Caller(node.tcp_port, FILES.client_context(shown=True)) as client,
    ):
        assert client.identify(tls_v1=True)["auth_required"] is True
        client.send(b"AUTH\n" + sized(b"open sesame"))
        told = msgspec.json.decode(client.told())
        assert told == {"identity": "ali", "identity_url": "http://ali", "permission_count": 1}
        client.send(b"SUB t ch\n")
        assert client.told() == "OK"
        one = shown(node)
        assert (one["authed"], one["auth_identity"], one["auth_identity_url"]) == (True, "ali", "http://ali")
        assert one["tls"] is True
        (query,) = AuthHandler.asked
        assert (query["tls"], query["common_name"], query["remote_ip"]) == (["true"], ["someone"], ["127.0.0.1"])


def test_a_client_that_failed_to_authenticate_is_not_shown(tmp_path: Path, auth: HTTPServer) -> None:
    with (
        served(tmp_path, auth_http_addresses=(f"127.0.0.1:{auth.server_port}",)) as node,
        Caller(node.tcp_port) as client,
    ):
        client.identify()
        client.send(b"AUTH\n" + sized(b"please"))
        assert client.told() == "E_UNAUTHORIZED AUTH no authorizations found"
        assert client.ended()
        assert stats(node)["producers"] is None


def test_clients_that_went_are_not_shown(tmp_path: Path) -> None:
    with served(tmp_path) as node:
        with Caller(node.tcp_port) as client:
            client.identify(tls_v1=True, snappy=True)
            client.send(b"SUB t ch\n")
            assert client.told() == "OK"
            shown(node)
        node.until(lambda: not node.node.topics["t"].subscriptions["ch"].seats)
        assert topic_of(node, "t")["channels"][0]["clients"] == []
