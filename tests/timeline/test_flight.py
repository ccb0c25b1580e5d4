"""The SDK against a node, over Flight: real sockets, real threads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client.timeline import Timeline
from penstock.dialects.timeline.config import TimelineConfig
from tests.flight.parts import Flown


@pytest.fixture
def flown(tmp_path: Path) -> Iterator[Flown]:
    with Flown(tmp_path / "data", timeline=TimelineConfig(port=0)) as node:
        yield node
        assert node.do(lambda: node.node.bugs) == 0


def timeline(flown: Flown, topic: str = "reminders") -> Timeline:
    return Timeline(topic, f"grpc://127.0.0.1:{flown.flight.port}")


def test_messages_go_from_a_producer_to_a_consumer_and_are_gone(flown: Flown) -> None:
    with timeline(flown) as reminders:
        reminders.create(time_window_ms=100)
        with reminders.producer("calendar") as producer:
            for number in range(250):
                producer.create(b"%d" % number, due="100ms")
            producer.flush()
        with reminders.consumer("phone", stop_after=250) as consumer:
            bodies = []
            for message in consumer:
                bodies.append(int(message.body))
                message.delete()
        assert sorted(bodies) == list(range(250))
        assert reminders.count() == 0
