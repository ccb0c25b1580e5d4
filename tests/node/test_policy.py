"""The routing policy of a node, whatever is found under its key: nothing does more than leave the mapping as it was."""

from __future__ import annotations

import logging

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config import Config, RoutingConfig
from penstock.m3 import routing
from penstock.node.policy import Policy
from penstock.registry.records import RoutingMapping
from penstock.registry.registry import Entry
from penstock.settings import SubscriptionSettings, TrafficSettings
from tests.site import PLAIN, Site

KEY = "_kv/default_env/routing-policy"
IN_ETCD = msgspec.structs.replace(PLAIN, routing=RoutingConfig(key="routing-policy"))
TYPES = {"production": 0, "staging": 1}


class Heard:
    """A policy and every mapping that it made."""

    def __init__(self, *keys: str) -> None:
        self.mappings: list[dict[str, int]] = []
        self.policy = Policy(
            "default", keys or (KEY,), RoutingMapping(), lambda found: self.mappings.append(dict(found))
        )

    def put(self, types: dict[str, int] | bytes, revision: int = 1, key: str = KEY) -> None:
        self.policy.put(key, types if isinstance(types, bytes) else routing.encode(types), revision)

    @property
    def counts(self) -> dict[str, int]:
        return {str(name): count for name, count in self.policy.counts.items() if count}


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture) -> Heard:
    caplog.set_level(logging.INFO, "penstock.routing")
    return Heard()


def test_m3msg_case_44_a_policy_is_loaded_replaced_and_replaced_again(heard: Heard) -> None:
    heard.policy.current({KEY: Entry(routing.encode(TYPES), 5)})
    heard.put({"production": 3}, 6)
    heard.put({"canary": 9}, 7)
    assert heard.mappings == [TYPES, {"production": 3}, {"canary": 9}]
    assert (heard.policy.key, heard.policy.revision, heard.counts) == (KEY, 7, {"put": 3})


def test_m3msg_case_45_bytes_that_are_no_policy_leave_the_mapping_as_it_was(
    heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    heard.put(TYPES, 1)
    heard.put(b"\xff\xff\xff", 2)
    assert heard.mappings == [TYPES]
    assert heard.counts == {"put": 1, "unreadable": 1}
    assert "is no routing policy" in caplog.text
    assert "is no routing policy" in heard.policy.problems[0]
    heard.put({"a": 1}, 3)
    assert (heard.mappings[-1], heard.policy.problems) == ({"a": 1}, [])


def test_a_zero_byte_value_empties_the_mapping(heard: Heard) -> None:
    heard.put(TYPES, 1)
    heard.put(b"", 2)
    assert heard.mappings == [TYPES, {}]
    assert heard.counts == {"put": 1, "empty": 1}


def test_m3msg_case_45_a_deleted_key_keeps_the_mapping_until_something_else_is_put(
    heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    heard.put(TYPES, 1)
    heard.policy.deleted(KEY, 2)
    assert heard.mappings == [TYPES]
    assert heard.counts == {"put": 1, "deleted": 1}
    assert "was deleted in revision 2" in caplog.text
    heard.put({"a": 1}, 3)
    assert heard.mappings[-1] == {"a": 1}


def test_m3msg_case_45_bits_beyond_63_are_left_out_and_told(heard: Heard, caplog: pytest.LogCaptureFixture) -> None:
    heard.put({"good": 63, "bad": 64, "worse": (1 << 64) - 1})
    assert heard.mappings == [{"good": 63}]
    assert heard.counts == {"put": 1, "bad_bit": 2}
    assert 'traffic type "bad" has bit 64' in caplog.text


def test_a_bit_that_two_types_have_counts_for_both_and_is_told(heard: Heard, caplog: pytest.LogCaptureFixture) -> None:
    heard.put({"a": 3, "b": 3, "c": 4})
    assert heard.mappings == [{"a": 3, "b": 3, "c": 4}]
    assert heard.counts == {"put": 1, "shared_bit": 1}
    assert 'bit 3 is given to "a" and "b"' in caplog.text


def test_a_moved_bit_is_told(heard: Heard, caplog: pytest.LogCaptureFixture) -> None:
    heard.put({"a": 3}, 1)
    heard.put({"a": 4}, 2)
    assert "a moves from bit 3 to 4; producers and consumers must agree" in caplog.text


def test_a_key_that_is_not_there_leaves_what_was_known(heard: Heard, caplog: pytest.LogCaptureFixture) -> None:
    heard.policy.current({})
    heard.policy.current({})
    assert (heard.mappings, heard.counts) == ([], {"absent": 1})
    assert f"there is no {KEY} in etcd" in caplog.text


def test_etcd_away_is_told_once_until_it_was_back(heard: Heard, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        heard.policy.away("connection refused")
    assert (heard.counts, heard.policy.is_current) == ({"away": 1}, False)
    assert caplog.text.count("is away (connection refused)") == 1
    heard.policy.current({KEY: Entry(routing.encode(TYPES), 5)})
    heard.policy.away("again")
    assert (heard.counts, heard.mappings) == ({"away": 2, "put": 1}, [TYPES])
    heard.policy.current({KEY: Entry(routing.encode(TYPES), 5)})
    assert heard.mappings == [TYPES]  # it is in force already


def test_of_two_keys_what_was_put_last_counts_whichever_it_is() -> None:
    heard = Heard("rp/e/k", "_kv/e/rp/k")
    entries = {"rp/e/k": Entry(routing.encode({"a": 1}), 7), "_kv/e/rp/k": Entry(routing.encode({"a": 2}), 9)}
    heard.policy.current({**entries, "other": Entry(b"", 99)})
    assert (heard.mappings, heard.policy.key) == ([{"a": 2}], "_kv/e/rp/k")
    heard.put({"a": 3}, 10, "rp/e/k")
    heard.put({"a": 4}, 11, "_kv/e/rp/k")
    assert heard.mappings == [{"a": 2}, {"a": 3}, {"a": 4}]


def test_a_backup_with_an_older_revision_is_taken_as_it_is(heard: Heard) -> None:
    heard.put(TYPES, 50)
    heard.put({"a": 1}, 3)
    assert heard.mappings == [TYPES, {"a": 1}]


@given(st.lists(st.tuples(st.binary(max_size=60) | st.none(), st.integers(1, 9)), max_size=10))
def test_nothing_that_may_stand_under_the_key_does_more_than_leave_it(values: list[tuple[bytes | None, int]]) -> None:
    heard = Heard()
    for value, revision in values:
        if value is None:
            heard.policy.deleted(KEY, revision)
        else:
            heard.policy.put(KEY, value, revision)
    assert all(0 <= bit <= 63 for mapping in heard.mappings for bit in mapping.values())


def test_a_node_goes_by_the_policy_at_once_and_remembers_it_for_a_start_without_etcd() -> None:
    site = Site(IN_ETCD)
    topic = site.node.create_topic("t").now()
    settings = SubscriptionSettings(traffic=TrafficSettings(("production",)))
    got = site.consume(topic, "s", settings)
    site.offer(topic, b"before", traffic=[1])
    policy = site.node.routing.policy
    assert policy is not None
    policy.put(KEY, routing.encode({"production": 0, "twin": 0}), 4)
    assert site.node.routing.mapping == {"production": 0, "twin": 0}
    site.offer(topic, b"after", traffic=[1])
    assert got == [b"after"]
    site.machine.run()
    site.start()
    assert site.node.routing.mapping == {"production": 0, "twin": 0}
    assert site.node.routing.in_force().traffic_types == {"production": 0, "twin": 0}


def test_a_node_whose_mapping_is_in_etcd_does_not_go_by_what_others_put_into_the_registry() -> None:
    site = Site(IN_ETCD)
    assert site.node.routing.policy is not None
    site.node.routing.policy.put(KEY, routing.encode(TYPES), 1)
    site.node.catalog.set_mapping({"production": 40}, force=True).now()
    site.machine.run()
    assert site.node.routing.mapping == TYPES


def test_m3msg_case_45_without_a_key_nothing_of_etcd_is_asked_for() -> None:
    assert Site(Config(data_dir="data")).node.routing.policy is None


def test_a_traffic_type_that_the_mapping_does_not_know_is_told_once_until_it_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def told() -> list[str]:
        found = [each for each in caplog.messages if "does not know" in each]
        caplog.clear()
        return found

    site = Site()
    topic = site.node.create_topic("t").now()
    topic.subscribe("s", SubscriptionSettings(traffic=TrafficSettings(("production", "lost")))).now()
    assert not told()  # without a mapping there is nothing to know
    site.node.catalog.set_mapping({"production": 0}).now()
    site.machine.run()
    text = "topic t: subscription s takes traffic type lost, which the routing mapping does not know"
    assert told() == [f"{text}: is_default decides for all its messages"]
    topic.subscribe("other").now()
    topic.update_subscription(
        "s", SubscriptionSettings(traffic=TrafficSettings(("production", "lost"), upstream_filter=True))
    ).now()
    assert not told()
    site.node.catalog.set_mapping({"production": 0, "lost": 1}).now()
    site.machine.run()
    site.node.catalog.set_mapping({"production": 0}).now()
    site.machine.run()
    assert told() == [f"{text}: it is passed over"]
