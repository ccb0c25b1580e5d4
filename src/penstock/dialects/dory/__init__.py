"""Dory in: local programs hand over messages one way, by datagram, stream or TCP, and what they send is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.dialect import Bound, Dialect, Running
from penstock.dialects.dory.config import DoryConfig, check, endpoints

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.node.node import Node


async def _start(node: Node, config: Config, bound: Mapping[str, Bound]) -> Running:
    from penstock.dialects.dory.running import Dory

    return await Dory.start(node, config, bound)


DIALECT = Dialect("dory", DoryConfig, check, endpoints, _start)
