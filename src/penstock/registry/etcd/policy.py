"""The routing policy in etcd: whoever needs it hears of every value, and may write another.

Owns the way between a policy and mirrors of its keys. What a value means is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from penstock.errors import Refusal
from penstock.m3 import routing
from penstock.m3.wire import BadMessage
from penstock.registry.etcd.client import Client
from penstock.registry.etcd.mirror import Edit, Mirror
from penstock.registry.records import RoutingMapping, mapping_clashes
from penstock.registry.registry import Entry

#: A start waits so long for the first word of etcd, and goes on with the mapping it knew.
START_S = 2.0


class Listener(Protocol):
    """Who hears what happens to the keys."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys; the first is the one to write."""

    @property
    def in_force(self) -> Mapping[str, int]:
        """The mapping that counts, also while no key holds it."""

    def put(self, key: str, value: bytes, revision: int) -> None:
        """Hear of a value."""

    def deleted(self, key: str, revision: int) -> None:
        """Hear that a key is gone."""

    def current(self, entries: Mapping[str, Entry]) -> None:
        """Hear what stands under the keys now that etcd answers."""

    def away(self, why: str) -> None:
        """Hear that etcd does not answer."""


class Follower:
    """Follows the keys of one policy."""

    def __init__(self, client: Client, listener: Listener) -> None:
        self._client = client
        self._listener = listener
        self._mirrors: list[Mirror] = []
        for number, key in enumerate(listener.keys):
            told = partial(self._on_state, number)
            mirror = Mirror(client, key.encode(), self._on_edits, is_prefix=False, on_state=told)
            self._mirrors.append(mirror)

    async def begin(self, seconds: float = START_S) -> None:
        """Wait for the first word of etcd, but no longer than that."""
        try:
            async with asyncio.timeout(seconds):
                for mirror in self._mirrors:
                    await mirror.is_ready.wait()
        except TimeoutError:
            self._listener.away(next(mirror.why for mirror in self._mirrors if not mirror.is_ready.is_set()))
        else:
            self._tell_all()

    async def write(self, traffic_types: Mapping[str, int], *, force: bool = False, seen: int | None = None) -> None:
        """Put another policy, over the revision that was seen; to move or reuse a bit only with `force`."""
        if found := routing.problems(traffic_types):
            raise Refusal("bad_request", "the routing mapping cannot be used: " + "; ".join(found))
        keys = [key.encode() for key in self._listener.keys]
        key, entries = keys[0], [await self._client.get(each) for each in keys]
        if not force and (clashes := self._clashes(entries, traffic_types)):
            text = "producers and consumers would disagree: " + "; ".join(clashes)
            raise Refusal("conflict", text + ". Choose free bits, or force it")
        guards = {each: 0 if entry is None else entry.revision for each, entry in zip(keys, entries, strict=True)}
        if seen is not None and entries[0] is not None:  # where the key is gone, nobody's change is lost
            guards[key] = seen
        outcome = await self._client.change({key: routing.encode(traffic_types)}, guards=guards)
        if outcome.conflicts:
            raise Refusal(
                "conflict", f"somebody else changed {key.decode()} at the same time; look at it and try again"
            )
        mirror = self._mirrors[0]
        try:
            await mirror.until(lambda: mirror.revision >= outcome.revision, START_S)
        except TimeoutError:
            pass  # it is there, and will be heard of

    def _clashes(self, entries: Sequence[Entry | None], traffic_types: Mapping[str, int]) -> list[str]:
        """Return where another policy contradicts the one in force, or what was put last, which is about to be."""
        before, there = [self._listener.in_force], [entry for entry in entries if entry is not None]
        if entries[0] is not None:
            try:
                routing.decode(entries[0].value)
            except BadMessage as error:
                text = (
                    f"{self._listener.keys[0]} holds something else ({error}); force it to put a routing policy there"
                )
                raise Refusal("conflict", text) from None
        if there:
            with suppress(BadMessage):  # nobody takes what cannot be read
                before.append(routing.decode(max(there, key=lambda entry: entry.revision).value))
        found = {
            each for old in before for each in mapping_clashes(RoutingMapping(traffic_types=dict(old)), traffic_types)
        }
        return sorted(found)

    async def close(self) -> None:
        """Follow no more."""
        for mirror in self._mirrors:
            await mirror.close()

    def _on_edits(self, edits: Sequence[Edit]) -> None:
        for key, value, revision in edits:
            if value is None:
                self._listener.deleted(key.decode(), revision)
            else:
                self._listener.put(key.decode(), value, revision)

    def _on_state(self, number: int, is_current: bool) -> None:
        if not is_current:
            self._listener.away(self._mirrors[number].why)
        elif len(self._mirrors) == len(self._listener.keys):
            self._tell_all()

    def _tell_all(self) -> None:
        if all(mirror.is_ready.is_set() for mirror in self._mirrors):
            found = [(key.decode(), entry) for mirror in self._mirrors for key, entry in mirror.entries.items()]
            self._listener.current(dict(found))
