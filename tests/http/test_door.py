"""Web pages that use a node behind its owner's back: names that lead here, and pages of other origins."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.config.tree import HttpConfig
from penstock.dialects.dory.config import DoryConfig
from penstock.dialects.nsq.config import NsqConfig
from penstock.dialects.sqs.config import SqsConfig
from penstock.dialects.timeline.config import TimelineConfig
from penstock.http import Door
from tests.nsq.certificates import certificates
from tests.served import PATIENCE_S, Served

#: Every HTTP listener: a plain read, and something that changes the node.
LISTENERS = {
    "nsq.http_port": ("GET /ping", "POST /pub?topic=t"),
    "nsq.https_port": ("GET /ping", "POST /pub?topic=t"),
    "nsq.lookup_http_port": ("GET /topics", "POST /topic/create?topic=t"),
    "dynamiq.port": ("GET /v1/queues", "PUT /v1/queues/t/message"),
    "timeline.port": ("GET /v1/info", "PUT /v1/topics/t"),
    "dory.http_port": ("GET /queues/json", "GET /msg_debug/add_all_topics"),
    "sqs.port": ("GET /?Action=ListQueues", "GET /?Action=CreateQueue&QueueName=t"),
    "api.port": ("GET /api/v1/topics", "POST /api/v1/topics/t/messages?create=true"),
}
BODY = '{"body":"x"}'


class Told(NamedTuple):
    status: int
    text: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = certificates()
    nsq = NsqConfig(tls_cert=str(made.server), tls_key=str(made.server_key))
    http = HttpConfig(hosts=("queue.example",))
    sqs = SqsConfig(port=0)
    timeline = TimelineConfig(port=0)
    path = tmp_path_factory.mktemp("data")
    (path / "debug").mkdir()
    dory = DoryConfig(tcp=True, tcp_port=0, http_port=0, msg_debug_path=str(path / "debug"))
    with Served(path, nsq=nsq, sqs=sqs, timeline=timeline, dory=dory, http=http, lookup=True) as node:
        yield node


def ask(served: Served, key: str, line: str, *headers: str, host: str | None = "127.0.0.1:{}") -> Told:
    """Send one request as raw bytes."""
    port = served.ports[key]
    lines = [f"{line} HTTP/1.1", *headers]
    if host is not None:
        lines.append(f"Host: {host.format(port)}")
    body = BODY if line.startswith("POST") else ""
    if body:
        lines.append(f"Content-Length: {len(body)}")
    with ExitStack() as stack, socket.create_connection(("127.0.0.1", port), PATIENCE_S) as plain:
        secure = key == "nsq.https_port"
        wrap = certificates().client_context().wrap_socket
        sock = stack.enter_context(wrap(plain, server_hostname="localhost")) if secure else plain
        sock.sendall("\r\n".join([*lines, "Connection: close", "", body]).encode())
        got = b"".join(iter(lambda: sock.recv(65536), b""))
    head, _, content = got.partition(b"\r\n\r\n")
    return Told(int(head.split()[1]), content.decode())


def publish(host: str) -> bytes:
    """Return a publish of the common shape."""
    return f"POST /pub?topic=t HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1\r\n\r\nx".encode()


@pytest.mark.parametrize("key", LISTENERS)
@pytest.mark.parametrize("kind", [0, 1], ids=["read", "change"])
def test_a_name_that_was_made_to_lead_here_gets_nothing(served: Served, key: str, kind: int) -> None:
    for host in ("evil.example", "evil.example:{}", "127.0.0.1.evil.example", "localhost.evil.example", "10.1.2.3", ""):
        told = ask(served, key, LISTENERS[key][kind], host=host)
        assert told.status == 421, (host, told)
        assert "http.hosts" in told.text


@pytest.mark.parametrize("key", LISTENERS)
@pytest.mark.parametrize("kind", [0, 1], ids=["read", "change"])
def test_programs_are_answered_by_every_name_of_this_machine(served: Served, key: str, kind: int) -> None:
    names = (
        "127.0.0.1:{}",
        "127.0.0.1",
        "localhost:{}",
        "LocalHost",
        "[::1]:{}",
        "127.0.1.1:1",
        "queue.example:80",
        "Queue.Example.",
    )
    for host in (*names, None):
        assert ask(served, key, LISTENERS[key][kind], host=host).status in (200, 201), host


@pytest.mark.parametrize("key", LISTENERS)
def test_a_page_from_elsewhere_changes_nothing(served: Served, key: str) -> None:
    change = LISTENERS[key][1]
    for header in (
        "Origin: http://evil.example",
        "Origin: null",
        "Origin: http://127.0.0.1:1",  # the same site, another port
        "Origin: http://queue.example",  # a name of this node, and still not where the request goes
        "Sec-Fetch-Site: cross-site",
        "Sec-Fetch-Site: same-site",
    ):
        told = ask(served, key, change, header)
        assert told.status == 403, (header, told)
        assert "elsewhere" in told.text or "may not use this node" in told.text


@pytest.mark.parametrize("key", LISTENERS)
def test_a_page_of_the_listener_itself_may_change_things(served: Served, key: str) -> None:
    scheme = "https" if key == "nsq.https_port" else "http"
    own = f"Origin: {scheme}://127.0.0.1:{served.ports[key]}"
    assert ask(served, key, LISTENERS[key][1], own, "Sec-Fetch-Site: same-origin").status in (200, 201)
    assert ask(served, key, LISTENERS[key][1], "Sec-Fetch-Site: none").status in (200, 201)


@pytest.mark.parametrize("key", LISTENERS)
def test_a_link_from_elsewhere_leads_to_a_page_that_only_reads(served: Served, key: str) -> None:
    assert ask(served, key, LISTENERS[key][0], "Sec-Fetch-Site: cross-site").status == 200


def test_a_link_of_sns_may_be_followed_from_elsewhere_and_carries_no_other_action(served: Served) -> None:
    for action in ("ConfirmSubscription&TopicArn=x&Token=y", "Unsubscribe&SubscriptionArn=x"):
        assert ask(served, "sqs.port", f"GET /?Action={action}", "Sec-Fetch-Site: cross-site").status in (200, 400, 404)
    for action in ("DeleteQueue", "ListQueues&Action=DeleteQueue", "ConfirmSubscription&Action=PurgeQueue", ""):
        told = ask(served, "sqs.port", f"GET /?Action={action}&QueueUrl=/0/t", "Sec-Fetch-Site: cross-site")
        assert told.status == 403, action


@pytest.mark.parametrize("key", LISTENERS)
def test_a_question_whether_a_page_may_is_answered_with_no(served: Served, key: str) -> None:
    path = LISTENERS[key][1].partition(" ")[2]
    told = ask(served, key, f"OPTIONS {path}", "Origin: http://evil.example", "Access-Control-Request-Method: POST")
    assert told.status == 403


def test_what_is_refused_is_counted(served: Served) -> None:
    counts = {
        name: served.node.ledger.total(name) for name in ("nsq:MISDIRECTED", "nsq lookup:FORBIDDEN", "api:forbidden")
    }
    ask(served, "nsq.http_port", "POST /pub?topic=t", host="evil.example")
    ask(served, "nsq.lookup_http_port", "POST /topic/create?topic=t", "Origin: null")
    ask(served, "api.port", "POST /api/v1/topics", "Origin: null")
    assert {name: served.node.ledger.total(name) - before for name, before in counts.items()} == dict.fromkeys(
        counts, 1
    )


def test_the_short_way_of_a_publish_looks_at_every_head(served: Served) -> None:
    served.ask("POST", "topics", {"name": "t"})
    stored = served.do(lambda: served.node.topics["t"].shards[0].readable_end)
    requests = served.nsq.requests
    with socket.create_connection(("127.0.0.1", served.ports["nsq.http_port"]), PATIENCE_S) as sock:
        for host, status in (("localhost", b"200"), ("evil.example", b"421"), ("localhost", b"200")):
            sock.sendall(publish(host))
            assert sock.recv(65536).split()[1] == status
    assert served.do(lambda: served.node.topics["t"].shards[0].readable_end) == stored + 2
    assert served.nsq.requests == requests + 1  # only the one that was refused went the long way


def test_a_listener_beyond_this_machine_answers_to_its_addresses_and_its_name() -> None:
    door = Door("0.0.0.0", ["queue.example"])
    for host in (b"10.1.2.3:4151", b"[fe80::1]", b"queue.example", socket.gethostname().encode(), b"localhost:1"):
        assert door.answers_to(host), host
    for host in (b"evil.example", b"10.1.2.3.evil.example", b"[queue.example]", b"a b", b"queue.example:x", b"\xff"):
        assert not door.answers_to(host), host
    assert not Door("127.0.0.1").answers_to(socket.gethostname().encode() + b".example")


def test_names_that_somebody_makes_up_take_no_memory() -> None:
    door = Door()
    for number in range(10_000):
        door.answers_to(b"localhost:%d" % number)
        door.answers_to(b"evil%d.example" % number)
    assert len(door.known) <= 256


# --- a real browser -----------------------------------------------------------------------------------------------

#: A page that tries what pages can try without asking, and says when it is done.
PAGE = """<body><iframe name=sink></iframe><script>
const node = "http://%(host)s:%(port)d";
const tries = [
  fetch(node + "/pub?topic=fetched", {method: "POST", mode: "no-cors", body: "x"}),
  fetch(node + "/pub?topic=beacon", {method: "POST", mode: "no-cors", body: "x", keepalive: true}),
  fetch(node + "/topic/delete?topic=kept", {method: "POST", mode: "no-cors"}),
  fetch(node + "/config/nsqlookupd_tcp_addresses", {method: "PUT", body: "[\\"127.0.0.1:1\\"]"}),
  fetch(node + "/stats?format=json").then(answer => answer.text()).then(text => { throw "read: " + text }),
];
const form = document.createElement("form");
Object.assign(form, {method: "POST", action: node + "/pub?topic=posted", target: "sink", enctype: "text/plain"});
const field = document.createElement("input");
Object.assign(field, {name: "x", value: "y"});
form.append(field);
document.body.append(form);
const sent = new Promise(done => document.querySelector("iframe").addEventListener("load", done));
form.submit();
Promise.allSettled([...tries, sent]).then(all => fetch("/done", {
  method: "POST", body: all.map(one => one.status + " " + (one.reason || "")).join("\\n")}));
</script></body>"""


class Elsewhere:
    """A web server of somebody else, whose page attacks a node."""

    def __init__(self, host: str, port: int) -> None:
        self.said = ""
        self.done = threading.Event()
        page = (PAGE % {"host": host, "port": port}).encode()
        elsewhere = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(page)

            def do_POST(self) -> None:
                elsewhere.said = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self._answer(b"")
                elsewhere.done.set()

            def _answer(self, content: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.mark.parametrize("host", ["127.0.0.1", "rebound.example"], ids=["another origin", "a name that leads here"])
def test_no_page_in_a_real_browser_publishes_or_deletes_or_reads(tmp_path: Path, host: str) -> None:
    program = shutil.which("chromium")
    assert program, "chromium is missing: apt-get install chromium"
    with Served(tmp_path / "data") as node:
        node.ask("POST", "topics", {"name": "kept"})
        elsewhere = Elsewhere(host, node.ports["nsq.http_port"])
        browser = subprocess.Popen(
            [
                program,
                *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
                # Names of somebody else lead to this machine: what DNS rebinding does, without waiting for it.
                "--host-resolver-rules=MAP *.example 127.0.0.1",
                f"--user-data-dir={tmp_path / 'profile'}",
                f"http://evil.example:{elsewhere.port}/",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert elsewhere.done.wait(PATIENCE_S), "the page never came to its end"
        finally:
            browser.terminate()
            browser.wait(PATIENCE_S)
            elsewhere.close()
        assert [topic["name"] for topic in node.get("topics").json["topics"]] == ["kept"]
        assert node.node.ledger.total("nsq:FORBIDDEN") + node.node.ledger.total("nsq:MISDIRECTED") >= 5
        assert "read:" not in elsewhere.said
