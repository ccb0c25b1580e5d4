"""The calls of Dynamiq's Ruby client, written down after its source and what Faraday on net-http-persistent sends.

Nobody recorded them from a run of it. One connection for all of them, and of each answer what the client looks at: it
raises what the second column of its own table does not have, so a status that is not there is a client that does not
work.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from tests.served import PATIENCE_S, Served


class Refused(Exception):
    """One of the client's own errors: what the service does not know, or knows already."""


class Ruby:
    """`Dynamiq::Client`."""

    def __init__(self, port: int) -> None:
        self._place = f"127.0.0.1:{port}"
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        self._connection.connect()
        self._socket = self._connection.sock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # It asked for everything on the connection that it began with.
        assert self._connection.sock is self._socket
        self._connection.close()

    def create_topic(self, topic: str) -> bool:
        return self._made("PUT", f"topics/{topic}")

    def create_queue(self, queue: str) -> bool:
        return self._made("PUT", f"queues/{queue}")

    def _made(self, method: str, path: str) -> bool:
        status, body = self._call(method, path, (201, 422))
        if status == 422:
            raise Refused(json.loads(body)["error"])
        return True

    def delete_topic(self, topic: str) -> bool:
        status, body = self._call("DELETE", f"topics/{topic}", (200, 404))
        if status == 404:
            raise Refused(json.loads(body))
        return True

    def subscribe_queue(self, topic: str, queue: str) -> Any:
        status, body = self._call("PUT", f"topics/{topic}/queues/{queue}", (200, 422))
        if status == 422:
            raise Refused(json.loads(body)["error"])
        return json.loads(body)["Queues"]

    def configure_queue(self, queue: str, **options: int) -> bool:
        self._call("PATCH", f"queues/{queue}", (200,), json.dumps(options), kind="application/json")
        return True

    def publish(self, topic: str, data: str) -> Any:
        return json.loads(self._call("PUT", f"topics/{topic}/message", (200,), data)[1])

    def enqueue(self, queue: str, data: str) -> str:
        return self._call("PUT", f"queues/{queue}/message", (200,), data)[1]

    def acknowledge(self, queue: str, message_id: str) -> bool:
        self._call("DELETE", f"queues/{queue}/message/{message_id}", (200,))
        return True

    def acknowledge_many(self, queue: str, message_ids: list[str]) -> Any:
        return json.loads(self._call("DELETE", f"queues/{queue}/messages/{','.join(message_ids)}", (200,))[1])

    def receive(self, queue: str, batch_size: object = 10) -> Any:
        status, body = self._call("GET", f"queues/{queue}/messages/{batch_size}", (200, 404, 422))
        if status != 200:
            raise Refused(f"status: {status} response: {body}")
        return json.loads(body)

    def queue_details(self, queue: str) -> Any:
        status, body = self._call("GET", f"queues/{queue}", (200, 404))
        if status == 404:
            raise Refused(f"status: {status} response: {body}")
        return json.loads(body)

    def known_queues(self) -> Any:
        return json.loads(self._call("GET", "queues", (200,))[1])["queues"]

    def known_topics(self) -> Any:
        return json.loads(self._call("GET", "topics", (200,))[1])["topics"]

    def _call(
        self, method: str, path: str, known: tuple[int, ...], data: str | None = None, kind: str | None = None
    ) -> tuple[int, str]:
        """Ask as Faraday does; a status that the client does not know would make it try twice more, and give up."""
        connection = self._connection
        connection.putrequest(method, f"/v1/{path}", skip_host=True, skip_accept_encoding=True)
        connection.putheader("User-Agent", "Faraday v0.9.1")
        if kind is not None:
            connection.putheader("Content-Type", kind)
        connection.putheader("Accept-Encoding", "gzip;q=1.0,deflate;q=0.6,identity;q=0.3")
        connection.putheader("Accept", "*/*")
        connection.putheader("Connection", "keep-alive")
        connection.putheader("Keep-Alive", "30")
        connection.putheader("Host", self._place)
        body = data.encode() if data is not None else b""
        if method in ("PUT", "PATCH"):
            connection.putheader("Content-Length", str(len(body)))
            if kind is None and body:
                connection.putheader("Content-Type", "application/x-www-form-urlencoded")
        connection.endheaders(body or None)
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status in known, (method, path, answer.status, text)
        return answer.status, text


@pytest.fixture
def ruby(tmp_path: Path) -> Iterator[Ruby]:
    with Served(tmp_path / "data") as served, Ruby(served.ports["dynamiq.port"]) as client:
        yield client


def test_a_topic_feeds_a_queue_and_messages_are_acknowledged(ruby: Ruby) -> None:
    assert ruby.create_topic("uploads")
    assert ruby.create_queue("jobs")
    assert ruby.subscribe_queue("uploads", "jobs") == ["jobs"]
    assert (ruby.known_topics(), ruby.known_queues()) == (["uploads"], ["jobs"])
    published = ruby.publish("uploads", '{"k":"v"}')
    direct = ruby.enqueue("jobs", "a=1&b=ü")
    received = ruby.receive("jobs", 20)
    assert {each["id"]: each["body"] for each in received} == {published["jobs"]: '{"k":"v"}', direct: "a=1&b=ü"}
    assert ruby.acknowledge("jobs", direct)
    assert ruby.acknowledge_many("jobs", [published["jobs"]]) == {"deleted": 1}
    assert ruby.receive("jobs") == []
    assert ruby.delete_topic("uploads")
    assert ruby.known_topics() == []


def test_settings_are_taken_and_details_are_shown(ruby: Ruby) -> None:
    ruby.create_queue("jobs")
    assert ruby.configure_queue("jobs", visibility_timeout=60, min_partitions=2, max_partitions=4)
    details = ruby.queue_details("jobs")
    assert {"VisibilityTimeout", "MinPartitions", "MaxPartitions", "partitions"} <= set(details)


def test_what_is_not_there_and_what_is_there_already_is_the_clients_own_error(ruby: Ruby) -> None:
    ruby.create_topic("uploads")
    ruby.create_queue("jobs")
    for call, reason in (
        (lambda: ruby.create_topic("uploads"), "Topic already exists."),
        (lambda: ruby.create_queue("jobs"), "Queue already exists."),
        (lambda: ruby.subscribe_queue("none", "jobs"), "Topic does not exist. Please create it first."),
        (lambda: ruby.subscribe_queue("uploads", "none"), "Queue does not exist. Please create it first"),
        (lambda: ruby.delete_topic("none"), "{'error': 'Topic did not exist.'}"),
        (lambda: ruby.queue_details("none"), 'status: 404 response: "There is no queue named none"'),
        (lambda: ruby.receive("none"), 'status: 404 response: "There is no queue named none"'),
        (lambda: ruby.receive("jobs", "many"), 'status: 422 response: "batch size must be an integer"'),
    ):
        with pytest.raises(Refused) as refused:
            call()
        assert str(refused.value) == reason
    assert ruby.enqueue("none", "lost") == ""
    assert ruby.publish("none", "lost") == {}
