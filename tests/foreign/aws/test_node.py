"""Amazon's SDK for Node.js, version 3, and sqs-consumer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.foreign.aws.programs import ask, script

NONE = {"ApproximateNumberOfMessages": "0", "ApproximateNumberOfMessagesNotVisible": "0"}


@pytest.fixture(scope="module")
def told(port: int) -> dict[str, Any]:
    return ask(script("consumer"), port)


def test_sqs_consumer_handles_every_message_once_and_what_failed_again(told: dict[str, Any]) -> None:
    once = ["published", "slow", *(f"sent {at}" for at in range(10)), *(f"batch {at}" for at in range(3))]
    assert told["consume"] == {
        "seen": sorted([["bad", 1], ["bad", 2], *([body, 1] for body in once)]),
        "failed": ["Unexpected message handler failure: bad at first"],
        "errors": [],
        "attached": {"size": "7", "raw": [0, 255]},
        "left": NONE,
    }


def test_groups_of_a_fifo_queue_come_in_order_and_duplicates_do_not(told: dict[str, Any]) -> None:
    assert told["fifo"] == {"groups": {"a": ["a0", "a1", "a2"], "b": ["b0", "b1", "b2"]}, "left": NONE}


def test_refusals_are_its_own_exceptions(told: dict[str, Any]) -> None:
    assert told["errors"] == {
        "queue": ["QueueDoesNotExist", True, 400],
        "topic": ["NotFoundException", 404],
        "pages": [2, 2, 1],
    }
