"""The metrics of a small shop that does not exist, published while the default pipeline runs, so that it has work.

Owns what is published and how much of it is kept. Publishes like any dialect does, through the topic.
Invariant: about twenty messages a second, whatever happens to them; what cannot be stored is counted in the ledger.
"""

from __future__ import annotations

import logging
import math
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.cli.beside import DEMO_TOPIC as TOPIC
from penstock.clock import SECOND, Timer
from penstock.message import Rows
from penstock.registry.answer import Answer

if TYPE_CHECKING:
    from penstock.node.node import Node
    from penstock.node.topic import Topic

_log = logging.getLogger("penstock.demo")

SOURCE = "demo"
RETENTION_BYTES = 64 << 20
RETENTION_NS = 24 * 3600 * SECOND

BEAT_NS = SECOND
DAY_S = 24 * 3600
#: The shop is busiest at this hour, in UTC.
BUSY_HOUR = 19
REGIONS = ("eu", "us", "asia")
ITEMS = ("mugs", "shirts", "caps")
PAGES = ("home", "search", "product", "cart")
#: Traffic bits: of a load test, and of a new release that few customers see.
LOAD_TEST, CANARY = 1 << 0, 1 << 1
#: One beat in this many holds a line that no parser takes.
BROKEN_ONE_IN = 30
BROKEN = ("shop.orders:many|c", "shop.cart.open 17|g", ":1|c", "shop.checkout.time:12|")


class Line(NamedTuple):
    """One StatsD line, and its traffic bits."""

    text: str
    traffic: int | None = None


def lines(now_ns: int, random: Random) -> list[Line]:
    """Return what the shop says in one second."""
    load = busyness(now_ns)
    found = [_requests(page, load, random) for page in PAGES]
    found += [_orders(region, load, random) for region in REGIONS]
    found.append(Line(f"shop.errors:{_poisson(0.4 * load, random)}|c"))
    found.append(Line(f"shop.carts.open:{round(40 + 400 * load * random.uniform(0.95, 1.05))}|g"))
    found.append(Line(f"shop.stock:{random.randrange(200, 900)}|g|#item:{random.choice(ITEMS)}"))
    found.append(Line(f"shop.queue.depth:{_poisson(6 * load, random)}|g|#queue:mail"))
    found += [_timer("shop.search.time", 45, load, random) for _ in range(5)]
    found += [_timer("shop.checkout.time", 180, load, random) for _ in range(3)]
    found.append(Line(f"shop.visitors:{round(900 * load * random.uniform(0.9, 1.1))}|g"))
    if random.randrange(BROKEN_ONE_IN) == 0:
        found.append(Line(random.choice(BROKEN)))
    return found


def busyness(now_ns: int) -> float:
    """Return how busy the shop is, 0.15 at its quietest to 1 at its busiest hour."""
    hour = now_ns / SECOND % DAY_S / 3600
    return 0.575 + 0.425 * math.cos((hour - BUSY_HOUR) / 24 * 2 * math.pi)


def _requests(page: str, load: float, random: Random) -> Line:
    count = _poisson(60 * load / (1 + PAGES.index(page)), random)
    return Line(f"shop.requests:{count}|c|#page:{page}", _sometimes(LOAD_TEST, 0.05, random))


def _orders(region: str, load: float, random: Random) -> Line:
    return Line(f"shop.orders:{_poisson(3 * load, random)}|c|#region:{region}", _sometimes(CANARY, 0.1, random))


def _timer(name: str, middle_ms: float, load: float, random: Random) -> Line:
    """Return one measurement: slower under load, with a long tail; some are one in ten."""
    spent_ms = random.lognormvariate(math.log(middle_ms * (0.8 + 0.6 * load)), 0.45)
    rate = "|@0.1" if random.random() < 0.2 else ""
    return Line(f"{name}:{spent_ms:.1f}|ms{rate}", _sometimes(CANARY, 0.1, random))


def _sometimes(bits: int, share: float, random: Random) -> int | None:
    return bits if random.random() < share else None


def _poisson(mean: float, random: Random) -> int:
    """Return a count of things that happen on their own; a bell is near enough."""
    return max(round(random.gauss(mean, math.sqrt(mean))), 0)


class Demo:
    """The shop at work."""

    def __init__(self, node: Node, random: Random) -> None:
        self._node = node
        self._random = random
        self._timer: Timer | None = None

    def start(self) -> None:
        """Begin to publish."""
        self._beat()

    def stop(self) -> None:
        """Publish nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self) -> None:
        clock = self._node.clock
        self._timer = clock.call_at(clock.monotonic() + BEAT_NS, self._beat)
        self._topic().then(self._publish)

    def _publish(self, topic: Topic | None, error: Exception | None) -> None:
        if topic is None:  # a full disk: there will be a next second
            _log.debug("nothing is published to %s: %s", TOPIC, error)
            return
        clock = self._node.clock
        said = lines(clock.now(), self._random)
        rows = Rows.of([line.text.encode() for line in said], SOURCE, {"traffic": [line.traffic for line in said]})
        topic.publish(rows, self, lambda receipt, error: None)  # the ledger counts what is refused

    def _topic(self) -> Answer[Topic]:
        settings = msgspec.structs.replace(
            self._node.config.topic.settings(),
            retention_bytes=RETENTION_BYTES,
            retention_age_ns=RETENTION_NS,
            retention_hard=True,
        )
        return self._node.obtain(TOPIC, settings)
