"""Requests that come to the wrong node, over real sockets: answered as on the right one, or said why not."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.callers import Caller
from penstock.callers.book import AccessKey, User
from penstock.callers.carried import carried
from penstock.callers.gate import Act
from penstock.callers.rights import ALL, Right, Rule
from penstock.clock import MILLISECOND
from penstock.config import CallersConfig
from penstock.dialects.dynamiq.config import DynamiqConfig
from penstock.dialects.sqs.codec.signature import signature_of, signed
from penstock.dialects.sqs.config import SqsConfig
from penstock.errors import ConfigError
from penstock.http.away import HOPS_MAX
from penstock.peers.preface import MARK, Guest, written
from penstock.peers.reception import PREFACE_NS
from penstock.peers.running import secret_of
from tests.callers.parts import TOKEN, bearer, user, users_in
from tests.nsq.certificates import certificates
from tests.peers.pair import SECRET, Pair, reception_of, running_of
from tests.served import Answer, Served


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("pair"), sqs=SqsConfig(port=0)) as found:
        yield found


def sqs(node: Served, operation: str, **asked: object) -> Answer:
    headers = {"x-amz-target": f"AmazonSQS.{operation}", "content-type": "application/x-amz-json-1.0"}
    return node.ask("POST", "/", asked, headers=headers, port=node.ports["sqs.port"])


def form(node: Served, **asked: str) -> Answer:
    raw = "&".join(f"{name}={value}" for name, value in asked.items())
    headers = {"content-type": "application/x-www-form-urlencoded"}
    return node.ask("POST", "/", raw=raw, headers=headers, port=node.ports["sqs.port"])


def by(node: Served, key: AccessKey, operation: str, **asked: object) -> Answer:
    """Ask for something with a signature."""
    now, body = datetime.now(UTC), json.dumps(asked)
    names = "host;x-amz-date;x-amz-target"
    headers = {
        "host": f"127.0.0.1:{node.ports['sqs.port']}",
        "x-amz-date": now.strftime("%Y%m%dT%H%M%SZ"),
        "x-amz-target": f"AmazonSQS.{operation}",
    }
    scope = f"{key.id}/{now:%Y%m%d}/us-east-1/sqs/aws4_request"
    said = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={names}, Signature="
    wire = [(name.encode(), value.encode()) for name, value in headers.items()]
    unsigned = signed(f"{said}none".encode(), b"", wire)
    assert unsigned is not None
    headers["authorization"] = said + signature_of(unsigned, key.secret, "POST", "/", b"", wire, body.encode())
    return node.ask("POST", "/", raw=body, headers=headers, port=node.ports["sqs.port"])


def queue_service(node: Served, method: str, path: str, body: object = None, raw: str | None = None) -> Answer:
    return node.ask(method, path, body, raw=raw, port=node.ports["dynamiq.port"])


def nsq(node: Served, path: str, raw: str = "") -> Answer:
    return node.ask("POST" if raw or "create" in path else "GET", path, raw=raw, port=node.ports["nsq.http_port"])


def test_the_api_answers_on_either_node(pair: Pair) -> None:
    here, there = pair.n1, pair.n2
    assert there.post("topics", {"name": "api"}).status == 201
    assert here.publish("api", "before") == ["0000000000000001"]
    assert here.post("topics/api/subscriptions", {"name": "s"}).status == 201
    leased = here.lease("api", "s")
    assert [each["body"] for each in leased] == ["before"]
    assert there.get("topics/api/subscriptions/s").json["in_flight"] == 1
    acked = here.post("topics/api/subscriptions/s/ack", {"receipts": [leased[0]["receipt"]]})
    assert acked.status == 200, acked
    assert there.get("topics/api/subscriptions/s").json["counts"]["acked"] == 1
    assert here.ask("HEAD", "topics/api").headers == there.ask("HEAD", "topics/api").headers
    assert here.post("topics", {"name": "api"}).code == "conflict"
    assert here.get("topics/nowhere").code == "not_found"


def test_lists_name_the_topics_of_all_nodes(pair: Pair) -> None:
    pair.n1.publish("list-1", "x")
    pair.n2.publish("list-2", "x", "y")
    for node, other in ((pair.n1, "n2"), (pair.n2, "n1")):
        found = {each["name"]: each for each in node.get("topics?prefix=list-").json["topics"]}
        assert {name: each["rows"] for name, each in found.items()} == {"list-1": 1, "list-2": 2}
        assert [each["node"] for each in found.values() if "node" in each] == [other]
    assert [each["name"] for each in pair.n1.get("topics?prefix=list-&here=true").json["topics"]] == ["list-1"]


def test_sqs_answers_on_either_node(pair: Pair) -> None:
    here, there = pair.n1, pair.n2
    made = sqs(there, "CreateQueue", QueueName="jobs").json["QueueUrl"]
    url = sqs(here, "GetQueueUrl", QueueName="jobs").json["QueueUrl"]
    assert url.rpartition("/")[2] == made.rpartition("/")[2] == "jobs"
    assert f":{here.ports['sqs.port']}/" in url  # as its client reaches it
    assert sqs(here, "SendMessage", QueueUrl=url, MessageBody="one").status == 200
    sent = sqs(here, "SendMessageBatch", QueueUrl=url, Entries=[{"Id": "a", "MessageBody": "two"}])
    assert [each["Id"] for each in sent.json["Successful"]] == ["a"]
    got = sqs(here, "ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10).json["Messages"]
    assert sorted(each["Body"] for each in got) == ["one", "two"]
    gone = sqs(here, "DeleteMessage", QueueUrl=url, ReceiptHandle=got[0]["ReceiptHandle"])
    assert gone.status == 200
    told = sqs(there, "GetQueueAttributes", QueueUrl=made, AttributeNames=["All"]).json["Attributes"]
    assert told["ApproximateNumberOfMessagesNotVisible"] == "1"
    assert b"<GetQueueUrlResult>" in form(here, Action="GetQueueUrl", QueueName="jobs").content
    assert [each.rpartition("/")[2] for each in sqs(here, "ListQueues").json["QueueUrls"]] == ["jobs"]
    # A queue for dead letters may be on another node than the queue.
    sqs(here, "CreateQueue", QueueName="letters")
    policy = json.dumps({"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:letters", "maxReceiveCount": 3})
    arn = sqs(here, "GetQueueAttributes", QueueUrl=url.replace("jobs", "letters"), AttributeNames=["QueueArn"])
    policy = json.dumps({"deadLetterTargetArn": arn.json["Attributes"]["QueueArn"], "maxReceiveCount": 3})
    assert sqs(here, "SetQueueAttributes", QueueUrl=url, Attributes={"RedrivePolicy": policy}).status == 200
    sources = sqs(there, "ListDeadLetterSourceQueues", QueueUrl=url.replace("jobs", "letters")).json
    assert [each.rpartition("/")[2] for each in sources["queueUrls"]] == ["jobs"]


def test_a_long_poll_on_the_wrong_node_ends_with_the_first_message(pair: Pair) -> None:
    here, there = pair.n1, pair.n2
    url = sqs(there, "CreateQueue", QueueName="polled").json["QueueUrl"]
    with socket.create_connection(("127.0.0.1", here.ports["sqs.port"]), 60) as waiting:
        asked = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}).encode()
        head = b"POST / HTTP/1.1\r\nhost: localhost\r\nx-amz-target: AmazonSQS.ReceiveMessage\r\n"
        whole = head + b"content-length: %d\r\n\r\n" % len(asked) + asked
        waiting.sendall(whole)
        polls = there.node.served["sqs"].running.api.receiver.polls  # type: ignore[attr-defined]
        there.until(lambda: bool(len(polls.waiting)))
        sqs(there, "SendMessage", QueueUrl=url, MessageBody="at last")
        assert b"at last" in waiting.recv(65536)
        waiting.sendall(whole)
        there.until(lambda: bool(len(polls.waiting)))
    there.until(lambda: not len(polls.waiting))  # nobody waits for a client that is gone


def test_a_client_that_has_said_all_is_answered_on_either_node(pair: Pair) -> None:
    pair.n2.post("topics", {"name": "half"})
    sqs(pair.n2, "CreateQueue", QueueName="half-polled")
    for node in (pair.n1, pair.n2):
        for kept in range(2):  # the second goes over a connection that is there
            body = b"%d at %d" % (kept, node.ports["nsq.http_port"])
            head = b"POST /pub?topic=half HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
            assert said_to(node, "nsq.http_port", head + body).endswith(b"\r\n\r\nOK")
            if not kept:
                assert nsq(node, "/pub?topic=half", "between").content == b"OK"
        # One that waits counts as gone.
        asked = json.dumps({"QueueUrl": "http://localhost/000000000000/half-polled", "WaitTimeSeconds": 20}).encode()
        head = b"POST / HTTP/1.1\r\nhost: localhost\r\nx-amz-target: AmazonSQS.ReceiveMessage\r\n"
        told = said_to(node, "sqs.port", head + b"content-length: %d\r\n\r\n" % len(asked) + asked)
        assert not told or told.startswith(b"HTTP/1.1 503 ")
    assert pair.n2.get("topics/half").json["published"] == 6


def said_to(node: Served, port: str, wire: bytes) -> bytes:
    """Return what is said to somebody who sends this, and nothing more."""
    with socket.create_connection(("127.0.0.1", node.ports[port]), 60) as client:
        client.sendall(wire)
        client.shutdown(socket.SHUT_WR)
        told = b""
        while part := client.recv(65536):
            told += part
        return told


def test_dynamiq_answers_on_either_node(pair: Pair) -> None:
    here, there = pair.n1, pair.n2
    assert queue_service(there, "PUT", "/v1/queues/chores").status == 201
    assert queue_service(here, "PUT", "/v1/queues/chores").status == 422
    id_ = queue_service(here, "PUT", "/v1/queues/chores/message", raw="hello").content.decode()
    assert int(id_)
    got = queue_service(here, "GET", "/v1/queues/chores/messages/10").json
    assert [(str(each["id"]), each["body"]) for each in got] == [(id_, "hello")]
    assert queue_service(here, "DELETE", f"/v1/queues/chores/message/{id_}").json is True
    assert "chores" in queue_service(here, "GET", "/v1/queues").json["queues"]
    assert queue_service(here, "GET", "/v2/queues/chores/counts").json["data"]["total"] == 0
    shown = queue_service(here, "GET", "/v2/queues?prefix=chores").json["data"]["items"]
    assert [(each["name"], each["node"]) for each in shown] == [("chores", "n2")]
    assert queue_service(here, "DELETE", "/v1/queues/chores").json == {"Deleted": True}
    assert queue_service(there, "GET", "/v1/queues/chores").status == 404


def test_a_queue_that_nobody_has_now_refuses_its_copy_and_the_others_get_theirs(pair: Pair) -> None:
    here, there = pair.n1, pair.n2
    queue_service(here, "PUT", "/v1/topics/moves")
    for node, name in ((here, "stays"), (there, "leaves")):
        queue_service(node, "PUT", f"/v1/queues/{name}")
        assert queue_service(node, "PUT", f"/v1/topics/moves/queues/{name}").status == 200
    pair.told(here).leaving.add("leaves")
    try:
        assert queue_service(here, "GET", "/v1/topics/moves").json == {"Queues": ["leaves", "stays"]}
        first = queue_service(here, "PUT", "/v1/topics/moves/message", raw="x")
        assert (first.status, sorted(first.json), first.json["leaves"]) == (200, ["leaves", "stays"], "")
        messages = {"messages": [{"body": "y"}, {"body": "z"}]}
        told = queue_service(here, "POST", "/v2/topics/moves/messages", messages).json["data"]
        assert told["stored"] == 2
        for result in told["results"]:
            assert list(result["ids"]) == ["stays"]
            assert result["errors"]["leaves"]["code"] == "unavailable"
    finally:
        pair.told(here).leaving.clear()
    assert queue_service(here, "PUT", "/v1/topics/moves/message", raw="x").json["leaves"]


def test_dynamiq_case_24_nodes_of_a_cluster_have_ranges_that_meet_and_say_the_same_of_each_other(
    tmp_path: Path,
) -> None:
    names = ("n1", "n2", "n3")
    with Pair(tmp_path, names=names, dynamiq=DynamiqConfig(name="zz", port=0)) as pair:
        nodes = list(pair.nodes.values())
        for path in ("/v1", ""):
            ranges = [queue_service(node, "GET", f"{path}/status/partitionrange").json for node in nodes]
            assert ranges == [
                {"bottom": "0", "top": "3074457345618258602"},
                {"bottom": "3074457345618258602", "top": "6148914691236517204"},
                {"bottom": "6148914691236517204", "top": "9223372036854775807"},
            ]
            said = [queue_service(node, "GET", f"{path}/status/servers").content.decode() for node in nodes]
            assert [line.split()[:2] for line in said[0].splitlines()] == [["Member:", name] for name in names]
            assert said[0] == said[1] == said[2]


def test_nsq_over_http_answers_on_either_node(pair: Pair) -> None:
    here, there = pair.n1, pair.n2
    nsq(there, "/topic/create?topic=web")
    nsq(there, "/channel/create?topic=web&channel=c")
    assert nsq(here, "/pub?topic=web", "one").content == b"OK"
    assert nsq(here, "/mpub?topic=web", "two\nthree").content == b"OK"
    assert nsq(here, "/channel/create?topic=web&channel=d").status == 200
    stats = json.loads(nsq(there, "/stats?format=json&topic=web").content)
    found: dict[str, Any] = {each["channel_name"]: each["depth"] for each in stats["topics"][0]["channels"]}
    assert found == {"c": 3, "d": 0}
    assert not json.loads(nsq(here, "/stats?format=json&topic=web").content)["topics"]  # nsqadmin asks every node


def test_rights_are_those_of_the_node_that_was_asked(tmp_path: Path) -> None:
    rights = user("bob", ("publish", "open-*"), ("manage", "open-*"), token=TOKEN)
    users_in(tmp_path / "n1", [rights])
    with Pair(tmp_path, callers=CallersConfig(audit="off")) as pair:
        for name in ("open-1", "shut-1"):
            assert pair.n2.post("topics", {"name": name}).status == 201
        lines = b'{"body": "x"}'
        allowed = pair.n1.post("topics/open-1/messages", raw=lines, headers=bearer(TOKEN))
        assert allowed.status == 200, allowed
        for path in ("topics/shut-1/messages", "topics/shut-1/pause"):
            assert pair.n1.post(path, raw=lines, headers=bearer(TOKEN)).code == "forbidden"
        # A client cannot say itself who it is in the words of a node.
        forged = {
            **bearer(TOKEN),
            "x-penstock-caller": '{"caller": {"rules": [{"right": "admin", "topics": "*"}]}, "hops": 1}',
        }
        assert pair.n1.post("topics/shut-1/messages", raw=lines, headers=forged).code == "forbidden"
        wrong = pair.n1.post("topics/open-1/messages", raw=lines, headers=bearer("another"))
        assert wrong.code == "unauthorized"


def test_whoever_signs_may_what_it_may_on_the_other_node_too(tmp_path: Path) -> None:
    key, all_keys = AccessKey("PKBOB000000000000001", "of bob"), AccessKey("PKANN000000000000001", "of ann")
    rules = (Rule("consume", "*"), Rule("publish", "open-*"))
    for name in ("n1", "n2"):
        users_in(tmp_path / name, [User("bob", rules, keys=(key,)), User("ann", ALL, keys=(all_keys,))])
    with Pair(tmp_path, sqs=SqsConfig(port=0), callers=CallersConfig(anonymous="off", audit="off")) as pair:
        here, there = pair.n1, pair.n2
        urls = {}
        for queue in ("open-letters", "open-jobs", "shut"):
            urls[queue] = by(there, all_keys, "CreateQueue", QueueName=queue).json["QueueUrl"]
        arns = {name: f"arn:aws:sqs:us-east-1:000000000000:{name}" for name in urls}
        policy = json.dumps({"deadLetterTargetArn": arns["open-letters"], "maxReceiveCount": 3})
        set_to = {"QueueUrl": urls["open-jobs"], "Attributes": {"RedrivePolicy": policy}}
        assert by(there, all_keys, "SetQueueAttributes", **set_to).status == 200
        asked = {"SourceArn": arns["open-letters"], "DestinationArn": arns["shut"]}
        refused = by(here, key, "StartMessageMoveTask", **asked)
        assert (refused.status, b"AccessDenied" in refused.content) == (403, True), refused
        asked["DestinationArn"] = arns["open-jobs"]
        assert by(here, key, "StartMessageMoveTask", **asked).status == 200
        # Both nodes know who asked.
        acts: list[Act] = []
        there.node.gate.told = acts.append
        assert by(here, all_keys, "DeleteQueue", QueueUrl=urls["shut"]).status == 200
        assert [each.who.name for each in acts if each.who is not None and each.act == "delete"] == ["ann"]


def test_a_user_with_many_rights_and_a_long_head_is_brought_to_the_other_node(tmp_path: Path) -> None:
    rules: list[tuple[Right, str]] = [("publish", f"{number}-{'x' * 100}") for number in range(1000)]
    users_in(tmp_path / "n1", [user("bob", *rules, ("consume", "*"), token=TOKEN)])
    with Pair(tmp_path, callers=CallersConfig(audit="off")) as pair:
        assert pair.n2.post("topics", {"name": "t"}).status == 201
        answer = pair.n1.ask("GET", "topics/t", headers={**bearer(TOKEN), "x-long": "x" * 60_000})
        assert answer.status == 200, answer


def test_a_secret_that_can_be_guessed_is_refused(tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_text("hush\n")
    with pytest.raises(ConfigError, match="the cluster's secret has 4 bytes, which can be guessed"):
        secret_of(str(short))
    assert secret_of("") == b""


def test_nobody_is_carried_with_rights_that_it_does_not_have(tmp_path: Path) -> None:
    with Pair(tmp_path, callers=CallersConfig(anonymous="off", audit="off")) as pair:
        gate = pair.n1.node.gate
        nobody = Caller(gate, "10.0.0.1:5", "sqs.port")
        assert not nobody.is_known
        assert carried(nobody, gate).rules == ()


def test_a_topic_that_moves_on_is_looked_for_at_two_nodes_and_no_more(pair: Pair) -> None:
    here, there = pair.n1, pair.n2
    there.post("topics", {"name": "nomad"})
    pair.told(there).lies["nomad-2"] = "n1"
    pair.told(here).lies["nomad-2"] = "n2"
    answer = here.get("topics/nomad-2")
    assert (answer.status, answer.code) == (503, "unavailable")
    assert "on its way" in answer.message
    assert HOPS_MAX == 2
    # It moved after the first look: the node that is asked knows where it is now.
    here.post("topics", {"name": "settled"})
    pair.told(here).lies["settled"] = "n2"
    assert there.get("topics/settled").status == 200


def test_an_owner_that_dies_before_it_answers_leaves_the_outcome_unknown(tmp_path: Path) -> None:
    with Pair(tmp_path, sqs=SqsConfig(port=0)) as pair:
        here, there = pair.n1, pair.n2
        url = sqs(there, "CreateQueue", QueueName="cut").json["QueueUrl"]
        assert here.get("topics/cut").status == 200
        with socket.create_connection(("127.0.0.1", here.ports["sqs.port"]), 60) as waiting:
            asked = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}).encode()
            head = b"POST / HTTP/1.1\r\nhost: localhost\r\nx-amz-target: AmazonSQS.ReceiveMessage\r\n"
            waiting.sendall(head + b"content-length: %d\r\n\r\n" % len(asked) + asked)
            polls = there.node.served["sqs"].running.api.receiver.polls  # type: ignore[attr-defined]
            there.until(lambda: bool(len(polls.waiting)))
            pair.kill(there)
            said = waiting.recv(65536)
        assert said.startswith(b"HTTP/1.1 503 ")
        assert b"was carried out is not known" in said
        gone = here.get("topics/cut")
        assert (gone.status, gone.code) == (503, "unavailable")
        assert "nothing was done" in gone.message
        found = here.get("topics").json["topics"]
        assert [(each["name"], "is not there" in each["problem"]) for each in found] == [("cut", True)]
        assert here.publish("mine", "goes on")


def test_a_node_with_another_secret_is_refused_and_others_go_on(pair: Pair) -> None:
    here, there = pair.n1, pair.n2
    there.publish("kept", "x")
    before = reception_of(there).refused
    running_of(here).way._secret = b"another"
    try:
        here.do(lambda: here.node.peers.leave("n2") if here.node.peers is not None else None)
        refused = here.get("topics/kept")
        assert (refused.status, "does not know the cluster's secret" in refused.message) == (503, True)
    finally:
        running_of(here).way._secret = SECRET.encode()
    there.until(lambda: reception_of(there).refused == before)  # it was the guest that saw it first
    assert here.get("topics/kept").status == 200


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", MARK + b"\xff" * 8, MARK + b"\0\0\0\2{}", b"\0" * 70_000]
)
def test_garbage_is_refused_counted_and_costs_nobody_else(pair: Pair, garbage: bytes) -> None:
    there = pair.n2
    before = reception_of(there).refused
    with socket.create_connection(("127.0.0.1", there.ports["cluster.port"]), 60) as stranger:
        stranger.sendall(garbage)
        said = b""
        try:
            while part := stranger.recv(65536):
                said += part
        except ConnectionResetError:  # what it sent was not all read
            pass
    there.until(lambda: reception_of(there).refused == before + 1)
    assert MARK in said or not said
    assert not reception_of(there).arriving


def test_a_stranger_learns_why_and_whoever_says_nothing_is_hung_up_on(pair: Pair) -> None:
    there = pair.n2
    with socket.create_connection(("127.0.0.1", there.ports["cluster.port"]), 60) as stranger:
        hello = Guest(b"", "green", "n1", "n2", b"1" * 32).hello
        stranger.sendall(written(hello))
        assert b"is of cluster green" in stranger.recv(65536)
    reception_of(there).preface_ns = MILLISECOND
    with socket.create_connection(("127.0.0.1", there.ports["cluster.port"]), 60) as silent:
        assert silent.recv(65536).startswith(MARK)
        assert silent.recv(1) == b""
    reception_of(there).preface_ns = PREFACE_NS


def test_nodes_with_certificates_need_no_secret(tmp_path: Path) -> None:
    found = certificates()
    files = {"tls_ca": found.authority, "tls_cert": found.server, "tls_key": found.server_key}
    cluster = {"secret_file": "", **{name: str(path) for name, path in files.items()}}
    with Pair(tmp_path, cluster=cluster, host="localhost") as pair:
        pair.n2.publish("safe", "x")
        assert pair.n1.get("topics/safe").json["published"] == 1
        hello = written(Guest(b"", "test", "n1", "n2", b"1" * 32).hello)
        assert _over_tls(pair.n2.ports["cluster.port"], hello) == b""
        assert not pair.n2.do(lambda: reception_of(pair.n2).arriving)


def _over_tls(port: int, data: bytes) -> bytes:
    """Return what somebody without a certificate hears."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), 60) as plain:
        try:
            with context.wrap_socket(plain) as tls:
                tls.sendall(data)
                return tls.recv(65536)
        except (ssl.SSLError, ConnectionError):
            return b""
