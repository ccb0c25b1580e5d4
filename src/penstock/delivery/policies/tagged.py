"""The `tagged` policy: rows with a tag go to the consumers that ask for it, and to nobody else.

In force while some consumer of the subscription asks for a tag. A row whose tag nobody claims goes to consumers that
ask for none; a row that must wait for its consumer delays no other row.
"""

from __future__ import annotations

from penstock.delivery.cursor import LOOKS_MAX
from penstock.delivery.moment import Now
from penstock.delivery.policies.policy import Dealer

#: So many consumers are served before others get their turn. A write and the answer to it cost as much as some hundred
#: rows, and under load those who wait a turn get more rows at once.
HANDS_MAX = 8


class Tagged:
    """Everybody gets his own, in turns."""

    def __init__(self) -> None:
        #: Those who were served last took all there was and would take more.
        self._hungry = False

    def deal(self, dealer: Dealer, budget: int, now: Now) -> int:
        """Hand out up to `budget` rows and return how many."""
        dealt = 0
        looks = LOOKS_MAX
        hands = HANDS_MAX
        if self._hungry:
            # They had little each: with what came meanwhile the next ones get more at once.
            self._hungry = False
            dealer.sort_ahead(now)
        while dealt < budget and dealer.line:
            got, hands = self._round(dealer, budget - dealt, hands, now)
            dealt += got
            if hands == 0:
                return budget
            # Whoever is still in line has had all that is sorted for him.
            if dealt >= budget or not dealer.sort_ahead(now):
                break
            looks -= 1
            if looks == 0:  # much is parked: others shall have their turn before the search goes on
                return budget
        return dealt

    def _round(self, dealer: Dealer, budget: int, hands: int, now: Now) -> tuple[int, int]:
        """Ask every consumer with room once; return the rows dealt and how many more consumers may be served."""
        line = dealer.line
        dealt = 0
        full = False
        for _ in range(len(line)):
            consumer = line.popleft()
            room = min(consumer.room, budget - dealt)
            if room > 0 and dealer.stocked(consumer):
                deliveries = dealer.take(room, consumer, now)
                if deliveries:
                    dealt += dealer.hand(consumer, deliveries)
                    hands -= 1
                    full = full or consumer.room <= 0
            if consumer.room > 0:
                line.append(consumer)
            else:
                consumer.queued = False
            if hands == 0:
                self._hungry = not full
                break
        return dealt, hands
