"""Which services a topic has, across restarts, so that those that leave meanwhile are let go of, too.

Invariant: a service is remembered before it has a subscription, and until that is gone.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.m3.topic import ConsumerService, ServiceId
from penstock.registry.answer import Answer
from penstock.relays.m3msg.stream import Stream

#: Where the registry keeps what a relay must know at its next start: its services here, who has which replica below.
REMEMBERED = "m3msg/"


class Members:
    """The services of one topic that have subscriptions, or may have."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._key = f"{REMEMBERED}{stream.name}"
        value = stream.remembered(self._key)
        known = msgspec.json.decode(value, type=list[ConsumerService]) if value is not None else []
        self._known = {each.service_id: each for each in known}

    def absent(self, present: Iterable[ServiceId]) -> list[ConsumerService]:
        """Return those that are remembered and not there any more."""
        there = set(present)
        return [said for key, said in self._known.items() if key not in there]

    def add(self, services: Iterable[ConsumerService]) -> Answer[None]:
        """Remember these, too."""
        return self._keep({**self._known, **{each.service_id: each for each in services}})

    def remove(self, gone: ServiceId) -> Answer[None]:
        """Remember one no more."""
        return self._keep({key: each for key, each in self._known.items() if key != gone})

    def _keep(self, known: dict[ServiceId, ConsumerService]) -> Answer[None]:
        if known == self._known:
            return Answer.of(None)
        self._known = known
        return self._stream.remember(self._key, msgspec.json.encode(list(known.values())))
