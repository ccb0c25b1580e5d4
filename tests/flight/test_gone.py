"""What Flight clients made the node keep is gone with them, without the cycle collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any
from weakref import ref

import pytest

from penstock.dialects.flight import put
from tests.flight.parts import Flown, body_batch


@pytest.fixture
def _without_the_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_without_the_collector")
def test_an_exchange_is_gone_when_its_client_is(flown: Flown) -> None:
    flown.put("t", body_batch(b"x" * 1000, b"y"))
    with flown.subscribe("t", "s", create=True, earliest=True) as consumer:
        consumer.order(credit=1)
        assert len(consumer.rows(1)) == 1
        watched = flown.do(lambda: [ref(each) for each in flown.flight.service.exchanges])
        assert len(watched) == 1
    flown.until(lambda: watched[0]() is None)


@pytest.mark.usefixtures("_without_the_collector")
def test_a_stream_is_gone_when_its_client_is(flown: Flown, monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[ref[Any]] = []
    begin = put._Stream.__init__

    def watch(self: put._Stream, *args: Any) -> None:
        watched.append(ref(self))
        begin(self, *args)

    monkeypatch.setattr(put._Stream, "__init__", watch)
    flown.put("t", body_batch(b"x" * 1000, b"y"))
    assert len(watched) == 1
    flown.until(lambda: watched[0]() is None)
