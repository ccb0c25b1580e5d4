"""Arrow Flight, the native protocol: batches in and out, subscriptions with credit and acks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.dialect import Bound, Dialect, Running
from penstock.dialects.flight.config import FlightConfig, check, endpoints

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.node.node import Node


async def _start(node: Node, config: Config, bound: Mapping[str, Bound]) -> Running:
    from penstock.dialects.flight.server import serve_flight

    return await serve_flight(node, config, bound["flight.port"])


DIALECT = Dialect("flight", FlightConfig, check, endpoints, _start)
