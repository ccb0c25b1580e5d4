"""RoutingPolicyConfig both ways, whatever bytes there are, and the keys it is found under."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.m3 import routing
from penstock.m3.wire import BadMessage, bytes_field, number_field, text_field
from tests.m3.vectors import POLICY, POLICY_BYTES

MAPPINGS = st.dictionaries(st.text(max_size=20), st.integers(0, (1 << 64) - 1), max_size=8)


def test_m3msg_case_1_the_vector_is_read_and_written() -> None:
    assert routing.decode(POLICY_BYTES) == POLICY
    assert routing.encode(POLICY) == POLICY_BYTES


def test_m3msg_case_1_the_order_of_entries_does_not_matter() -> None:
    entries = [POLICY_BYTES[:11], POLICY_BYTES[11:27], POLICY_BYTES[27:]]
    assert routing.decode(b"".join(reversed(entries))) == POLICY


def test_no_bytes_are_a_mapping_without_types() -> None:
    assert routing.decode(b"") == {}
    assert routing.encode({}) == b""


def test_an_entry_without_a_position_has_bit_0_and_the_last_of_a_name_counts() -> None:
    once = bytes_field(1, text_field(1, "a"))
    again = bytes_field(1, text_field(1, "a") + number_field(2, 7))
    assert routing.decode(once) == {"a": 0}
    assert routing.decode(once + again) == {"a": 7}


def test_fields_nobody_knows_are_passed_over() -> None:
    strange = number_field(9, 5) + bytes_field(10, b"x") + b"\x59" + bytes(8) + b"\x5d" + bytes(4)
    entry = bytes_field(1, text_field(1, "a") + number_field(2, 3) + number_field(3, 1))
    assert routing.decode(strange + entry + strange) == {"a": 3}


@given(MAPPINGS)
def test_what_is_written_is_read_back(mapping: dict[str, int]) -> None:
    assert routing.decode(routing.encode(mapping)) == mapping


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        routing.decode(data)
    except BadMessage as error:
        assert str(error)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"not protobuf", "wire type"),
        (b"\x0a\x7fshort", "needs 127 bytes"),
        (b"\x0a" + b"\xff" * 11, "a number has no end"),
        (b"\x08\x01", "holds no bytes"),
        (b"\x0a\x03\x0a\x01\xff", "not UTF-8"),
        (b"\x00\x00", "there is no field 0"),
    ],
)
def test_bytes_that_are_no_policy_are_refused_with_the_reason(data: bytes, told: str) -> None:
    with pytest.raises(BadMessage, match=told):
        routing.decode(data)


@pytest.mark.parametrize("namespace", ["", "_kv", "/_kv"])
def test_a_policy_without_a_namespace_of_its_own_has_the_documented_key(namespace: str) -> None:
    assert routing.keys("default_env", "routing-policy", namespace) == ("_kv/default_env/routing-policy",)


def test_a_namespace_has_the_key_that_m3_makes_and_the_documented_one() -> None:
    assert routing.keys("prod", "p", "rp") == ("rp/prod/p", "_kv/prod/rp/p")
    assert routing.keys("prod", "p", "/rp") == ("/rp/prod/p", "_kv/prod/rp/p")
