from __future__ import annotations

import logging

import pytest

from penstock.clock import SECOND
from penstock.cluster.presence import Presence
from penstock.errors import Refusal
from penstock.registry.answer import Answer
from penstock.registry.registry import Lease
from tests.fakes import FakeClock


class Away:
    """A registry that does not answer."""

    def lease(self, ttl_ns: int) -> Answer[Lease]:
        return Answer.refused(Refusal("unavailable", "the registry is away"))


def test_a_registry_that_is_away_is_complained_of_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    presence = Presence(Away(), clock)  # type: ignore[arg-type]
    presence.keep("me", b"here").then(lambda _, __: None)
    with caplog.at_level(logging.WARNING):
        clock.advance(60 * SECOND)
    presence.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "what this broker says of itself is not in the registry: the registry is away"
    ]


class Slow:
    """A registry that gives a lease when a test says so."""

    def __init__(self) -> None:
        self.asked: Answer[Lease] = Answer()
        self.ended = 0

    def lease(self, ttl_ns: int) -> Answer[Lease]:
        return self.asked

    def end(self) -> Answer[None]:
        """Be the lease that is given."""
        self.ended += 1
        return Answer.of(None)


def test_a_lease_that_comes_when_all_is_over_ends_at_once_and_nothing_is_said() -> None:
    registry = Slow()
    presence = Presence(registry, FakeClock())  # type: ignore[arg-type]
    refused: list[Exception | None] = []
    presence.keep("me", b"here").then(lambda _, error: refused.append(error))
    presence.close().now()
    registry.asked.give(registry)  # type: ignore[arg-type]
    assert registry.ended == 1
    assert isinstance(refused[0], Refusal)
