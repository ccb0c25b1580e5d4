"""Which right gives what, and what nobody is given."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.callers.rights import ALL, NODE, USE, Action, Right, Rule, rule_for

ACTIONS: tuple[Action, ...] = get_args(Action)
RIGHTS: tuple[Right, ...] = get_args(Right)


@pytest.mark.parametrize(
    ("right", "actions"),
    [
        ("publish", {"publish", "see"}),
        ("consume", {"receive", "read", "see"}),
        ("manage", {"create", "change", "delete", "see"}),
        ("admin", set(ACTIONS)),
    ],
)
def test_a_right_gives_its_actions_on_its_topics(right: Right, actions: set[Action]) -> None:
    rules = [Rule(right, "orders.*")]
    assert {action for action in ACTIONS if rule_for(rules, action, "orders.eu")} == actions
    assert {action for action in ACTIONS if rule_for(rules, action, "payments")} == set()
    assert {action for action in ACTIONS if rule_for(rules, action, NODE)} == set()


def test_patterns_are_those_of_a_shell_and_mind_case() -> None:
    assert rule_for([Rule("publish", "a?c")], "publish", "abc")
    assert rule_for([Rule("publish", "[ab]")], "publish", "b")
    assert not rule_for([Rule("publish", "Orders")], "publish", "orders")
    assert not rule_for([Rule("publish", "orders")], "publish", "orders.eu")


def test_the_node_as_a_whole_takes_all_topics() -> None:
    assert rule_for([Rule("admin", "*")], "admin", NODE)
    assert not rule_for([Rule("admin", "a*")], "admin", NODE)
    assert not rule_for(USE, "admin", NODE)
    assert rule_for(USE, "see", NODE)


def test_reading_the_nodes_own_topics_takes_admin_or_a_right_that_names_them() -> None:
    for rules, may in (
        (USE, False),
        (ALL, True),
        ([Rule("consume", "_*")], False),
        ([Rule("consume", "_penstock.*")], True),
        ([Rule("consume", "_penstock.audit")], True),
    ):
        assert bool(rule_for(rules, "read", "_penstock.audit")) is may
        assert bool(rule_for(rules, "receive", "_penstock.audit")) is may


@given(
    st.lists(st.builds(Rule, st.sampled_from(RIGHTS), st.sampled_from(["*", "_penstock.*", "_penstock.audit"]))),
    st.sampled_from(["publish", "create", "delete"]),
)
def test_nobody_writes_the_nodes_own_topics(rules: list[Rule], action: Action) -> None:
    assert rule_for(rules, action, "_penstock.audit") is None
