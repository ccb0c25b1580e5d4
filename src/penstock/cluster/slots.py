"""Which slots of a cluster this node owns: taken, watched over, and given away when they are another's.

One key per slot, hanging on a lease of its owner; the revision at which it was taken is the epoch. Every node deals
from the same data (`deal`), takes what is free and its own, gives up what is another's. Knows nothing of topics.
Invariant: a slot that `is_mine` is nobody else's: a lease is over here before it is in the registry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from penstock.clock import MILLISECOND, SECOND, Clock, Timer
from penstock.cluster.about import agree
from penstock.cluster.deal import deal, slot_of
from penstock.cluster.name import Name
from penstock.cluster.places import KEYS, SLOTS, About, NodeRecord, Places, SlotRecord
from penstock.cluster.presence import RENEW_NS, Presence
from penstock.config import ClusterConfig
from penstock.errors import Refusal
from penstock.registry.answer import Answer
from penstock.registry.registry import Cancel, Event, Figure, Registry

__all__ = ["NodeRecord", "Slots", "deal", "slot_of"]

#: Nothing moves before no node has come for so long: nodes that start together are dealt to once.
CALM_NS = SECOND
#: Slots that a node gives up at a time, so that not all of its topics are away at once, and takes at a time.
GIVES_MAX = 4
TAKES_MAX = 32
#: A slot that was released because it could not be served is left alone for so long.
AGAIN_NS = SECOND
#: What an owner said that is not there, or cannot be read, counts no more after so many leases.
STALE_LEASES = 2
#: Between two deals: where very many come and go at once, each costs two milliseconds (`bench.micro.slots`).
DEAL_NS = 20 * MILLISECOND
#: How often it is looked whether leases last; `is_mine` always knows.
LOOK_NS_MAX = 200 * MILLISECOND

_log = logging.getLogger("penstock.cluster")


class Slots:
    """The slots of one node."""

    def __init__(
        self,
        registry: Registry,
        clock: Clock,
        config: ClusterConfig,
        life: str,
        took: Callable[[int, int], None],
        lost: Callable[[int], None],
        give_up: Callable[[int], Answer[None]],
        disk: str = "",
    ) -> None:
        self.cluster = config.name
        presence = self.presence = Presence(registry, clock, config.lease_ns)
        self._name = Name(registry, clock, config, presence, life, disk)
        self.name = self._name.text
        #: How many slots the cluster has.
        self.count = config.slots
        #: Slots that came; that were given up; and that went without it.
        self.taken = self.given = self.losses = 0
        self.places = Places(registry)
        self.registry = registry
        self.clock = clock
        self._config = config
        self._life = life
        self._took, self._lost, self._give_up = took, lost, give_up
        #: Slot -> epoch of those that are held; of those that are being given up; and those that are asked for.
        self._mine: dict[int, int] = {}
        self._giving: dict[int, int] = {}
        self._taking: set[int] = set()
        self._turn = 0
        #: Slot -> the revision of a key of this life that is to go, as asked for.
        self._removed: dict[int, int] = {}
        #: Slot -> when it may be taken again.
        self._again: dict[int, int] = {}
        #: Slot -> the revision of a key that nobody stands for, and since when that is seen.
        self._stale: dict[int, tuple[int, int]] = {}
        #: When the last node came, and this one.
        self._arrived_ns = self._joined_ns = clock.monotonic()
        self._lives: set[str] = set()
        self._drained: Answer[None] | None = None
        #: Until when others are waited for that take what was given.
        self._drained_by_ns = 0
        self._is_looking = False
        self._looked_ns = 0
        #: Something is to be done that no event will tell of.
        self._is_restless = False
        self._closed = False
        self._timer: Timer | None = None
        self._unwatch: Cancel | None = None

    # --- what others ask ------------------------------------------------------------------------------------------

    @property
    def problem(self) -> str:
        """Why this node has no part in the cluster, if that is so."""
        return self._name.problem

    @property
    def mine(self) -> Mapping[int, int]:
        """The epochs of the slots that are held."""
        return {slot: epoch for slot, epoch in self._mine.items() if self._holds(slot, epoch)}

    def is_mine(self, slot: int) -> bool:
        """Tell whether a slot is held at this moment."""
        epoch = self._mine.get(slot)
        return epoch is not None and self._holds(slot, epoch)

    def owner(self, slot: int) -> NodeRecord | None:
        """Return the node that owns a slot; None if nobody does at present."""
        owner = self.places.owners.get(slot)
        node = self.places.nodes.get(owner.node) if owner is not None else None
        return node if node is not None and owner is not None and node.life == owner.life else None

    def nodes(self) -> list[NodeRecord]:
        """Return all nodes that are alive, by name."""
        return [self.places.nodes[name] for name in sorted(self.places.nodes)]

    def figures(self) -> Iterator[Figure]:
        """Return what there is to measure."""
        yield Figure("member", "gauge", "1 while the others know that this node is there.", int(self._is_member()))
        yield Figure("nodes", "gauge", "Nodes that are there.", len(self.places.nodes))
        yield Figure("slots", "gauge", "Slots that there are.", self.count)
        yield Figure("slots_owned", "gauge", "Slots of this node.", len(self.mine))
        yield Figure("slots_taken_total", "counter", "Slots that came to this node.", self.taken)
        yield Figure("slots_given_total", "counter", "Slots that it closed and gave away.", self.given)
        yield Figure("slots_lost_total", "counter", "Slots that went because a lease was over.", self.losses)
        unreadable = self.places.unreadable
        yield Figure("unreadable_keys", "gauge", "Keys in the registry that say nothing that can be read.", unreadable)

    # --- coming and going -----------------------------------------------------------------------------------------

    def start(self) -> Answer[None]:
        """Join the cluster; ConfigError if it is another one, or somebody has this node's name."""
        until_ns = self.clock.monotonic() + self._config.lease_ns + RENEW_NS
        answer: Answer[None] = Answer()

        def agreed(about: About) -> None:
            if about.slots != self._config.slots:
                text = "cluster.slots = %d: the cluster has had %d since its first node started, and keeps them"
                _log.warning(text, self._config.slots, about.slots)
            self.count = about.slots

        def joined(_: None, error: Exception | None) -> None:
            if error is not None:
                self._closed = True
                self.presence.stop()
                answer.refuse(error)
                return
            self._begin()
            answer.give(None)

        about = agree(self.registry, self.clock, self._config).then_make(agreed)
        about.then_ask(lambda _: self._name.come(self.places, until_ns)).then(joined)
        return answer

    def say(self, listeners: Mapping[str, str]) -> None:
        """Tell the others where this node listens, for them and for clients."""
        self._name.listen(listeners)
        self._look_soon()

    def release(self, slot: int) -> None:
        """Let go of a slot that cannot be served now; its topics are closed already."""
        epoch = self._mine.pop(slot, None)
        self._giving.pop(slot, None)
        if epoch is not None:
            self._again[slot] = self.clock.monotonic() + AGAIN_NS
            self._let_go(slot, epoch)
            self._look_soon()

    def drain(self) -> Answer[None]:
        """Give everything away before this node stops; answered once others have it, or nobody wants it."""
        if self._drained is None:
            self._drained = Answer()
            if self._unwatch is None or self._closed:
                self._drained.give(None)
            self._name.leave()
            self._look_soon()
        return self._drained

    def close(self) -> Answer[None]:
        """Leave the cluster; what is still held goes without having been given up."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._unwatch is not None:
            self._unwatch()
        held = sorted(self._mine)
        self._mine.clear()
        self._giving.clear()
        for slot in held:
            self._lost(slot)
        return self.presence.close()

    def _begin(self) -> None:
        if self._closed:
            return
        self.places = Places(self.registry)
        self._unwatch = self.registry.watch(KEYS, self.registry.revision, self._heard)
        self._tick()
        self._look_soon()

    # --- what happens ---------------------------------------------------------------------------------------------

    def _heard(self, events: Sequence[Event]) -> None:
        self.places.hear(events)
        self._check()
        self._look_soon()

    def _tick(self) -> None:
        """See whether leases last, and look at what waits for its time."""
        every_ns = min(LOOK_NS_MAX, max(self._config.lease_ns // 50, MILLISECOND))
        self._timer = self.clock.call_at(self.clock.monotonic() + every_ns, self._tick)
        if self._check() or self._is_restless:
            self._look()

    def _look_soon(self) -> None:
        if self._is_looking or self._closed:
            return
        self._is_looking = True
        at_ns = self._looked_ns + DEAL_NS
        if self.clock.monotonic() >= at_ns:
            self.clock.call_soon(self._looked)
        else:
            self.clock.call_at(at_ns, self._looked)

    def _looked(self) -> None:
        self._is_looking = False
        if not self._closed and self._unwatch is not None:
            self._check()
            self._look()

    def _check(self) -> bool:
        """Tell of the slots that are gone; and return whether any is."""
        gone = [slot for slot, epoch in self._mine.items() if not self._holds(slot, epoch)]
        for slot in gone:
            self._giving.pop(slot, None)
            self._let_go(slot, self._mine.pop(slot))  # whoever is to have it need not wait for the registry
        if gone:
            self.losses += len(gone)
            _log.warning("slots %s of the cluster are lost: a lease of this node is over", _shown(sorted(gone)))
        for slot in gone:
            self._lost(slot)
        return bool(gone)

    def _look(self) -> None:
        """Do what is to be done now: say who this node is, take what is its own, give up what is another's."""
        now_ns = self._looked_ns = self.clock.monotonic()
        self._see_arrivals(now_ns)
        self._is_restless = not self._name.introduce(self.places, self._look_soon)
        self._tidy()
        if self._drained is not None:
            self._leave(now_ns)
        elif self._is_member():
            dealt = self._deal()
            self._give([slot for slot in sorted(self._mine) if dealt.get(slot) != self.name], now_ns)
            self._take([slot for slot in sorted(dealt) if dealt[slot] == self.name], now_ns)
        else:
            self._is_restless = True

    def _deal(self) -> dict[int, str]:
        weights = {name: node.weight for name, node in self.places.nodes.items() if not node.is_leaving}
        owners = {slot: owner.node for slot, owner in self.places.owners.items()}
        return deal(self.count, weights, owners, self.places.pins, self.places.drains)

    def _see_arrivals(self, now_ns: int) -> None:
        lives = {node.life for node in self.places.nodes.values()}
        if not lives <= self._lives:
            self._arrived_ns = now_ns
        if self._life in lives and self._life not in self._lives:
            self._joined_ns = now_ns
        self._lives = lives

    # --- this node ------------------------------------------------------------------------------------------------

    def _is_member(self) -> bool:
        """Tell whether everybody can know that this node is there."""
        node = self.places.nodes.get(self.name)
        return node is not None and node.life == self._life and self._name.is_held

    def _leave(self, now_ns: int) -> None:
        """Give away everything, and say so once others have it."""
        if self._drained is None or self._drained.is_given:
            return
        self._is_restless = True
        if not self._is_member():
            if not self._mine:
                self._drained.give(None)  # nothing is here, and nobody can be told
        elif self.places.nodes[self.name].is_leaving:
            self._give(sorted(self._mine), now_ns)
            others = [node for node in self.places.nodes.values() if not node.is_leaving]
            if self._mine or self._taking:
                self._drained_by_ns = now_ns + self._config.lease_ns
            elif (
                not others
                or now_ns >= self._drained_by_ns
                or all(self.owner(slot) not in (None, self.places.nodes[self.name]) for slot in range(self.count))
            ):
                self._drained.give(None)

    # --- slots ----------------------------------------------------------------------------------------------------

    def _holds(self, slot: int, epoch: int) -> bool:
        return self.presence.holds(f"{SLOTS}{slot}", epoch)

    def _take(self, slots: Sequence[int], now_ns: int) -> None:
        """Take what is this node's own and free."""
        for slot in slots:
            if slot in self._mine or slot in self._taking:
                continue
            self._is_restless = True
            owner = self.places.owners.get(slot)
            is_free = self.registry.get(f"{SLOTS}{slot}") is None if owner is None else self._is_stale(slot, now_ns)
            if not is_free or now_ns < max(self._again.get(slot, 0), self._joined_ns + CALM_NS):
                continue
            if len(self._taking) >= TAKES_MAX:
                return
            self._ask_for(slot, owner.entry.value if owner is not None else None)

    def _ask_for(self, slot: int, instead: bytes | None) -> None:
        self._taking.add(slot)
        self._turn += 1
        value = msgspec.msgpack.encode(SlotRecord(node=self.name, life=self._life, turn=self._turn))

        def told(epoch: int | None, error: Exception | None) -> None:
            self._taking.discard(slot)
            if epoch is not None and not self._closed and self._holds(slot, epoch):
                self._mine[slot] = epoch
                self.taken += 1
                self._took(slot, epoch)
            elif not (isinstance(error, Refusal) and error.code == "conflict"):
                self._again[slot] = self.clock.monotonic() + AGAIN_NS
                _log.warning("slot %d of the cluster could not be taken: %s", slot, error or "its lease is over")
            self._look_soon()

        self.presence.take(f"{SLOTS}{slot}", value, instead=instead).then(told)

    def _is_stale(self, slot: int, now_ns: int) -> bool:
        """Tell whether a key was left behind by nobody who lives: written without a lease, or not by a node at all."""
        owner = self.places.owners[slot]
        revision = owner.entry.revision
        if owner.life in self._name.former:
            return True
        if self.owner(slot) is not None:
            return False
        seen, since_ns = self._stale.get(slot, (0, 0))
        if seen != revision:
            self._stale[slot] = revision, now_ns
            return False
        return now_ns - since_ns >= STALE_LEASES * self._config.lease_ns

    def _give(self, slots: Sequence[int], now_ns: int) -> None:
        """Give up what another node is to have, a few at a time."""
        for slot in slots:
            if slot in self._giving:
                continue
            self._is_restless = True
            if len(self._giving) >= GIVES_MAX or (self._drained is None and now_ns - self._arrived_ns < CALM_NS):
                return
            self._giving[slot] = self._mine[slot]
            self._ask_up(slot, self._mine[slot])

    def _ask_up(self, slot: int, epoch: int) -> None:
        def told(_: None, error: Exception | None) -> None:
            if error is not None:
                _log.error("slot %d of the cluster is given away, but not all was closed: %s", slot, error)
            if self._giving.get(slot) == epoch:  # else it was lost meanwhile, and may be here again
                del self._giving[slot]
                del self._mine[slot]
                self.given += 1
                self._let_go(slot, epoch)
            self._look_soon()

        self._give_up(slot).then(told)

    def _tidy(self) -> None:
        """Take back keys of this life that came when nobody waited for them any more."""
        for slot, owner in self.places.owners.items():
            if owner.life == self._life and slot not in self._mine and slot not in self._taking:
                self._let_go(slot, owner.entry.revision)

    def _let_go(self, slot: int, epoch: int) -> None:
        """Ask for the key of a slot to go, if it is still the one of this epoch."""
        if self._removed.get(slot) == epoch:
            return
        self._removed[slot] = epoch
        key = f"{SLOTS}{slot}"
        entry = self.registry.get(key)
        self.presence.give_up(key)
        if entry is not None and entry.revision == epoch:
            self.presence.remove(key, entry.value)


def _shown(slots: Sequence[int]) -> str:
    first = ", ".join(map(str, slots[:8]))
    return f"{first} and {len(slots) - 8} more" if len(slots) > 8 else first
