from __future__ import annotations

import http.client
import re
import shutil
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.api.app import ENDPOINTS
from penstock.http.incoming import HEAD_BYTES_MAX
from tests.served import Served


def test_index_and_openapi_list_every_endpoint(served: Served) -> None:
    listed = served.get("/api/v1").json["endpoints"]
    document = served.get("openapi.json").json
    operations = {f"{method.upper()} {path}" for path, found in document["paths"].items() for method in found}
    assert set(listed) == operations == {f"{endpoint.method} {endpoint.path}" for endpoint in ENDPOINTS}


def test_openapi_document_refers_only_to_what_it_holds(served: Served) -> None:
    document = served.get("openapi.json").json
    text = served.get("openapi.json").content.decode()
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert names <= set(document["components"]["schemas"])
    assert "TopicInfo" in names
    for path, operations in document["paths"].items():
        for operation in operations.values():
            declared = {found["name"] for found in operation["parameters"] if found["in"] == "path"}
            assert declared == set(re.findall(r"{(\w+)}", path))
            assert operation["summary"]
    ids = [operation["operationId"] for found in document["paths"].values() for operation in found.values()]
    assert len(set(ids)) == len(ids)


def test_unknown_path_and_wrong_method_are_named(served: Served) -> None:
    answer = served.get("/nowhere")
    assert (answer.status, answer.code) == (404, "not_found")
    assert "/nowhere" in answer.message
    assert served.get("topics/").status == 404
    answer = served.ask("PUT", "topics/orders")
    assert (answer.status, answer.code) == (405, "method_not_allowed")
    assert set(answer.headers["allow"].replace(" ", "").split(",")) == {"GET", "HEAD", "PATCH", "DELETE"}
    assert "possible" in answer.message


def test_head_answers_like_get_without_a_body(served: Served) -> None:
    answer = served.ask("HEAD", "topics")
    assert (answer.status, answer.content) == (200, b"")


def test_token_is_asked_for_everywhere_but_at_health(tmp_path: Path) -> None:
    with Served(tmp_path, token="s3cret") as served:
        for method, path in (
            ("GET", "topics"),
            ("POST", "topics"),
            ("GET", "/metrics"),
            ("GET", "/"),
            ("GET", "ledger"),
        ):
            for shown in (
                {},
                {"Authorization": "Bearer wrong"},
                {"Authorization": "Basic s3cret"},
                {"Authorization": "s3cret"},
            ):
                answer = served.ask(method, path, headers=shown)
                assert (answer.status, answer.code) == (401, "unauthorized")
                assert answer.headers["www-authenticate"].startswith("Bearer")
        assert served.get("/healthz").status == 200
        assert served.get("/readyz").status == 200
        known = {"Authorization": "bearer  s3cret"}
        assert served.ask("GET", "topics", headers=known).status == 200
        assert served.ask("GET", "/metrics", headers=known).status == 200
        assert served.ask("GET", "ledger?reason=api:unauthorized", headers=known).json["total"] == 20
        assert "s3cret" not in served.ask("GET", "ledger", headers=known).content.decode()


def test_page_from_elsewhere_may_not_use_the_node(served: Served) -> None:
    port = served.api.port
    for origin, host, status in (
        ("http://evil.example", f"127.0.0.1:{port}", 403),
        (f"http://evil.example:{port}", f"evil.example:{port}", 421),
        ("null", f"127.0.0.1:{port}", 403),
        ("http://[", f"127.0.0.1:{port}", 403),
        (f"http://127.0.0.1:{port}", f"127.0.0.1:{port}", 200),
        (f"http://localhost:{port}", f"localhost:{port}", 200),
    ):
        answer = served.ask("GET", "topics", headers={"Origin": origin, "Host": host})
        assert answer.status == status, origin


def test_failing_handler_is_500_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Served(tmp_path) as served:

        def fail() -> None:
            raise ZeroDivisionError("planted")

        served.do(lambda: monkeypatch.setattr(served.node.catalog, "mapping", fail))
        answer = served.get("routing")
        assert (answer.status, answer.code) == (500, "internal")
        assert "planted" not in answer.message
        assert served.node.bugs == 1
        assert served.get("ledger?reason=bug").json["total"] == 1
        assert served.get("topics").status == 200


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"{", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b'"x"', "must be a JSON object"),
        (b"\xff", "not JSON"),
        (b'{"name":"\xff"}', "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b'{"name":1}', "`name`"),
    ],
)
def test_garbage_as_a_command_is_refused(served: Served, raw: bytes, text: str) -> None:
    answer = served.post("topics", raw=raw)
    assert (answer.status, answer.code) == (400, "bad_request")
    assert text in answer.message


def test_command_that_is_too_large_is_refused(served: Served) -> None:
    answer = served.post("topics", raw=b" " * ((1 << 20) + 1))
    assert (answer.status, answer.code) == (413, "message_too_big")
    assert served.get("topics").status == 200


def test_chunked_body_is_counted_as_it_comes(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.api.port)) as sock:
        sock.sendall(b"POST /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        for _ in range(17):
            sock.sendall(chunk)
        assert sock.recv(1000).startswith(b"HTTP/1.1 413")


def test_input_beyond_the_nodes_memory_is_refused_and_given_back(served: Served) -> None:
    memory = served.node.budget.body
    most = memory.bytes_max
    served.do(lambda: setattr(memory, "bytes_max", 10))
    answer = served.post("topics", {"name": "orders and some more"})
    assert (answer.status, answer.code) == (503, "memory_full")
    served.do(lambda: setattr(memory, "bytes_max", most))
    assert memory.used == 0
    assert served.post("topics", {"name": "orders and some more"}).status == 201
    assert memory.used == 0


def test_name_that_is_no_utf8_is_refused(served: Served) -> None:
    assert served.get("topics/%FF").code == "bad_name"


def talk(served: Served, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", served.api.port), timeout=30) as sock:
        sock.sendall(data)
        found = b""
        while part := sock.recv(4096):
            found += part
        return found


def test_garbage_on_the_socket_costs_one_connection_and_is_counted(served: Served) -> None:
    assert talk(served, b"\x00\x01garbage\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert talk(served, b"GET /\xff HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert served.get("ledger?reason=api:bad_request").json["total"] == 2


def test_endless_head_is_cut_off(served: Served) -> None:
    found = talk(served, b"GET / HTTP/1.1\r\nX: " + b"x" * (HEAD_BYTES_MAX + 1))
    assert found.startswith(b"HTTP/1.1 400")
    assert str(HEAD_BYTES_MAX).encode() in found


def test_half_a_request_does_not_disturb_others_nor_the_end(tmp_path: Path) -> None:
    with Served(tmp_path) as served, socket.create_connection(("127.0.0.1", served.api.port)) as sock:
        sock.sendall(b"POST /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert served.get("topics").status == 200
        sock.close()
        served.until(lambda: served.node.ledger.total("api:bad_request") == 1)


def test_half_a_request_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        sock = socket.create_connection(("127.0.0.1", served.api.port))
        sock.sendall(b"POST /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        served.until(lambda: any(not each._incoming.between for each in served.api.listener.connections))
    with sock:
        assert sock.recv(1) == b""
    assert served.node.ledger.total("api:bad_request") == 1


def test_api_speaks_tls_where_a_certificate_is_set(tmp_path: Path) -> None:
    assert shutil.which("openssl"), "openssl is missing: apt-get install openssl"
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    places = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*made.split(), *places], check=True, capture_output=True)
    with Served(tmp_path / "data", tls_cert=str(certificate), tls_key=str(key)) as served:
        context = ssl.create_default_context(cafile=str(certificate))
        connection = http.client.HTTPSConnection("127.0.0.1", served.api.port, context=context)
        connection.request("GET", "/healthz")
        assert connection.getresponse().read().startswith(b'{"status":"ok"')
        connection.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Served(tmp_path_factory.mktemp("fuzz")) as served:
        served.publish("orders", "x")
        served.post("topics/orders/subscriptions", {"name": "audit"})
        yield served


SAFE = [
    endpoint for endpoint in ENDPOINTS if endpoint.method in ("POST", "PUT", "PATCH") and "redrive" not in endpoint.path
]
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=10) | st.sampled_from(["1s", "latest"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(endpoint=st.sampled_from(SAFE), data=st.data())
def test_no_command_makes_the_node_fail_inside(shared: Served, endpoint: Any, data: st.DataObject) -> None:
    fields = getattr(endpoint.body, "__struct_fields__", ())
    names = st.sampled_from([*fields, "wait"]) if fields else st.text(max_size=5)
    body = data.draw(st.dictionaries(names, values, max_size=4))
    body.pop("wait", None)
    path = endpoint.path.replace("{topic}", "orders").replace("{subscription}", "audit")
    answer = shared.ask(endpoint.method, path, body)
    assert answer.status < 500, (path, body, answer)
    if answer.status >= 400:
        assert answer.code
        assert answer.message
