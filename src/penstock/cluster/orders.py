"""What an operator wants of a cluster: a slot on a certain node, or a node without slots.

Orders stay in the registry until they are taken back; the nodes see to them by their next deal.
"""

from __future__ import annotations

import msgspec

from penstock.cluster.places import DRAINS, PINS, Pin
from penstock.cluster.slots import Slots
from penstock.errors import Refusal, hint
from penstock.registry.answer import Answer
from penstock.registry.attempt import Draft, attempt


class Orders:
    """The orders for one cluster, given at one of its nodes."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    def move(self, slot: int, node: str) -> Answer[None]:
        """Have a slot on a node while that lives; without a node, wherever it is dealt to."""
        if not 0 <= slot < self._slots.count:
            text = f"there is no slot {slot}; the cluster has slots 0 to {self._slots.count - 1}"
            return Answer.refused(Refusal("not_found", text))
        if not node:
            return self._write(f"{PINS}{slot}", None)
        return self._of_node(node, f"{PINS}{slot}", msgspec.msgpack.encode(Pin(node=node)))

    def drain(self, node: str) -> Answer[None]:
        """Have no slots on a node, until that is taken back."""
        return self._of_node(node, DRAINS + node, b"")

    def undrain(self, node: str) -> Answer[None]:
        """Let a node have slots again."""
        return self._write(DRAINS + node, None)

    def _of_node(self, node: str, key: str, value: bytes) -> Answer[None]:
        names = list(self._slots.places.nodes)
        if node not in names:
            text = f"there is no node {node} in the cluster; {hint(node, names)}"
            return Answer.refused(Refusal("not_found", text))
        return self._write(key, value)

    def _write(self, key: str, value: bytes | None) -> Answer[None]:
        registry = self._slots.registry

        def compose() -> Draft[None]:
            entry = registry.get(key)
            if value is None:
                return Draft(None, {}, [key], {key: entry.revision}) if entry is not None else Draft(None)
            return Draft(None, {key: value}, (), {key: entry.revision if entry is not None else 0})

        return attempt(registry, self._slots.clock, compose)
