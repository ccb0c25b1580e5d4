"""NSQ, with its lookup service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.dialect import Bound, Dialect, Running
from penstock.dialects.nsq.choices import NsqChoices
from penstock.dialects.nsq.config import NsqConfig, check, endpoints

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.node.node import Node


async def _start(node: Node, config: Config, bound: Mapping[str, Bound]) -> Running:
    from penstock.dialects.nsq.running import Nsq

    return await Nsq.start(node, config, bound)


DIALECT = Dialect("nsq", NsqConfig, check, endpoints, _start, NsqChoices)
