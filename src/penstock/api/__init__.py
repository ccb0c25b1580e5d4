"""The admin API: its row beside those of the dialects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.api.config import ApiConfig, check, endpoints
from penstock.dialect import Bound, Dialect, Running

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.node.node import Node


async def _start(node: Node, config: Config, bound: Mapping[str, Bound]) -> Running:
    from penstock.api.server import serve

    return await serve(node, config, bound["api.port"])


API = Dialect("api", ApiConfig, check, endpoints, _start)
