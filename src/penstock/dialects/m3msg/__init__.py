"""M3Msg in: producers of M3's connect as they do to a consumer service, and what they send is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.dialect import Bound, Dialect, Running
from penstock.dialects.m3msg.config import M3MsgConfig, check, endpoints

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.node.node import Node


async def _start(node: Node, config: Config, bound: Mapping[str, Bound]) -> Running:
    from penstock.dialects.m3msg.running import M3Msg

    return await M3Msg.start(node, config, bound["m3msg.port"])


DIALECT = Dialect("m3msg", M3MsgConfig, check, endpoints, _start)
