"""An instant: what time it is, on both clocks."""

from __future__ import annotations

from typing import NamedTuple


class Instant(NamedTuple):
    """One instant on both clocks: leases are counted on the monotonic one, due times on the wall's."""

    monotonic_ns: int
    wall_ns: int
