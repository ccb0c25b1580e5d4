"""The `shared` policy: whoever has room takes the next rows; those who wait longest come first."""

from __future__ import annotations

from penstock.delivery.moment import Now
from penstock.delivery.policies.policy import Dealer


class Shared:
    """Competing consumers, in turns."""

    def deal(self, dealer: Dealer, budget: int, now: Now) -> int:
        """Hand out up to `budget` rows and return how many."""
        line = dealer.line
        dealt = misses = 0
        while line and dealt < budget and dealer.can_give():
            consumer = line[0]
            room = consumer.room
            if room <= 0:
                line.popleft()
                consumer.queued = False
                continue
            deliveries = dealer.take(min(room, budget - dealt), consumer, now)
            if not deliveries:
                misses += 1
                if consumer.shard is None or misses >= len(line):
                    break
                line.rotate(-1)  # its shard has nothing; another consumer may read others
                continue
            misses = 0
            line.popleft()
            dealt += dealer.hand(consumer, deliveries)
            if consumer.room > 0:
                line.append(consumer)
            else:
                consumer.queued = False
        return dealt
