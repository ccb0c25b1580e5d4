"""The routing mapping in force, wherever it is kept: in the registry, or in etcd with the registry as its memory.

Owns which of the two counts. What a mapping does to a message is the filters' business.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from penstock.clock import Clock
from penstock.config.tree import RoutingConfig
from penstock.m3 import routing
from penstock.node.policy import Policy
from penstock.registry.catalog import Catalog
from penstock.registry.records import RoutingMapping

_log = logging.getLogger("penstock.node")


class Routing:
    """Which traffic type has which bit, now."""

    def __init__(self, config: RoutingConfig, clock: Clock, catalog: Catalog, on_change: Callable[[], None]) -> None:
        self._clock = clock
        self._catalog = catalog
        self._on_change = on_change
        known = catalog.mapping_or_none()
        #: Traffic types and their bits, by which messages are routed.
        self.mapping = known.traffic_types
        #: The mapping as etcd has it; None where it is the registry's own.
        self.policy: Policy | None = None
        if config.key:
            keys = routing.keys(config.environment, config.key, config.namespace)
            self.policy = Policy(config.zone, keys, known, self._take_policy)
        self._unwatch = catalog.watch_mapping(self._on_mapping)

    def in_force(self) -> RoutingMapping:
        """Return the mapping in force; of one in etcd it is not known which types were retired."""
        return self._catalog.mapping() if self.policy is None else RoutingMapping(traffic_types=dict(self.mapping))

    def close(self) -> None:
        """Hear of no change any more."""
        self._unwatch()

    def _on_mapping(self, mapping: RoutingMapping) -> None:
        """Hear of the mapping in the registry, which is but a memory where etcd has it."""
        if self.policy is None:
            self._remap(mapping)

    def _take_policy(self, traffic_types: Mapping[str, int]) -> None:
        """Go by what etcd says, at once, and remember it for a start without etcd."""
        self._remap(RoutingMapping(traffic_types=dict(traffic_types)))
        # The registry syncs a file, which nobody has to wait for.
        self._clock.call_soon(lambda: self._catalog.take_mapping(self.mapping).then(self._policy_kept))

    def _policy_kept(self, _: RoutingMapping | None, error: Exception | None) -> None:
        if error is not None:
            _log.warning("the routing mapping is in force, and not remembered for the next start: %s", error)

    def _remap(self, mapping: RoutingMapping) -> None:
        self.mapping = mapping.traffic_types
        self._on_change()
