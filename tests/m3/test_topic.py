"""M3's topic both ways, and what no topic may be."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.m3 import topic
from penstock.m3.topic import SHARDS_MAX, ConsumerService, Filters, RoutingFilter, ServiceId, Topic
from penstock.m3.wire import BadMessage, bytes_field, number_field, text_field
from tests.m3.vectors import TOPIC, TOPIC_BYTES

TEXT = st.text(max_size=12)
SOME = st.text(min_size=1, max_size=12)
FILTERS = st.builds(
    Filters,
    storage_policies=st.none() | st.lists(SOME, min_size=1, max_size=3).map(tuple),
    percentage=st.none() | st.floats(0.001, 99.9),
    shard_set=st.none() | st.sampled_from(("0", "7", "0..511", "3..3")),
    routing=st.none() | st.builds(RoutingFilter, st.lists(TEXT, max_size=3).map(tuple), st.booleans()),
)
SERVICES = st.builds(
    ConsumerService,
    service_id=st.builds(ServiceId, TEXT, TEXT, TEXT),
    consumption=st.sampled_from(("shared", "replicated")),
    ttl_ns=st.integers(-(1 << 63), (1 << 63) - 1),
    filters=st.none() | FILTERS,
)
TOPICS = st.builds(
    Topic,
    name=SOME,
    shards=st.integers(1, SHARDS_MAX),
    services=st.lists(SERVICES, max_size=4, unique_by=lambda service: service.service_id).map(tuple),
)


def test_m3msg_case_1_the_vector_is_read_and_written() -> None:
    assert topic.decode(TOPIC_BYTES) == TOPIC
    assert topic.encode(TOPIC) == TOPIC_BYTES


@given(TOPICS)
def test_what_is_written_is_read_back(given: Topic) -> None:
    assert topic.decode(topic.encode(given)) == given


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        topic.decode(data)
    except BadMessage as error:
        assert str(error)


def test_filters_without_a_test_in_them_are_something_else_than_no_filters() -> None:
    service = msgspec.structs.replace(TOPIC.services[1], filters=Filters())
    changed = msgspec.structs.replace(TOPIC, services=(service,))
    assert topic.decode(topic.encode(changed)).services[0].filters == Filters()


def service(filters: Filters) -> Topic:
    return msgspec.structs.replace(TOPIC, services=(msgspec.structs.replace(TOPIC.services[0], filters=filters),))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (msgspec.structs.replace(TOPIC, name=""), "has no name"),
        (msgspec.structs.replace(TOPIC, shards=0), "has no shards"),
        (msgspec.structs.replace(TOPIC, shards=20_000_000), "20,000,000 shards; there may be 65,536"),
        (msgspec.structs.replace(TOPIC, services=(TOPIC.services[0],) * 2), "embedded/default_env/m3coordinator twice"),
        (service(Filters(percentage=99999)), "99999 is not between 0 and 100"),
        (service(Filters(percentage=0)), "not between"),
        (service(Filters(storage_policies=())), "names policies"),
        (service(Filters(storage_policies=("10s:2d", ""))), "names policies"),
        (service(Filters(shard_set="")), "is no shard set"),
        (service(Filters(shard_set="[1..5]")), "is no shard set"),
        (service(Filters(shard_set="0..1,5")), "one range is allowed"),
    ],
)
def test_m3msg_case_37_a_topic_that_cannot_be_used_is_refused_with_the_reason(given: Topic, told: str) -> None:
    with pytest.raises(BadMessage, match=told.replace("[", r"\[")):
        topic.decode(topic.encode(given))


@pytest.mark.parametrize("kind", [0, 3])
def test_a_service_of_unknown_consumption_is_refused(kind: int) -> None:
    service = bytes_field(1, text_field(1, "s")) + number_field(2, kind)
    with pytest.raises(BadMessage, match=f"consumption type {kind}"):
        topic.decode(text_field(1, "t") + number_field(2, 1) + bytes_field(3, service))
