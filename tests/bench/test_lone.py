"""The way of a lone message: what costs there is how much code it touches, once caches are cold."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.micro.lone import Lone

FUNCTIONS_MAX = 60


def test_a_lone_message_calls_no_more_functions_than_it_may(tmp_path: Path) -> None:
    async def counted() -> int:
        lone = Lone(str(tmp_path))
        await asyncio.sleep(0)
        lone.publish()
        lone.receive()
        functions = lone.functions()
        lone.node.close()
        return functions

    assert asyncio.run(counted()) <= FUNCTIONS_MAX
