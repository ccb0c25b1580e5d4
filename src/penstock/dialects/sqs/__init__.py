"""SQS and SNS, as Amazon documents them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.dialect import Bound, Dialect, Running
from penstock.dialects.sqs.choices import SqsChoices
from penstock.dialects.sqs.config import SqsConfig, check, endpoints

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.node.node import Node


async def _start(node: Node, config: Config, bound: Mapping[str, Bound]) -> Running:
    from penstock.dialects.sqs.running import Sqs

    return await Sqs.start(node, config, bound["sqs.port"])


DIALECT = Dialect("sqs", SqsConfig, check, endpoints, _start, SqsChoices)
