"""The `tagged` policy: rows with a tag go to the consumers that ask for it, and to nobody else.

In force while some consumer of the subscription asks for a tag. A row whose tag nobody claims goes to consumers that
ask for none; a row that must wait for its consumer delays no other row.
"""

from __future__ import annotations

from penstock.delivery.cursor import LOOKS_MAX
from penstock.delivery.moment import Now
from penstock.delivery.policies.policy import Dealer


class Tagged:
    """Everybody gets his own, in turns."""

    def deal(self, dealer: Dealer, budget: int, now: Now) -> int:
        """Hand out up to `budget` rows and return how many."""
        dealt = 0
        looks = LOOKS_MAX
        while dealt < budget and dealer.line:
            got = self._round(dealer, budget - dealt, now)
            dealt += got
            if got:
                continue
            if not dealer.sort_ahead(now):
                break
            looks -= 1
            if looks == 0:  # much is parked: others shall have their turn before the search goes on
                return budget
        return dealt

    def _round(self, dealer: Dealer, budget: int, now: Now) -> int:
        """Ask every consumer with room once."""
        line = dealer.line
        dealt = 0
        for _ in range(len(line)):
            consumer = line.popleft()
            room = min(consumer.room, budget - dealt)
            deliveries = dealer.take(room, consumer, now) if room > 0 else []
            if deliveries:
                dealt += dealer.hand(consumer, deliveries)
            if consumer.room > 0:
                line.append(consumer)
            else:
                consumer.queued = False
        return dealt
