"""Version 2 of the queue service: resources, envelope, receipts, leases, dead letters."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.dynamiq.desk import Answer, Desk
from tests.http.line import Line

SECOND = 1_000_000_000


class Client:
    """Somebody who speaks version 2."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def ask(self, method: str, path: str, body: object = None, *, raw: bytes = b"", line: Line | None = None) -> Answer:
        content = msgspec.json.encode(body) if body is not None else raw
        return self.desk.ask(method, f"/v2/{path}", content, line=line)

    def data(self, method: str, path: str, body: object = None, status: int = 200) -> Any:
        """Ask for what must work and return what is in the envelope."""
        answer = self.ask(method, path, body)
        assert (answer.status, answer.kind) == (status, "application/json"), answer
        assert set(answer.json) == {"data"}
        return answer.json["data"]

    def refused(self, method: str, path: str, body: object = None, *, raw: bytes = b"") -> tuple[int, str, str]:
        """Ask for what must be refused and return status, code and field."""
        answer = self.ask(method, path, body, raw=raw)
        assert set(answer.json) == {"error"}, answer
        error = answer.json["error"]
        assert error["message"]
        return answer.status, error["code"], error.get("field", "")

    def queue(self, name: str, **settings: object) -> None:
        self.data("POST", "queues", {"name": name, "settings": settings}, 201)

    def send(self, queue: str, *bodies: str, **more: object) -> list[str]:
        told = self.data("POST", f"queues/{queue}/messages", {"messages": [{"body": body, **more} for body in bodies]})
        assert (told["stored"], told["refused"]) == (len(bodies), 0)
        return [each["id"] for each in told["results"]]

    def receive(self, queue: str, **asked: object) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.data("POST", f"queues/{queue}/leases", {"max": 10, **asked})["messages"]
        return found

    def bodies(self, queue: str, **asked: object) -> list[str]:
        return sorted(message["body"] for message in self.receive(queue, **asked))

    def counts(self, queue: str) -> tuple[int, int, int, int]:
        found = self.data("GET", f"queues/{queue}/counts")
        return found["ready"], found["in_flight"], found["delayed"], found["total"]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    assert desk.node.bugs == 0


@pytest.fixture
def client(desk: Desk) -> Client:
    return Client(desk)


# --- queues -----------------------------------------------------------------------------------------------------------


def test_a_queue_is_made_shown_changed_and_deleted(desk: Desk, client: Client) -> None:
    made = client.data("POST", "queues", {"name": "jobs", "settings": {"visibility_timeout": 2.5}}, 201)
    assert made == client.data("GET", "queues/jobs")
    assert made["settings"] == {
        "visibility_timeout": 2.5,
        "min_partitions": 1,
        "max_partitions": 10,
        "max_partition_age": 432000.0,
        "compressed_messages": False,
        "max_receives": 0,
        "dead_letter_queue": None,
    }
    assert made["counts"] == {"ready": 0, "in_flight": 0, "delayed": 0, "total": 0}
    assert client.refused("POST", "queues", {"name": "jobs"}) == (409, "conflict", "")
    changed = client.data("PATCH", "queues/jobs", {"min_partitions": 4, "compressed_messages": True})
    assert (changed["partitions"], changed["settings"]["visibility_timeout"]) == (4, 2.5)
    assert desk.ask("GET", "/v1/queues/jobs").json["MinPartitions"] == 4  # at once, for both versions
    assert client.data("DELETE", "queues/jobs") == {"deleted": 1}
    assert client.refused("GET", "queues/jobs") == (404, "not_found", "")


def test_settings_that_cannot_be_change_nothing_and_are_named(client: Client) -> None:
    client.queue("jobs")
    for given, field in (
        ({"visibility_timeout": -1}, "visibility_timeout"),
        ({"visibility_timeout": "3"}, "visibility_timeout"),
        ({"visibility_timeout": 43201}, "visibility_timeout"),
        ({"min_partitions": 0}, "min_partitions"),
        ({"min_partitions": 11}, "min_partitions"),
        ({"max_partitions": 70000}, "max_partitions"),
        ({"compressed_messages": 1}, "compressed_messages"),
        ({"visibility": 3}, "visibility"),
        ({"max_receives": 3}, "dead_letter_queue"),
        ({"dead_letter_queue": "dead"}, "max_receives"),
        ({"max_receives": 3, "dead_letter_queue": "dead"}, "dead_letter_queue"),
        ({"max_receives": 3, "dead_letter_queue": "jobs"}, "dead_letter_queue"),
        ({"visibility_timeout": 9, "max_receives": 1001}, "max_receives"),
    ):
        before = client.data("GET", "queues/jobs")
        assert client.refused("PATCH", "queues/jobs", given) == (400, "bad_request", field)
        made = {
            "name": "new",
            "settings": {**given, **({"dead_letter_queue": "new"} if "jobs" in given.values() else {})},
        }
        assert client.refused("POST", "queues", made)[:2] == (400, "bad_request")
        assert client.data("GET", "queues/jobs") == before
    assert client.refused("GET", "queues/new")[0] == 404


def test_queues_and_topics_are_listed_in_pages(client: Client) -> None:
    for number in range(5):
        client.queue(f"q{number}")
        client.data("POST", "topics", {"name": f"t{number}"}, 201)
    for kind, first in (("queues", "q"), ("topics", "t")):
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            page = client.data("GET", f"{kind}?limit=2&after={after}")
            found += [each["name"] for each in page["items"]]
            after = page["next"]
        assert found == [f"{first}{number}" for number in range(5)]
        assert [each["name"] for each in client.data("GET", f"{kind}?prefix={first}3")["items"]] == [f"{first}3"]
        assert client.refused("GET", f"{kind}?limit=0") == (400, "bad_request", "limit")
        assert client.refused("GET", f"{kind}?size=3") == (400, "bad_request", "size")


# --- messages ---------------------------------------------------------------------------------------------------------


def test_a_message_comes_back_with_everything_it_brought(desk: Desk, client: Client) -> None:
    client.queue("jobs")
    sent = {
        "body": "resize",
        "key": "customer-7",
        "tag": "red",
        "headers": {"size": "L", "nested": {"a": [1]}},
        "traffic": 5,
        "event_time": "2026-01-31T12:00:00Z",
        "dedup": "once",
    }
    binary = {"body_base64": base64.b64encode(b"\xff\xfe\x00").decode(), "key_base64": "/w=="}
    told = client.data("POST", "queues/jobs/messages", {"messages": [sent, binary, sent]})
    assert (told["stored"], told["duplicates"]) == (3, 1)
    first, second, third = (each["id"] for each in told["results"])
    assert first == third
    found = {message["id"]: message for message in client.receive("jobs")}
    assert set(found) == {first, second}
    message = found[first]
    assert {name: message[name] for name in sent if name != "event_time"} == {
        name: value for name, value in sent.items() if name != "event_time"
    }
    assert message["event_time"] == "2026-01-31T12:00:00.000000000Z"
    assert (message["attempts"], message["source"]) == (1, "dynamiq")
    assert (found[second]["body_base64"], found[second]["key_base64"]) == (binary["body_base64"], "/w==")
    assert "body" not in found[second]
    shown = client.data("GET", f"queues/jobs/messages/{first}")
    assert shown == {name: value for name, value in message.items() if name not in ("attempts", "receipt")}


def test_of_a_batch_each_message_is_stored_or_refused_by_itself(client: Client) -> None:
    client.queue("jobs")
    messages: list[object] = [
        {"body": "good", "tag": "red"},
        {"body": 7},
        {"bdoy": "x"},
        {},
        "text",
        {"body": "x", "body_base64": "eA=="},
        {"body_base64": "!"},
        {"body": "x", "delay": 1, "due": "5s"},
        {"body": "x", "delay": -1},
        {"body": "x", "tag": "a", "due": "whenever"},
        {"body": "x" * 1_048_577},
        {"body": "x", "traffic": ["nobody"]},
        {"body": "also good", "key": "k"},
    ]
    told = client.data("POST", "queues/jobs/messages", {"messages": messages})
    fields = [each.get("error", {}).get("field") for each in told["results"]]
    assert fields == [
        *(None, "body", "bdoy", "body", None, "body", "body_base64", "delay", "delay", "due", "body", "traffic", None)
    ]
    assert (told["stored"], told["refused"]) == (2, 11)
    assert told["results"][2]["error"]["message"].endswith("did you mean 'body'?")
    found = {message["body"]: message for message in client.receive("jobs")}
    assert (found["good"]["tag"], found["also good"]["key"]) == ("red", "k")
    assert "key" not in found["good"]
    assert "tag" not in found["also good"]


def test_delay_and_due_time_hold_a_message_back(desk: Desk, client: Client) -> None:
    client.queue("jobs")
    client.send("jobs", "delayed", delay=10)
    client.send("jobs", "due", due="20s")
    client.send("jobs", "now", delay=0)
    assert client.counts("jobs") == (1, 0, 2, 3)
    assert client.bodies("jobs") == ["now"]
    assert client.counts("jobs") == (0, 1, 2, 3)
    desk.advance(10.001)
    assert client.bodies("jobs") == ["delayed"]
    desk.advance(10)
    assert client.bodies("jobs") == ["due"]
    assert client.counts("jobs")[3] == 3


def test_a_queue_is_emptied_of_all_it_has(client: Client) -> None:
    client.queue("jobs")
    client.send("jobs", "a", "b", "c")
    client.send("jobs", "later", delay=60)
    (held,) = client.receive("jobs", max=1)
    assert client.counts("jobs") == (2, 1, 1, 4)
    assert client.data("DELETE", "queues/jobs/messages") == {"deleted": 4}
    assert client.counts("jobs") == (0, 0, 0, 0)
    assert client.refused("DELETE", f"queues/jobs/leases/{held['receipt']}") == (409, "not_leased", "receipt")


# --- leases -----------------------------------------------------------------------------------------------------------


def test_a_receipt_deletes_extends_and_releases_until_it_is_stale(desk: Desk, client: Client) -> None:
    client.queue("jobs")
    client.send("jobs", "a")
    (first,) = client.receive("jobs", visibility=10)
    lease = f"queues/jobs/leases/{first['receipt']}"
    assert client.data("PATCH", lease, {"visibility": 70}) == {"receipt": first["receipt"]}
    desk.advance(60)
    assert client.receive("jobs") == []
    assert client.data("POST", f"{lease}/release", {"delay": 5}) == {"receipt": first["receipt"]}
    assert client.refused("PATCH", lease, {}) == (409, "not_leased", "receipt")
    assert client.receive("jobs") == []
    desk.advance(5.001)
    (second,) = client.receive("jobs")
    assert (second["id"], second["attempts"]) == (first["id"], 2)
    assert client.refused("DELETE", lease) == (409, "not_leased", "receipt")
    assert client.data("DELETE", f"queues/jobs/leases/{second['receipt']}") == {"receipt": second["receipt"]}
    assert client.refused("DELETE", f"queues/jobs/leases/{second['receipt']}")[1] == "not_leased"
    desk.advance(60)
    assert client.receive("jobs") == []


def test_the_visibility_of_a_receive_is_its_own_or_the_queues(desk: Desk, client: Client) -> None:
    client.queue("jobs", visibility_timeout=20)
    client.send("jobs", "a", "b")
    client.receive("jobs", max=1)
    client.receive("jobs", max=1, visibility=5)
    desk.advance(5.1)
    assert len(client.receive("jobs", visibility=0)) == 1
    desk.advance(0.01)
    assert len(client.receive("jobs")) == 1  # one with no visibility is there for the next
    desk.advance(20.1)
    assert client.counts("jobs") == (2, 0, 0, 2)


def test_a_batch_of_receipts_is_answered_one_by_one(client: Client) -> None:
    client.queue("jobs")
    client.queue("other")
    client.send("jobs", "a", "b", "c")
    client.send("other", "x")
    one, two, three = (message["receipt"] for message in client.receive("jobs"))
    (foreign,) = (message["receipt"] for message in client.receive("other"))
    told = client.data("POST", "queues/jobs/leases/release", {"receipts": [three]})
    assert (told["held"], told["refused"]) == (1, 0)
    told = client.data("POST", "queues/jobs/leases/extend", {"receipts": [one, three, two], "visibility": 60})
    assert [each.get("error", {}).get("code") for each in told["results"]] == [None, "not_leased", None]
    given = [one, "nonsense", foreign, one, two]
    told = client.data("POST", "queues/jobs/leases/delete", {"receipts": given})
    assert [each["receipt"] for each in told["results"]] == given
    errors = [each.get("error", {}) for each in told["results"]]
    assert [each.get("code") for each in errors] == [None, "bad_request", "bad_request", None, None]
    assert errors[1]["field"] == "receipts[1]"
    assert (told["held"], told["refused"]) == (3, 2)
    assert client.bodies("jobs") == ["c"]
    assert client.counts("other") == (0, 1, 0, 1)


def test_receipts_hold_over_kill_9(desk: Desk, client: Client) -> None:
    client.queue("jobs")
    client.send("jobs", "a", "b")
    one, two = client.receive("jobs", visibility=600)
    client.data("DELETE", f"queues/jobs/leases/{one['receipt']}")
    desk.kill()
    assert client.receive("jobs") == []
    assert client.counts("jobs") == (0, 1, 0, 1)
    client.data("DELETE", f"queues/jobs/leases/{two['receipt']}")
    assert client.counts("jobs") == (0, 0, 0, 0)


def test_a_long_poll_ends_with_the_first_message_or_its_time(desk: Desk, client: Client) -> None:
    client.queue("jobs")
    ask = b"POST /v2/queues/jobs/leases HTTP/1.1\r\nHost: localhost\r\nContent-Length: 22\r\n\r\n"
    lines = [Line(desk.dynamiq.listener, port) for port in (7, 8, 9)]
    for line in lines:
        line.send(ask + b'{"wait": 20, "max": 5}')
        desk.clock.run()
    assert not any(line.out for line in lines)
    assert len(desk.dynamiq.queues.polls.waiting) == 3
    lines[1].close()  # who hangs up gets nothing
    client.send("jobs", "a", "b")
    desk.clock.run()
    status, _, content = lines[0].answer()
    assert status == 200
    assert [each["body"] for each in msgspec.json.decode(content)["data"]["messages"]] == ["a", "b"]
    desk.advance(20)
    assert msgspec.json.decode(lines[2].answer()[2]) == {"data": {"messages": []}}
    assert not desk.dynamiq.queues.polls.waiting
    assert client.counts("jobs") == (0, 2, 0, 2)


def test_who_waits_for_a_queue_that_is_deleted_hears_of_it(desk: Desk, client: Client) -> None:
    client.queue("jobs")
    line = Line(desk.dynamiq.listener, 7)
    line.send(b'POST /v2/queues/jobs/leases HTTP/1.1\r\nHost: localhost\r\nContent-Length: 12\r\n\r\n{"wait": 60}')
    desk.clock.run()
    client.data("DELETE", "queues/jobs")
    desk.clock.run()
    status, _, content = line.answer()
    assert (status, msgspec.json.decode(content)["error"]["code"]) == (410, "gone")


def test_long_polls_that_end_with_the_node_are_answered_in_the_order_they_came(desk: Desk, client: Client) -> None:
    client.queue("jobs")
    polls, topic = desk.dynamiq.queues.polls, desk.node.topics["jobs"]
    answered: list[int] = []
    for number in range(100):
        poll = polls.begin(topic, topic.subscriptions["queue"], str(number), 1, SECOND, SECOND)
        poll.answer.then(lambda found, error, number=number: answered.append(number))  # type: ignore[misc]
    polls.stop()
    assert answered == list(range(100))


def test_a_thousand_long_polls_share_what_comes_and_nothing_is_held_twice(desk: Desk, client: Client) -> None:
    client.queue("jobs")
    ask = b'POST /v2/queues/jobs/leases HTTP/1.1\r\nHost: localhost\r\nContent-Length: 12\r\n\r\n{"wait": 60}'
    lines = [Line(desk.dynamiq.listener, 1000 + number) for number in range(1000)]
    for line in lines:
        line.send(ask)
    desk.clock.run()
    assert len(desk.dynamiq.queues.polls.waiting) == 1000
    client.send("jobs", *(str(number) for number in range(300)))
    for _ in range(500):
        desk.clock.run()
    found = [msgspec.json.decode(line.answer()[2])["data"]["messages"] for line in lines if line.out]
    assert sorted(int(each["body"]) for messages in found for each in messages) == list(range(300))
    assert len(found) == 300
    for line in lines:
        line.close()
    desk.clock.run()
    assert not desk.dynamiq.queues.polls.waiting
    assert not desk.node.topics["jobs"].subscriptions["queue"].looks
    assert client.counts("jobs") == (0, 300, 0, 300)


# --- both versions ----------------------------------------------------------------------------------------------------


def test_both_versions_share_a_queue_and_never_a_message(desk: Desk, client: Client) -> None:
    client.queue("jobs", min_partitions=4, max_partitions=4)
    client.send("jobs", *(str(number) for number in range(40)))
    old = desk.ids("jobs", 3)
    new = client.receive("jobs", max=100)
    assert len(new) == 37  # also those of the partition that is locked
    assert not {each["id"] for each in new} & set(old)
    assert desk.receive("jobs") == []
    client.data("POST", "queues/jobs/leases/release", {"receipts": [each["receipt"] for each in new]})
    assert desk.ids("jobs", 100)  # no partition was locked by what the others had
    assert desk.delete("jobs", new[0]["id"]) == 1  # by its id, as ever
    assert client.refused("DELETE", f"queues/jobs/messages/{new[0]['id']}") == (404, "not_found", "id")
    assert client.data("DELETE", f"queues/jobs/messages/{old[0]}") == {"deleted": 1}


def test_what_version_2_had_locks_no_partition_for_long_after_kill_9(desk: Desk, client: Client) -> None:
    client.queue("jobs", visibility_timeout=30, min_partitions=1, max_partitions=1)
    client.send("jobs", "a", "b")
    client.receive("jobs", max=1, visibility=40_000)
    desk.kill()
    desk.advance(30.1)
    assert len(desk.receive("jobs")) == 1


# --- topics -----------------------------------------------------------------------------------------------------------


def test_what_is_published_to_a_topic_is_copied_to_its_queues(client: Client) -> None:
    for queue in ("one", "two"):
        client.queue(queue)
    assert client.data("POST", "topics", {"name": "sales"}, 201) == {"name": "sales", "queues": []}
    assert client.refused("POST", "topics", {"name": "sales"}) == (409, "conflict", "")
    for queue in ("one", "two", "two"):
        told = client.data("PUT", f"topics/sales/subscriptions/{queue}")
        assert told == {"topic": "sales", "queue": queue}
    assert client.data("GET", "topics/sales/subscriptions") == {"items": ["one", "two"], "next": None}
    body = {"messages": [{"body": "shirt", "tag": "red"}, {"body": 1}, {"body": "hat", "delay": 30}]}
    told = client.data("POST", "topics/sales/messages", body)
    assert (told["stored"], told["refused"]) == (4, 1)
    first, wrong, _ = told["results"]
    assert set(first["ids"]) == {"one", "two"}
    assert first["ids"]["one"] != first["ids"]["two"]
    assert wrong["error"]["field"] == "body"
    for queue in ("one", "two"):
        assert client.counts(queue) == (1, 0, 1, 2)
        (message,) = client.receive(queue)
        assert (message["id"], message["tag"]) == (first["ids"][queue], "red")
    assert client.data("DELETE", "topics/sales/subscriptions/one") == {"deleted": 1}
    assert client.refused("DELETE", "topics/sales/subscriptions/one") == (404, "not_found", "")
    assert client.data("GET", "topics/sales") == {"name": "sales", "queues": ["two"]}
    assert client.refused("PUT", "topics/sales/subscriptions/none") == (404, "not_found", "")
    assert client.data("DELETE", "topics/sales") == {"deleted": 1}
    assert client.refused("POST", "topics/sales/messages", body) == (404, "not_found", "")


# --- dead letters -----------------------------------------------------------------------------------------------------


def test_what_is_received_too_often_is_a_dead_letter_and_a_redrive_brings_it_back(desk: Desk, client: Client) -> None:
    client.queue("dead")
    client.queue("jobs", visibility_timeout=1, max_receives=2, dead_letter_queue="dead")
    ids = client.send("jobs", *(str(number) for number in range(20)), tag="red")
    for _ in range(2):
        assert len(client.receive("jobs", max=100)) == 20
        desk.advance(1.1)
    assert client.receive("jobs", max=100) == []
    desk.advance(0.1)
    shown = client.data("GET", "queues/jobs/dead-letters")
    assert (shown["queue"], shown["max_receives"], shown["counts"]["ready"]) == ("dead", 2, 20)
    assert client.data("GET", "queues/dead/dead-letters")["sources"] == ["jobs"]
    (letter,) = client.receive("dead", max=1, visibility=0)
    assert (letter["headers"]["penstock.dead.topic"], letter["tag"]) == ("jobs", "red")
    begun = client.data("POST", "queues/dead/redrives", {"max": 15}, 202)
    assert (begun["queue"], begun["to"], begun["wanted"]) == ("dead", None, 15)
    desk.advance(0.1)
    over = client.data("GET", f"queues/dead/redrives/{begun['id']}")
    assert (over["status"], over["moved"], over["problem"]) == ("completed", 15, None)
    assert client.counts("dead")[3] == 5
    assert client.counts("jobs")[3] == 15
    assert client.data("GET", "queues/dead/redrives") == {"items": [over]}
    assert client.refused("DELETE", f"queues/dead/redrives/{begun['id']}") == (409, "conflict", "")
    client.queue("elsewhere")
    client.data("POST", "queues/dead/redrives", {"to": "elsewhere"}, 202)
    desk.advance(0.1)
    found = client.receive("elsewhere", max=100)
    assert len(found) == 5
    assert all("headers" not in each for each in found)
    assert len(ids) == 20


def test_a_redrive_that_cannot_be_is_refused_or_says_why(desk: Desk, client: Client) -> None:
    client.queue("jobs")
    client.queue("none")
    client.send("jobs", "no letter")
    assert client.refused("POST", "queues/jobs/redrives", {"to": "jobs"}) == (400, "bad_request", "")
    assert client.refused("POST", "queues/jobs/redrives", {"to": "nowhere"}) == (404, "not_found", "")
    assert client.refused("GET", "queues/jobs/redrives/17") == (404, "not_found", "")
    begun = client.data("POST", "queues/jobs/redrives", {}, 202)
    desk.advance(0.1)
    over = client.data("GET", f"queues/jobs/redrives/{begun['id']}")
    assert (over["status"], over["moved"]) == ("failed", 0)
    assert "no dead letters" in over["problem"]
    assert client.bodies("jobs") == ["no letter"]


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b"", "messages"),
        (b"{", ""),
        (b"[]", ""),
        (b'"x"', ""),
        (b"\xff", ""),
        (b'{"messages":{}}', "messages"),
        (b'{"messages":[]}', "messages"),
        (b'{"mesages":[{"body":"x"}]}', ""),
        (b'{"messages":[' + b"[" * 100_000, ""),
        (b'{"messages":[' + b",".join([b"{}"] * 1001) + b"]}", "messages"),
    ],
)
def test_what_is_no_batch_is_refused_as_a_whole(client: Client, raw: bytes, field: str) -> None:
    client.queue("jobs")
    status, code, named = client.refused("POST", "queues/jobs/messages", raw=raw)
    assert (status, code) == (400, "bad_request")
    assert named == field
    assert client.counts("jobs") == (0, 0, 0, 0)


def test_everything_wrong_is_answered_in_the_one_shape(desk: Desk, client: Client) -> None:
    client.queue("jobs")
    client.send("jobs", "a")
    leases = "queues/jobs/leases"
    for method, path, body, expected in (
        ("GET", "nowhere", None, (404, "not_found", "")),
        ("PUT", "queues", None, (405, "method_not_allowed", "")),
        ("GET", "queues/none", None, (404, "not_found", "")),
        ("GET", "queues/%20", None, (400, "bad_name", "queue")),
        ("GET", "queues/%FF", None, (400, "bad_name", "")),
        ("GET", f"queues/{'x' * 129}", None, (400, "bad_name", "queue")),
        ("POST", "queues", {"name": "a b"}, (400, "bad_request", "name")),
        ("POST", "queues", {}, (400, "bad_request", "name")),
        ("POST", "queues", {"name": "_penstock.x"}, (403, "forbidden", "")),
        ("POST", "queues/none/messages", {"messages": [{"body": "x"}]}, (404, "not_found", "")),
        ("POST", "queues/none/leases", {}, (404, "not_found", "")),
        ("POST", leases, {"max": 0}, (400, "bad_request", "max")),
        ("POST", leases, {"max": 1001}, (400, "bad_request", "max")),
        ("POST", leases, {"max": 1.5}, (400, "bad_request", "max")),
        ("POST", leases, {"wait": 61}, (400, "bad_request", "wait")),
        ("POST", leases, {"wait": -1}, (400, "bad_request", "wait")),
        ("POST", leases, {"visibility": 43201}, (400, "bad_request", "visibility")),
        ("POST", leases, {"visibility": True}, (400, "bad_request", "visibility")),
        ("DELETE", f"{leases}/x", None, (400, "bad_request", "receipt")),
        ("DELETE", f"{leases}/%C3%A4", None, (400, "bad_request", "receipt")),
        ("POST", f"{leases}/delete", {"receipts": []}, (400, "bad_request", "receipts")),
        ("POST", f"{leases}/delete", {"receipts": [1]}, (400, "bad_request", "receipts[0]")),
        ("POST", f"{leases}/delete", {"receipts": ["x"] * 1001}, (400, "bad_request", "receipts")),
        ("GET", "queues/jobs/messages/x", None, (404, "not_found", "id")),
        ("DELETE", "queues/jobs/messages/99999999999999999999", None, (404, "not_found", "id")),
        ("POST", "queues/jobs/redrives", {"max": 0}, (400, "bad_request", "max")),
        ("GET", "topics/none", None, (404, "not_found", "")),
        ("PUT", "topics/none/subscriptions/jobs", None, (404, "not_found", "")),
    ):
        assert client.refused(method, path, body) == expected, (method, path, body)
    assert client.counts("jobs") == (1, 0, 0, 1)
    assert client.bodies("jobs") == ["a"]


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    desk = Desk(tmp_path, max_batch_bytes=10_000)
    client = Client(desk)
    client.queue("jobs")
    line = Line(desk.dynamiq.listener, 9)
    line.send(b"POST /v2/queues/jobs/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10001\r\n\r\n")
    desk.clock.run()
    status, _, content = line.answer()
    assert (status, msgspec.json.decode(content)["error"]["code"]) == (413, "message_too_big")
    assert client.counts("jobs") == (0, 0, 0, 0)


# --- what is told of it -----------------------------------------------------------------------------------------------


def test_the_openapi_document_and_its_page_list_every_endpoint(desk: Desk) -> None:
    index = desk.ask("GET", "/v2").json["data"]
    assert index == desk.ask("GET", "/v2/").json["data"]
    document = desk.ask("GET", index["openapi"]).json
    operations = {f"{method.upper()} {path}" for path, found in document["paths"].items() for method in found}
    assert operations == set(index["endpoints"])
    ids = [operation["operationId"] for found in document["paths"].values() for operation in found.values()]
    assert len(set(ids)) == len(ids)
    page = desk.ask("GET", index["docs"])
    assert page.kind == "text/html; charset=utf-8"
    text = page.content.decode()
    assert all(path in text for path in document["paths"])
    assert "http://" not in text
    assert "https://" not in text
    assert desk.ask("GET", "/v2/page.css").kind == "text/css; charset=utf-8"


def test_a_large_batch_keeps_columns_with_their_rows(desk: Desk, client: Client) -> None:
    client.queue("jobs")
    messages = [
        {"body": str(number), **({"tag": str(number)} if number % 3 == 0 else {}), "delay": 5 if number % 7 == 0 else 0}
        for number in range(300)
    ]
    told = client.data("POST", "queues/jobs/messages", {"messages": messages})
    assert told["stored"] == 300
    assert client.counts("jobs") == (300 - 43, 0, 43, 300)
    found = client.receive("jobs", max=1000)
    assert all(each.get("tag") == (each["body"] if int(each["body"]) % 3 == 0 else None) for each in found)
    assert all(int(each["body"]) % 7 for each in found)
