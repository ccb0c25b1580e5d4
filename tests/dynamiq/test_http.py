"""What the cases leave open: names, limits, bad input, restarts, settings; and other dialects on the same queue."""

from __future__ import annotations

import http.client
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.callers.quota import UserQuota
from penstock.delivery.source import Delivery
from penstock.dialects.dynamiq.codec import core_ids, element
from penstock.dialects.dynamiq.config import DynamiqConfig
from penstock.dialects.dynamiq.queue import SETTINGS
from penstock.dialects.dynamiq.stats import approximate_depth
from penstock.log.reader import Reader
from penstock.message import Batch
from penstock.settings import TopicSettings
from penstock.shown import SPACE, shown_id
from tests.callers.parts import users_in
from tests.dynamiq.desk import Desk, J, T
from tests.http.line import Line
from tests.nsq.caller import Caller
from tests.nsq.parts import pub
from tests.served import PATIENCE_S, Answer, Served


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


# --- paths and names --------------------------------------------------------------------------------------------------


def test_an_unknown_path_or_method_is_404(desk: Desk) -> None:
    for method, path in (
        ("GET", "/"),
        ("GET", "/v1"),
        ("POST", "/v1/queues/a"),
        ("GET", "/v3/queues"),
        ("PATCH", "/v1/topics/t"),
        ("PUT", "/v1/queues//message"),
        ("GET", "/v1/queues/a/messages/"),
    ):
        assert desk.ask(method, path) == (404, T, b"404 page not found")


def test_one_trailing_slash_is_tolerated(desk: Desk) -> None:
    assert desk.said("PUT", "/v1/queues/a/") == (201, b'"created"')
    assert desk.said("GET", "/queues/") == (200, b'{"queues":["a"]}')
    assert desk.ask("GET", "/queues//").status == 404


def test_names_are_letters_digits_and_three_signs(desk: Desk) -> None:
    good = "A-z_0.9" + "x" * 121
    assert desk.said("PUT", f"/v1/queues/{good}") == (201, b'"created"')
    assert desk.said("PUT", "/v1/topics/%61b") == (201, b'{"Queues":[]}')
    assert desk.said("GET", "/v1/topics/ab") == (200, b'{"Queues":[]}')
    for bad in (good + "x", "a%20b", "a%2Fb", "%C3%A9", "a:b", "%FF", "a%00"):
        for method, path in (("PUT", "/v1/queues/{}"), ("GET", "/topics/{}"), ("PUT", "/v1/queues/{}/message")):
            assert desk.ask(method, path.format(bad)) == (422, J, b'{"error":"Invalid name."}')


def test_the_status_pages(tmp_path: Path) -> None:
    desk = Desk(tmp_path, name="test0")
    assert desk.ask("GET", "/v1/ping") == (200, T, b"pong")
    assert desk.ask("GET", "/status/servers") == (200, T, b"Member: test0 127.0.0.1\n")
    assert desk.ask("GET", "/status/partitionrange").status == 200


def test_the_settings_of_a_queue_are_shown_under_both_names(desk: Desk) -> None:
    desk.queue("a", visibility_timeout=2.5)
    assert desk.ask("GET", "/v1/queues/a").content == (
        b'{"VisibilityTimeout":2.5,"MinPartitions":1,"MaxPartitions":10,"MaxPartitionAge":432000,'
        b'"CompressedMessages":false,"partitions":1,"visibility_timeout":2.5,"min_partitions":1,"max_partitions":10,'
        b'"max_partition_age":432000,"compressed_messages":false}'
    )


def test_strict_switches_refuse_what_is_passed_over_else(tmp_path: Path) -> None:
    desk = Desk(tmp_path, strict_204=True, strict_config=True)
    desk.queue("a", max_partitions=1)
    desk.send("a")
    assert len(desk.ids("a")) == 1
    assert desk.ask("GET", "/v1/queues/a/messages/1").status == 204
    for wrong in (b'{"max_partitions":"7"}', b'{"min_partitions":true}', b'{"compressed_messages":1}'):
        answer = desk.ask("PATCH", "/v1/queues/a", wrong)
        (name,) = msgspec.json.decode(wrong)
        assert (answer.status, answer.json) == (422, {"error": f"{name} is of the wrong type."})


# --- a queue and its topic --------------------------------------------------------------------------------------------


def test_a_topic_of_another_dialect_becomes_a_queue_and_keeps_its_messages(desk: Desk) -> None:
    desk.node.create_topic("orders").now()
    assert desk.ask("GET", "/v1/queues").json == {"queues": []}
    assert desk.ask("GET", "/v1/queues/orders").status == 404
    assert desk.said("PUT", "/v1/queues/orders") == (201, b'"created"')
    assert desk.ask("GET", "/v1/queues").json == {"queues": ["orders"]}


def test_a_queue_of_another_policy_is_left_as_it_is_and_locks_nothing_but_what_it_gave(desk: Desk) -> None:
    desk.node.create_topic("orders").now().create_subscription("queue").now()
    assert desk.ask("GET", "/v1/queues").json == {"queues": ["orders"]}
    before = desk.ask("PUT", "/v1/queues/orders").status
    assert (before, desk.node.topics["orders"].subscription("queue").settings.policy) == (422, "shared")
    ids = [desk.send("orders") for _ in range(4)]
    first = desk.ask("GET", "/v1/queues/orders/messages/2").json
    second = desk.ask("GET", "/v1/queues/orders/messages/10").json
    assert [each["id"] for each in (*first, *second)] == ids
    assert desk.ask("GET", "/v1/queues/orders/messages/10").json == []
    assert desk.ask("DELETE", f"/v1/queues/orders/messages/{','.join(ids)}").status == 200
    assert desk.node.topics["orders"].subscription("queue").counts()["held"] == 0


def test_somebody_else_who_takes_from_a_queue_locks_a_partition_and_any_id_is_deleted(desk: Desk) -> None:
    desk.queue("a", max_partitions=1)
    one, two = desk.send("a"), desk.send("a")
    holder, got = desk.node.topics["a"].subscription("queue").holder("another"), list[Delivery]()
    holder.look(1, 5_000_000_000, got.extend)
    assert [delivery.count for delivery in got] == [1]
    assert desk.ids("a") == []
    assert desk.delete("a", one) == 1
    desk.advance(30.001)
    assert desk.ids("a") == [two]


def test_what_cannot_be_spelled_is_not_listed(desk: Desk) -> None:
    topic = desk.node.create_topic("with blank").now()
    topic.create_subscription("queue", SETTINGS).now()
    assert desk.ask("GET", "/v1/queues").json == {"queues": []}


def test_a_topic_with_several_shards_is_one_queue(desk: Desk) -> None:
    topic = desk.node.create_topic("wide", TopicSettings(shards=4)).now()
    topic.create_subscription("queue", SETTINGS).now()
    desk.patch("wide", min_partitions=2, max_partitions=2)
    desk.sync()
    lines = [Line(desk.dynamiq.listener, port) for port in range(40)]
    sent = {desk.ask("PUT", "/v1/queues/wide/message", b"x", line=line).content.decode() for line in lines}
    assert sum(shard.end > 0 for shard in topic.shards) > 1
    got = [desk.ids("wide", 100) for _ in range(3)]
    assert got[2] == []
    assert sorted(got[0] + got[1]) == sorted(sent)
    halves = [{int(id_) * 2 // SPACE for id_ in each} for each in got[:2]]
    assert sorted(halves, key=min) == [{0}, {1}]
    assert desk.delete("wide", *sent) == 40


def test_changes_by_others_are_in_force_after_the_next_sync(desk: Desk) -> None:
    desk.queue("a")
    topic = desk.node.topics["a"]
    topic.update(TopicSettings(dialects={"dynamiq": {"min_partitions": 3}})).now()
    assert desk.partitions("a") == 1
    desk.sync()
    assert desk.partitions("a") == 3


# --- kill -9 ----------------------------------------------------------------------------------------------------------


def test_after_a_kill_deleted_messages_stay_away_and_the_others_come_back(desk: Desk) -> None:
    desk.queue("a", min_partitions=3, max_partitions=3)
    sent = [desk.send("a") for _ in range(60)]
    first, second = desk.ids("a", 5), desk.ids("a", 5)
    assert desk.delete("a", *first) == 5
    desk.kill()
    assert desk.ask("GET", "/v1/queues/a").json["MinPartitions"] == 3
    again = desk.ids("a", 100)
    assert not set(again) & {*first, *second}  # what was received is on lease still
    desk.advance(30.1)
    got = {id_ for _ in range(4) for id_ in desk.ids("a", 100)}
    assert got == set(sent) - set(first)


def test_topics_and_what_they_feed_survive_a_kill(desk: Desk) -> None:
    desk.queue("q")
    desk.ask("PUT", "/v1/topics/t")
    desk.ask("PUT", "/v1/topics/t/queues/q")
    desk.kill()
    assert desk.said("GET", "/topics/t") == (200, b'["q"]')
    assert list(desk.ask("PUT", "/v1/topics/t/message", b"x").json) == ["q"]


def test_an_old_message_is_read_from_disk(desk: Desk) -> None:
    desk.queue("a", max_partitions=1)
    one = desk.send("a", b"one")
    desk.kill()
    assert desk.ask("GET", f"/v1/queues/a/message/{one}").json == {"messages": [{"id": one, "body": "one"}]}
    assert desk.receive("a") == [{"id": one, "body": "one"}]


# --- what clients get wrong -------------------------------------------------------------------------------------------


def test_a_huge_body_is_refused_before_it_is_read(desk: Desk) -> None:
    desk.queue("a")
    line = Line(desk.dynamiq.listener)
    line.send(b"PUT /v1/queues/a/message HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048577\r\n\r\n")
    status, headers, content = line.answer()
    assert (status, headers["content-type"]) == (413, J)
    assert "error" in msgspec.json.decode(content)
    assert desk.send("a", b"x" * 1048576)


def test_a_store_that_takes_nothing_gives_no_id(desk: Desk) -> None:
    desk.queue("a")
    desk.node.topics["a"].intake.closed = "stopping"
    assert desk.ask("PUT", "/v1/queues/a/message", b"x") == (200, T, b"")
    desk.ask("PUT", "/v1/topics/t")
    desk.ask("PUT", "/v1/topics/t/queues/a")
    assert desk.ask("PUT", "/v1/topics/t/message", b"x") == (200, J, b'{"a":""}')


def test_a_queue_of_which_the_registry_cannot_be_read_is_told_of_when_its_topic_is_published_to(desk: Desk) -> None:
    for queue in ("away", "here"):
        desk.queue(queue)
        desk.ask("PUT", "/v1/topics/t")
        desk.ask("PUT", f"/v1/topics/t/queues/{queue}")
    [key] = desk.node.registry.list(f"subscription/{desk.node.topics['away'].record.number}/")
    desk.node.registry.propose({key: b"of a later version"}).now()
    desk.kill()
    assert "away" not in desk.node.topics
    told = desk.ask("PUT", "/v1/topics/t/message", b"x").json
    assert (list(told), told["away"]) == (["away", "here"], "")
    [copied] = desk.ask("POST", "/v2/topics/t/messages", b'{"messages": [{"body": "x"}]}').json["data"]["results"]
    assert list(copied["ids"]) == ["here"]
    assert (list(copied["errors"]), copied["errors"]["away"]["code"]) == (["away"], "unavailable")


def test_who_sends_faster_than_its_quota_is_slowed_then_told_when_to_come_back(tmp_path: Path) -> None:
    users_in(tmp_path, [], UserQuota(messages_per_second=1))
    desk = Desk(tmp_path)
    desk.queue("a")
    desk.ask("PUT", "/v1/topics/t")
    desk.ask("PUT", "/v1/topics/t/queues/a")
    lines = [Line(desk.dynamiq.listener, port) for port in range(1, 11)]
    for line in lines:
        line.send(b"PUT /v1/queues/a/message HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx")
    assert desk.ask("PUT", "/v1/topics/t/message", b"x") == (200, J, b'{"a":""}')
    desk.advance(5)
    answers = [line.answer() for line in lines]
    refused = [content for status, _, content in answers if status == 429]
    assert 0 < len(refused) < 10
    assert "the quota of user anonymous is 1 messages a second" in msgspec.json.decode(refused[0])["error"]
    assert all(headers["retry-after"] for status, headers, _ in answers if status == 429)
    assert len(desk.ids("a", 100)) == 10 - len(refused)


def test_one_answer_has_a_size(desk: Desk) -> None:
    desk.queue("a", max_partitions=1)
    for _ in range(12):
        desk.send("a", b"x" * 1_000_000)
    assert len(desk.ids("a", 1000)) == 9  # the one that reaches 8 MiB is the last


def test_half_a_request_locks_nothing(desk: Desk) -> None:
    desk.queue("a", max_partitions=1)
    desk.send("a")
    line = Line(desk.dynamiq.listener)
    line.send(b"GET /v1/queues/a/messages/1 HTTP/1.1\r\nHost: local")
    line.stop_sending()
    assert line.closed
    assert len(desk.ids("a")) == 1


@given(body=st.binary(max_size=50), key=st.integers(0, (1 << 63) - 1), id_=st.integers(1, SPACE))
def test_whatever_a_body_holds_an_element_says_it(body: bytes, key: int, id_: int) -> None:
    from base64 import b64decode

    batch = Batch(0, 1, 0, [0, len(body)], body, "dynamiq", {}, 0)
    told: dict[str, str] = msgspec.json.decode(msgspec.json.encode(element(shown_id(id_, key), batch, 0)))
    said = b64decode(told["body"]) if told.get("encoding") == "base64" else told["body"].encode()
    assert said == body
    assert core_ids([told["id"], "nothing", ""], key) == [id_]


def test_depth_is_guessed_from_the_ids() -> None:
    assert approximate_depth([100, 200, 300, 1000], 1) == 4 * SPACE // 900
    assert approximate_depth([5], 7) == 7
    assert approximate_depth([], 7) == 0


# --- over sockets, beside other dialects ------------------------------------------------------------------------------


class Client:
    """Somebody who keeps one connection."""

    def __init__(self, served: Served) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", served.ports["dynamiq.port"], timeout=PATIENCE_S)

    def ask(self, method: str, path: str, body: bytes | None = None) -> Answer:
        self._connection.request(method, path, body)
        response = self._connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path, dynamiq=DynamiqConfig(port=0)) as served:
        yield served
        assert served.do(lambda: served.node.bugs) == 0


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    client = Client(served)
    yield client
    client.close()


def message(frame: tuple[int, bytes]) -> tuple[bytes, bytes]:
    """Return id and body of an NSQ message."""
    kind, data = frame
    assert kind == 2
    return data[10:26], data[26:]


def test_an_nsq_publisher_feeds_a_queue(served: Served, client: Client) -> None:
    assert client.ask("PUT", "/v1/queues/jobs").content == b'"created"'
    with Caller(served.tcp_port) as nsq:
        nsq.send(pub("jobs", b"from nsq"))
        assert nsq.told() == "OK"
    (found,) = client.ask("GET", "/v1/queues/jobs/messages/10").json
    assert found["body"] == "from nsq"
    assert client.ask("DELETE", f"/v1/queues/jobs/message/{found['id']}").content == b"true"


def test_a_message_of_a_queue_is_read_over_nsq_and_from_the_log(served: Served, client: Client) -> None:
    client.ask("PUT", "/v1/queues/jobs")
    with Caller(served.tcp_port) as nsq:
        nsq.send(b"SUB jobs audit\n")
        assert nsq.told() == "OK"
        nsq.send(b"RDY 5\n")
        shown = client.ask("PUT", "/v1/queues/jobs/message", b"hello").content
        id_, body = message(nsq.frame())
        assert body == b"hello"
        nsq.send(b"FIN " + id_ + b"\n")
    topic = served.node.topics["jobs"]
    assert shown_id(int(id_, 16), topic.incarnation) == int(shown)
    assert [each["id"] for each in client.ask("GET", "/v1/queues/jobs/messages/1").json] == [shown.decode()]
    reader = Reader(f"{topic.path}/0")
    served.until(lambda: reader.ends()[1] == 1)
    (batch,) = reader.batches(0)
    assert batch.select(["offset", "body", "source"]).to_pylist() == [
        {"offset": 0, "body": b"hello", "source": "dynamiq"}
    ]


def test_a_client_that_sends_no_more_gets_its_answers(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.ports["dynamiq.port"]), PATIENCE_S) as sock:
        request = b"%b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"
        sock.sendall(
            request % (b"PUT /v1/queues/a", 0, b"")
            + request % (b"PUT /v1/queues/a/message", 1, b"x")
            + request % (b"GET /v1/queues/a/messages/1", 0, b"")
        )
        sock.shutdown(socket.SHUT_WR)
        told = b"".join(iter(lambda: sock.recv(65536), b""))
    assert told.count(b"HTTP/1.1 20") == 3
    assert b'"body":"x"' in told


def test_a_client_that_goes_in_the_middle_costs_nobody_anything(served: Served, client: Client) -> None:
    client.ask("PUT", "/v1/queues/a")
    for data in (b"PUT /v1/queues/a/message HTTP/1.1\r\nContent-Length: 100\r\n\r\nhalf", b"GET /v1/que", b"\x00\xff"):
        with socket.create_connection(("127.0.0.1", served.ports["dynamiq.port"]), PATIENCE_S) as sock:
            sock.sendall(data)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert client.ask("PUT", "/v1/queues/a/message", b"x").content
    assert [each["body"] for each in client.ask("GET", "/v1/queues/a/messages/9").json] == ["x"]


def test_it_is_shown_with_the_other_dialects(served: Served, client: Client) -> None:
    client.ask("PUT", "/v1/queues/a")
    (found,) = [each for each in served.get("dialects").json["dialects"] if each["name"] == "dynamiq"]
    assert [each["key"] for each in found["listeners"]] == ["dynamiq.port"]
    assert len(served.get("peers?dialect=dynamiq").json["peers"]) == 1
    figures = served.get("/metrics").content
    assert b"penstock_dynamiq_queues 1\n" in figures
    assert served.get("topics/a/subscriptions/queue").json["settings"]["policy"] == "partition-locked"


def test_the_openapi_document_of_version_1_tells_every_route_and_no_other(desk: Desk) -> None:
    document = desk.ask("GET", "/v1/openapi.json").json
    told = {
        (method.upper(), re.sub(r"{\w+}", "{}", path)) for path, found in document["paths"].items() for method in found
    }
    routes = {(method, re.sub(r"{\w+}", "{}", f"/v1{path}")) for method, path, _ in desk.dynamiq.listener.app._table()}  # type: ignore[attr-defined]
    assert told == routes
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert {each["name"] for each in operation["parameters"]} == set(re.findall(r"{(\w+)}", path))
