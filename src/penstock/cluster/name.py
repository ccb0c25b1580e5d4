"""The name of this node in its cluster: taken when it comes, and again when a lease was lost that it hung on.

Owns what the registry says of the node. Invariant: nobody loses a name to another while it lives, but to a process that
has the same data directory, which nobody else can have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import msgspec

from penstock import __version__
from penstock.clock import MILLISECOND, SECOND, Clock
from penstock.cluster.places import NODES, NodeRecord, Places, address_of, name_of, reachable
from penstock.cluster.presence import Presence
from penstock.config import ClusterConfig
from penstock.errors import ConfigError, Refusal
from penstock.registry.answer import Answer
from penstock.registry.registry import Registry

#: A name that somebody has is looked at again after this time.
NAME_NS = 200 * MILLISECOND
#: What the registry did not hear is said again after this time.
AGAIN_NS = SECOND

_log = logging.getLogger("penstock.cluster")


class Name:
    """What others know this node by."""

    def __init__(
        self, registry: Registry, clock: Clock, config: ClusterConfig, presence: Presence, life: str, disk: str
    ) -> None:
        self.text = name_of(config)
        #: Why this node has no part in the cluster, if that is so.
        self.problem = ""
        #: Lives of this node that are over.
        self.former: set[str] = set()
        self.life = life
        self._registry = registry
        self._clock = clock
        self._config = config
        self._presence = presence
        self._key = NODES + self.text
        self._record = NodeRecord(
            name=self.text,
            life=life,
            weight=config.weight,
            address=address_of(config),
            version=__version__,
            since_ms=clock.now() // MILLISECOND,
            disk=disk,
        )
        #: What the registry says of this node, and at which revision.
        self._said: tuple[NodeRecord, int] | None = None
        self._is_saying = False
        self._say_again_ns = 0
        self._is_unheard = False

    @property
    def is_held(self) -> bool:
        """Whether the name is in these hands."""
        return self._said is not None and self._presence.holds(self._key, self._said[1])

    def listen(self, listeners: Mapping[str, str]) -> None:
        """Know where this node listens; it is said with the next `introduce`."""
        address, found = reachable(self._config, listeners)
        self._record = msgspec.structs.replace(self._record, address=address, listeners=found)

    def leave(self) -> None:
        """Know that this node is stopping; it is said with the next `introduce`."""
        self._record = msgspec.structs.replace(self._record, is_leaving=True)

    def come(self, places: Places, until_ns: int) -> Answer[None]:
        """Take this node's name, once whoever had it before is gone."""
        entry = self._registry.get(self._key)
        other = places.node_at(entry, self._key)
        now_ns = self._clock.monotonic()
        if other is not None and other.disk and other.disk == self._record.disk:
            self.former.add(other.life)  # it was on this disk: what it has need not be waited for
        elif entry is not None and now_ns < until_ns:
            later: Answer[None] = Answer()
            self._clock.call_at(now_ns + NAME_NS, lambda: later.give(None))
            return later.then_ask(lambda _: self.come(places, until_ns))
        elif other is not None:
            return Answer.refused(
                ConfigError(
                    f"another node calls itself {self.text} in cluster {self._config.name} (at {other.address}); "
                    "stop it, or set cluster.node to another name"
                )
            )
        said: Answer[None] = Answer()

        def told(revision: int | None, error: Exception | None) -> None:
            if isinstance(error, Refusal) and error.code == "conflict" and now_ns < until_ns:
                self.come(places, until_ns).then(lambda _, why: said.refuse(why) if why else said.give(None))
            elif error is not None:
                said.refuse(error)
            else:
                self._said = self._record, revision or 0
                said.give(None)

        value = msgspec.msgpack.encode(self._record)
        self._presence.take(self._key, value, instead=entry.value if entry else None).then(told)
        return said

    def introduce(self, places: Places, told: Callable[[], None]) -> bool:
        """Say who this node is where that is not known, unless somebody else has its name by now.

        Return False while that is not done: nothing else tells when to look again.
        """
        if self._is_saying or (self._said is not None and self._said[0] == self._record and self.is_held):
            return True
        entry = self._registry.get(self._key)
        other = places.node_at(entry, self._key)
        if other is not None and other.life != self.life:
            if not self.problem:
                self.problem = (
                    f"another node has called itself {self.text} (at {other.address}) since this one was away, which "
                    "has no part in the cluster now; stop it, or set cluster.node to another name"
                )
                _log.error(self.problem)
        elif self._clock.monotonic() >= self._say_again_ns:
            self._is_saying = True
            self._say(self._record, entry.value if entry else None, told)
        return False

    def _say(self, record: NodeRecord, instead: bytes | None, then: Callable[[], None]) -> None:
        def told(revision: int | None, error: Exception | None) -> None:
            self._is_saying = False
            if error is None:
                self._said, self.problem, self._is_unheard = (record, revision or 0), "", False
            else:
                self._say_again_ns = self._clock.monotonic() + AGAIN_NS
                if not self._is_unheard:
                    self._is_unheard = True  # told once: it is tried every second
                    _log.warning("this node is not in the cluster, because the registry does not hear it: %s", error)
            then()

        self._presence.take(self._key, msgspec.msgpack.encode(record), instead=instead).then(told)
