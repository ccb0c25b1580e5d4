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
