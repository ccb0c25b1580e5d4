"""The Flight load counts the rows that a node stored, and does not pass over missing ones."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.flight as arrow
import pytest

from bench import flight
from bench.generator import LoadFailed
from bench.peers import Penstock, fleet
from bench.spark import messages


@pytest.fixture(scope="module")
def node() -> Iterator[Penstock]:
    with fleet(Penstock) as made:
        server = made.servers["penstock"]
        assert isinstance(server, Penstock)
        yield server


def test_rows_that_were_put_are_got_back(node: Penstock) -> None:
    topic = node.topic()
    assert flight.put(node.flight_port, topic, count=3 * flight.ROWS).messages == 3 * flight.ROWS
    assert flight.get(node.flight_port, topic, 3 * flight.ROWS).messages == 3 * flight.ROWS


def test_a_get_that_brings_fewer_rows_fails(node: Penstock) -> None:
    topic = node.topic()
    flight.put(node.flight_port, topic, count=flight.ROWS)
    with pytest.raises(LoadFailed, match=f"keeps {flight.ROWS + 1} rows and gave {flight.ROWS}"):
        flight.get(node.flight_port, topic, flight.ROWS + 1)


def test_messages_for_spark_go_to_both_shards(node: Penstock) -> None:
    messages.fill_topic(node, messages.TOPIC, 20_000)
    client = arrow.connect(f"grpc://127.0.0.1:{node.flight_port}")
    info = client.get_flight_info(arrow.FlightDescriptor.for_path(messages.TOPIC))
    tables = [client.do_get(endpoint.ticket).read_all() for endpoint in info.endpoints]
    assert [len(table) for table in tables] == [10_000, 10_000]
    last = tables[1].slice(9_999).to_pylist()[0]
    assert (last["key"], last["headers"], last["body"][:10]) == (b"k0009999", b'{"a":"b"}', b"0000009999")
    assert len(last["body"]) == 100
