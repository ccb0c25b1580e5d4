"""Orders of a consumer: what they may say, and how one with many ids is carried out in steps.

Pure. Knows nothing of exchanges; the document is `client.wire`'s.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from penstock.client.wire import Order, Ranges, ranges_of
from penstock.columns import SMALL, Offsets
from penstock.errors import Refusal

#: Ids in one order, those of them that one step of the loop takes, and messages that may be out at one consumer.
IDS_MAX = 1_000_000
STEP_IDS = 16_384
CREDIT_MAX = 1_000_000
#: A release is put off by at most this much.
DELAY_MS_MAX = 365 * 24 * 3600 * 1000


def check(order: Order) -> None:
    """Refuse an order that cannot be meant."""
    for name in ("ack", "extend", "release"):
        ranges: Ranges = getattr(order, name)
        if sum(count for _, count in ranges) > IDS_MAX:
            raise Refusal("bad_request", f"{name} names more than {IDS_MAX} ids; send several orders")
        if any(first + count > 1 << 63 for first, count in ranges):
            raise Refusal("bad_request", f"{name} names ids beyond 63 bits")
    if order.credit is not None and not 0 <= order.credit <= CREDIT_MAX:
        raise Refusal("bad_request", f"credit is {order.credit}; it must be from 0 to {CREDIT_MAX}")
    if order.lease_ms is not None and not 0 < order.lease_ms <= DELAY_MS_MAX:
        raise Refusal("bad_request", f"lease_ms is {order.lease_ms}; it must be from 1 to {DELAY_MS_MAX}")
    if not 0 <= order.delay_ms <= DELAY_MS_MAX:
        raise Refusal("bad_request", f"delay_ms is {order.delay_ms}; it must be from 0 to {DELAY_MS_MAX}")


def parts_of(order: Order) -> Iterator[Order]:
    """Cut an order with many ids into several that do the same, so that none delays everybody."""
    if sum(count for ranges in (order.ack, order.extend, order.release) for _, count in ranges) <= STEP_IDS:
        yield order
        return
    yield from (Order(ack=ranges) for ranges in _steps(order.ack))
    yield from (Order(extend=ranges, lease_ms=order.lease_ms) for ranges in _steps(order.extend))
    yield from (Order(release=ranges, delay_ms=order.delay_ms) for ranges in _steps(order.release))
    yield Order(credit=order.credit, ping=order.ping)


def _steps(ranges: Ranges) -> Iterator[Ranges]:
    some: Ranges = []
    room = STEP_IDS
    for first, count in ranges:
        while count:
            taken = min(count, room)
            some.append([first, taken])
            first, count, room = first + taken, count - taken, room - taken
            if not room:
                yield some
                some, room = [], STEP_IDS
    if some:
        yield some


def ids_of(ranges: Ranges) -> Offsets:
    """Return the ids of some runs."""
    return np.concatenate([np.arange(first, first + count, dtype=np.int64) for first, count in ranges])


def runs_of(ids: list[int]) -> Ranges:
    """Return ids as runs, in order."""
    if len(ids) <= SMALL:
        return ranges_of(sorted(ids))
    found = np.sort(np.array(ids, np.int64))
    starts = np.concatenate([[0], np.flatnonzero(np.diff(found) != 1) + 1])
    return np.stack([found[starts], np.diff([*starts.tolist(), len(found)])], 1).tolist()  # type: ignore[no-any-return]
