"""Dynamiq: queues with partitions and topics that feed them, over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.dialect import Bound, Dialect, Running
from penstock.dialects.dynamiq.choices import DynamiqChoices
from penstock.dialects.dynamiq.config import DynamiqConfig, check, endpoints

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.node.node import Node


async def _start(node: Node, config: Config, bound: Mapping[str, Bound]) -> Running:
    from penstock.dialects.dynamiq.running import Dynamiq

    return await Dynamiq.start(node, config, bound["dynamiq.port"])


DIALECT = Dialect("dynamiq", DynamiqConfig, check, endpoints, _start, DynamiqChoices)
