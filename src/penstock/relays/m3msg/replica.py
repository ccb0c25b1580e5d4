"""One subscription of a consumer service, and who gets its messages.

A shared service has one, a replicated one has one for each place among the owners of a shard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from penstock.columns import Offsets
from penstock.delivery.policies.routed import Routed, routes
from penstock.delivery.seat import Keep, Seat
from penstock.delivery.source import Delivery
from penstock.delivery.subscription import Subscription
from penstock.errors import ConfigError
from penstock.filters.acceptance import SHARD_SET
from penstock.filters.shards import ShardFilter
from penstock.message import Batch
from penstock.relays.m3msg.connection import Counts, Manner
from penstock.relays.m3msg.connections import Connections
from penstock.relays.m3msg.owners import NOBODY, UNWANTED, Owner, dealt
from penstock.relays.m3msg.stream import Attach


class Replica:
    """Deals rows to the owners of their shards."""

    def __init__(
        self,
        attach: Attach,
        subscription: Subscription,
        manner: Manner,
        connections: Connections,
        counts: Counts,
        shards: int,
        first_shard: int,
    ) -> None:
        self.subscription = subscription
        self._attach = attach
        self._manner = manner
        self._connections = connections
        self._counts = counts
        self._shards = shards
        self._first_shard = first_shard
        #: Where its rows are sent.
        self._endpoints: set[str] = set()
        #: Who takes what is not sent, by their names.
        self._discarding: dict[str, Seat] = {}
        self._owners: Mapping[int, Sequence[Owner]] | None = None
        self._discards = False
        #: The shards that the service takes, as they were last dealt.
        self._shard_set = ""
        self._is_draining = False

    def place(self, owners: Mapping[int, Sequence[Owner]], *, discards: bool) -> None:
        """Send to these owners from now on; `discards`: what nobody has is not kept."""
        if self._is_draining:
            return
        self._owners, self._discards = owners, discards
        self._shard_set = self.subscription.settings.shard_set
        endpoints = {owner.endpoint for some in owners.values() for owner in some}
        for gone in sorted(self._endpoints - endpoints):
            self._connections.leave(gone, self._first_shard)
        self._endpoints = endpoints
        policy = self.subscription.chosen_policy
        if not isinstance(policy, Routed):
            raise ConfigError(f"subscription {self.subscription.name} is not dealt by routes, and cannot be relayed")
        wanted = None
        if self._shard_set:
            # Of its own shards, whatever `route` a message brought.
            wanted = ShardFilter(self._shard_set).verdicts(list(range(self._shards))).tolist()
        deal = dealt(owners, self._shards, self._connections.number, wanted)
        policy.deal_to(deal.lanes, deal.takers)
        self._discard(NOBODY, discards and NOBODY in deal.takers)
        self._discard(UNWANTED, UNWANTED in deal.takers)
        attach, keep = partial(self._attach, self.subscription), self._timely(owners)
        for endpoint in sorted(endpoints):
            for connection in self._connections.to(endpoint):
                connection.serve(self._first_shard, attach, keep)
        self.subscription.pump()

    def configured(self) -> None:
        """Send what the settings of its subscription let it take now."""
        if self._owners is not None and self.subscription.settings.shard_set != self._shard_set:
            self.place(self._owners, discards=self._discards)

    def drain(self) -> None:
        """Send nothing more, to nobody who comes either."""
        self._is_draining = True

    def close(self) -> None:
        """Send nothing more, and hang up on who gets nothing of other replicas."""
        for endpoint in sorted(self._endpoints):
            self._connections.leave(endpoint, self._first_shard)
        self._endpoints = set()
        for name in list(self._discarding):
            self._discard(name, False)

    # --- what is not sent -----------------------------------------------------------------------------------------

    def _discard(self, name: str, does: bool) -> None:
        """Finish what nobody has, or what is not wanted, or cease to."""
        if does and name not in self._discarding:
            seat = self._attach(self.subscription, _nothing, name=name, keep=partial(self._refuse, name))
            self._discarding[name] = seat
            seat.set_credit(1 << 30)
        elif not does and name in self._discarding:
            self._discarding.pop(name).close()

    def _refuse(self, name: str, shard: int, batch: Batch, rows: slice | Offsets) -> npt.NDArray[np.bool_]:
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        if name == NOBODY:
            self._counts.unowned += count
        else:
            refused = self.subscription.refused
            refused[SHARD_SET] = refused.get(SHARD_SET, 0) + count
        return np.zeros(count, np.bool_)

    def _timely(self, owners: Mapping[int, Sequence[Owner]]) -> Keep | None:
        """Return what judges rows by the times of their owners; None where no owner has any that counts."""
        if self._manner.ignores_times or not any(
            owner.cutover_ns or owner.cutoff_ns for some in owners.values() for owner in some
        ):
            return None
        froms = np.zeros(self._shards, np.int64)
        untils = np.full(self._shards, np.iinfo(np.int64).max, np.int64)
        for shard, some in owners.items():
            froms[shard] = some[0].cutover_ns
            untils[shard] = some[0].cutoff_ns or untils[shard]

        def keep(_: int, batch: Batch, rows: slice | Offsets) -> npt.NDArray[np.bool_]:
            picks = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
            slots = routes(batch, batch.first + picks, self._shards)
            times = batch.timestamp
            taken = times if isinstance(times, int) else np.asarray(times)[picks]
            timely: npt.NDArray[np.bool_] = (taken >= froms[slots]) & (taken < untils[slots])
            self._counts.untimely += int(np.count_nonzero(~timely))
            return timely

        return keep


def _nothing(deliveries: list[Delivery]) -> None:
    """Take nothing: all of it was refused before."""
