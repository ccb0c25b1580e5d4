from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.setting import inward, outward, schema
from penstock.errors import Refusal
from penstock.settings import SubscriptionSettings, TopicSettings, TrafficSettings

times = st.integers(0, (1 << 63) - 1)
topic_settings = st.builds(
    TopicSettings,
    retention_age_ns=times,
    retention_bytes=times,
    dedup_window_ns=times,
    durability=st.sampled_from(["memory", "os", "fsync"]),
    retention_hard=st.booleans(),
    rate=times,
    max_due_ns=times,
    quota_bytes=times,
    quota_full=st.sampled_from(["refuse", "drop"]),
)
subscription_settings = st.builds(
    SubscriptionSettings,
    traffic=st.none() | st.builds(TrafficSettings, st.lists(st.text()).map(tuple), st.booleans()),
    ttl_ns=times,
    lease_ns=times,
    dead_letter=st.text(),
)


@given(topic_settings | subscription_settings)
def test_settings_come_back_as_they_went(settings: Any) -> None:
    shown = msgspec.json.decode(msgspec.json.encode(outward(settings)))
    assert inward(shown, type(settings)()) == settings


@pytest.mark.parametrize("kind", [TopicSettings, SubscriptionSettings])
def test_schema_describes_exactly_what_is_taken(kind: Any) -> None:
    described = schema(kind)["properties"]
    assert described.keys() == outward(kind()).keys()
    assert not any(name.endswith("_ns") for name in described)


def test_schema_says_what_a_setting_means() -> None:
    described = schema(TopicSettings)["properties"]
    assert described["retention_age"]["description"] == "History is kept while younger."
    assert described["retention_bytes"]["description"] == "History is kept while smaller."
    assert described["shards"]["minimum"] == 1


@given(st.dictionaries(st.sampled_from(sorted(outward(SubscriptionSettings()))) | st.text(), st.text() | st.integers()))
def test_anything_is_taken_or_refused(given_settings: dict[str, Any]) -> None:
    try:
        inward(given_settings, SubscriptionSettings())
    except Refusal as refusal:
        assert refusal.code == "bad_request"
