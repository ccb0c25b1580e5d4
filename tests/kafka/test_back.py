"""From Kafka through a node to Kafka, into a topic that the relay makes: records are what they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Message, Producer

from penstock.clock import SECOND
from penstock.columns import Column
from penstock.message import Rows
from penstock.relays.kafka.config import KafkaRelayConfig
from tests.kafka.brokers import Brokers, wait_for
from tests.kafka.test_feed import feed_of, serving


def seen(message: Message) -> tuple[object, ...]:
    return message.key(), message.value(), message.timestamp(), message.headers()


def test_records_go_back_to_kafka_as_they_came(tmp_path: Path, one: Brokers, name: Callable[[str], str]) -> None:
    topic = one.create(name("there"))
    back = f"back.{topic}"
    producer = Producer({"bootstrap.servers": one.addresses})
    records: list[dict[str, Any]] = [
        {"value": b"plain", "timestamp": 1_700_000_000_001},
        {
            "value": b"\x00\xffwhole",
            "key": b"\x00k\xff",
            "timestamp": 1_700_000_000_123,
            "headers": [("text", "grün".encode()), ("raw", b"\xff\x00"), ("none", None), ("2", b"a"), ("2", b"b")],
        },
        {"value": None, "key": b"gone", "timestamp": 5},
        {"value": None, "key": b"gone", "timestamp": 6, "headers": [("why", b"deleted")]},
        {"value": b"", "key": b"", "timestamp": 7},
    ]
    for record in records:
        producer.produce(topic, **record)
    # By columns as well as one by one.
    for number in range(300):
        producer.produce(topic, b"%d" % number if number % 3 else None, key=b"k%d" % number, timestamp=number + 1)
    assert producer.flush(60) == 0
    served = serving(tmp_path, feed_of(one, topic, into="back.{topic}"))
    relay = KafkaRelayConfig(
        topics=("back.*",), brokers=tuple(one.addresses.split(",")), topic_autocreate=True, in_flight=1000
    )
    served.config = msgspec.structs.replace(served.config, parts=(*served.config.parts, relay))
    with served:
        wait_for(lambda: bool(one.leaders(back)), f"{back} to be made")
        served.clock.ahead_ns += 30 * SECOND  # it is looked for after a while only
        sent = one.read(topic)
        wait_for(lambda: len(one.read(back)) >= len(sent), "all records")
        assert list(map(seen, one.read(back))) == list(map(seen, sent))
        # What came by another way: the producer's time is in nanoseconds here.
        columns: dict[str, Column] = {
            "key": [b"key"],
            "headers": [b'{"##key":"value","n":1}'],
            "event_time": [1_700_000_000_123_999_999],
        }
        rows = Rows.of([b"mine"], "nsq", columns)
        served.do(lambda: served.node.topic(back).publish(rows, None, lambda _, error: None))
        wait_for(lambda: len(one.read(back)) > len(sent), "one more")
        last = one.read(back)[-1]
        assert (last.key(), last.value(), last.timestamp()[1]) == (b"key", b"mine", 1_700_000_000_123)
        assert last.headers() == [("##key", b"value"), ("n", b"1")]
