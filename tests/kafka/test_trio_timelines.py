"""Timelines on three real nodes with their log on a real Kafka: any node takes commands, owners die and stand still."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from typing import Any

import msgspec

from penstock.client import Timeline
from penstock.client.timeline import Scheduled
from penstock.client.timeline.consumer import Consumer, Message
from penstock.client.timeline.error import TimelineError
from penstock.client.timeline.wire import Kind
from tests.cluster.trio import PATIENCE_S, Member, Trio, wait_for


def asked(member: Member, path: str, method: str = "POST", **document: object) -> tuple[int, Any]:
    """Ask one node over HTTP."""
    connection = HTTPConnection("127.0.0.1", member.ports["timeline.port"], timeout=PATIENCE_S)
    try:
        connection.request(method, f"/v1/{path}", msgspec.json.encode(document) if document else None)
        answer = connection.getresponse()
        return answer.status, msgspec.json.decode(answer.read())
    finally:
        connection.close()


def told(member: Member, path: str, method: str = "POST", **document: Any) -> Any:
    """Ask one node that must do it."""
    status, content = asked(member, path, method, **document)
    assert status == 200, content
    return content


def counted(member: Member, topic: str) -> int:
    found: int = told(member, f"topics/{topic}/count", "GET").get("n", 0)
    return found


def kinds(answer: Any) -> list[int]:
    return [each.get("error", {}).get("kind", 0) for each in answer["messages"]]


def timeline(trio: Trio, topic: str) -> Timeline:
    return Timeline(topic, trio.url, patience=PATIENCE_S)


@contextmanager
def many(trio: Trio, topic: str, *names: str, **options: Any) -> Iterator[list[Consumer]]:
    """Be several consumers, each of which was told of another node first."""
    with ExitStack() as stack:
        found = []
        for number, name in enumerate(names):
            urls = [member.url for member in trio.members]
            one = Timeline(topic, ",".join(urls[number % 3 :] + urls[: number % 3]), patience=PATIENCE_S)
            stack.enter_context(one)
            found.append(stack.enter_context(one.consumer(name, **options)))
        yield found


def test_any_node_takes_the_commands_of_a_timeline(trio: Trio, name: Callable[[str], str]) -> None:
    topic = name("errands")
    first, second, third = trio.members
    told(first, f"topics/{topic}", "PUT", prefetch_max_ms=0, bucket_count=16)
    assert trio.owner(topic) is first
    for member in trio.members:
        told(member, f"topics/{topic}", "PUT", prefetch_max_ms=0, bucket_count=16)
        assert asked(member, f"topics/{topic}", "PUT", bucket_count=17)[1]["error"]["kind"] == Kind.TOPIC_EXISTS
    producer = told(second, "producer-handshake", topic_id=topic, producer_group_id="g", producer_id="p")["session_id"]
    consumer = told(third, "consumer-handshake", topic_id=topic, consumer_id="c", lease_timeout_ms=300_000)
    assert [each["id"] for each in consumer["brokers"]] == ["n1"]  # nobody else has it
    consumer = consumer["session_id"]
    wanted = [{"id": each, "due_ms": 1} for each in ("a", "b", "c")] + [{"id": "later", "delay_ms": 3_600_000}]
    assert kinds(told(third, "messages", session_id=producer, messages=wanted)) == [0, 0, 0, 0]
    assert kinds(told(first, "messages", session_id=producer, messages=wanted)) == [Kind.DUPLICATE_ID] * 4
    leases = told(second, "lease", session_id=consumer, limit=10, wait_ms=10_000)["messages"]
    assert [each["message_id"] for each in leases] == ["a", "b", "c"]
    assert told(third, f"topics/{topic}", "GET")["processing"] == 3
    one, other, last = ({"id": each, "version": 2, "delay_ms": 200_000} for each in "abc")
    assert kinds(told(second, "messages/extend-lease", session_id=consumer, messages=[one])) == [0]
    assert kinds(told(third, "messages/release", session_id=consumer, messages=[other])) == [0]
    assert kinds(told(second, "messages/delete", session_id=consumer, messages=[last])) == [0]
    assert kinds(told(third, "messages/delete", session_id=producer, messages=[{"id": "later"}])) == [0]
    for member in trio.members:
        assert counted(member, topic) == 2
        assert told(member, "ping", session_id=producer, local_ts_ms=1)["partner_ts_ms"] > 1
    told(second, "unsubscribe", session_id=consumer)
    assert asked(second, "unsubscribe", session_id=consumer)[1]["error"]["kind"] == Kind.UNKNOWN_SESSION
    assert asked(second, "ping", session_id="nobody's", local_ts_ms=1)[1]["error"]["kind"] == Kind.UNKNOWN_SESSION
    told(third, f"topics/{topic}", "DELETE")
    for member in trio.members:
        wait_for(lambda member=member: asked(member, f"topics/{topic}", "GET")[0] == 404, "the topic to be gone")  # type: ignore[misc]
    wait_for(lambda: asked(second, f"topics/{topic}", "PUT")[0] == 200, "its name to be free")
    assert trio.owner(topic) is second
    assert counted(first, topic) == 0
    told(third, f"topics/{topic}", "DELETE")


def taken(consumers: list[Consumer], count: int) -> list[Message]:
    """Take so many messages, whoever gets them."""
    found: list[Message] = []
    end_s = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < end_s, f"{len(found)} of {count} messages came"
        found += [message for consumer in consumers if (message := consumer.take("50ms")) is not None]
    return found


def flush(consumers: list[Consumer]) -> None:
    for consumer in consumers:
        consumer.flush()
        assert consumer.refused == 0


def test_what_waits_and_what_is_on_lease_goes_on_when_the_owner_is_killed(
    trio: Trio, name: Callable[[str], str]
) -> None:
    topic = name("reminders")
    with timeline(trio, topic) as there:
        there.create(bucket_count=16, time_window_ms=200)
        with there.producer("shop") as producer:
            with many(trio, topic, "a", "b", lease=300, buffer=3) as consumers:
                producer.create([b"%d" % number for number in range(4)])
                held = {message.body: message for message in taken(consumers, 4)}
                assert sorted(held) == [b"0", b"1", b"2", b"3"]
                due_ms = int(time.time() * 1000) + 5000
                producer.create([Scheduled(b"soon", due=due_ms * 1_000_000), Scheduled(b"tomorrow", due="24h")])
                held[b"0"].extend("200s")
                held[b"1"].delete()
                flush(consumers)
                owner = trio.owner(topic)
                owner.kill()
                # Whoever has it next knows who holds what, and in which version; and the rest waits.
                held[b"0"].extend("250s")
                held[b"2"].release("1h")
                assert there.count() == 5
                held[b"3"].delete()
                flush(consumers)
                producer.create([b"new"])
                came = taken(consumers, 2)
                assert {message.body for message in came} == {b"soon", b"new"}
                assert time.time() * 1000 >= due_ms
                for message in came:
                    message.delete()
                flush(consumers)
                assert trio.owner(topic) is not owner
            with many(trio, topic, "a", "b", lease=300) as consumers:
                (again,) = taken(consumers, 1)
                was = held[b"0"]
                assert (again.body, again.version, again.expires_ms) == (b"0", was.version, was.expires_ms)
        assert there.count() == 3
        there.delete()


def test_timeline_case_24_two_nodes_never_lease_a_message_twice(trio: Trio, name: Callable[[str], str]) -> None:
    topic = name("contended")
    with timeline(trio, topic) as there:
        there.create(bucket_count=16, prefetch_max_ms=0)
        with there.producer("shop") as producer:
            producer.create([b"%d" % number for number in range(10_000)])
    former = trio.owner(topic)
    greeting: dict[str, Any] = {"topic_id": topic, "lease_timeout_ms": 300_000}
    earlier = [told(former, "consumer-handshake", consumer_id=f"x{each}", **greeting) for each in range(8)]
    former.pause()
    answers: dict[str, tuple[int, Any]] = {}

    def lease(consumer: str, session: str) -> None:
        answers[consumer] = asked(former, "lease", session_id=session, limit=1000, wait_ms=1000)

    waiting = [threading.Thread(target=lease, args=(f"x{n}", each["session_id"])) for n, each in enumerate(earlier)]
    for thread in waiting:
        thread.start()
    others = [member for member in trio.members if member is not former]
    wait_for(lambda: any(topic in member.own() for member in others), "another node to have the topic")
    holders: dict[str, str] = {}

    def lease_some(consumer: str, **how: Any) -> None:
        """Lease what there is to a consumer, at whichever node has the topic by now."""

        def is_done() -> bool:
            status, session = asked(others[0], "consumer-handshake", consumer_id=consumer, **greeting)
            if status != 200:
                return False
            status, found = asked(others[0], "lease", session_id=session["session_id"], wait_ms=1, **how)
            for each in found.get("messages", []):
                assert holders.setdefault(each["message_id"], consumer) == consumer
            return status == 200

        wait_for(is_done, f"{consumer} to lease")

    for consumer in ("y0", "y1", "y2"):
        lease_some(consumer, limit=1000, fresh=True)
    former.resume()  # and it goes on leasing, as far as it knows, while the other one does
    for consumer in ("y0", "y1", "y2"):
        lease_some(consumer, limit=3000, fresh=True)
    for thread in waiting:
        thread.join()
    assert len(answers) == 8
    for consumer, (status, answer) in answers.items():
        for each in answer["messages"] if status == 200 else ():
            assert holders.setdefault(each["message_id"], consumer) == consumer
    lease_some("y0", limit=10_000, fresh=True)
    for consumer in (*answers, "y0", "y1", "y2"):  # also what was leased to it and not told
        lease_some(consumer, limit=10_000)
    assert len(holders) == 10_000
    with timeline(trio, topic) as there:
        assert there.count("processing") == 10_000
        there.delete()


def test_timeline_case_33_a_topic_whose_node_died_is_deleted_by_another_and_its_name_is_free(
    trio: Trio, name: Callable[[str], str]
) -> None:
    topic = name("forgotten")
    with timeline(trio, topic) as there:
        there.create(bucket_count=16)
        with there.producer("shop") as producer:
            producer.create([b"1", b"2"])
        trio.owner(topic).kill()
        there.delete()

        def is_made() -> bool:
            try:
                there.create(bucket_count=8)
            except TimelineError as error:
                assert error.error.should_retry, error
                return False
            return True

        wait_for(is_made, "its name to be free")
        assert there.count() == 0
        there.delete()
