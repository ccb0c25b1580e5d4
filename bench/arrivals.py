"""When topics deliver again: a consumer each, which comes back until it has a message.

Speaks NSQ to one node. Knows no cluster and no target.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Sequence

#: How often refused consumers come again, all together: what that costs the node must not be what is measured.
COMINGS_PER_S = 200
AGAIN_S_MIN = 0.05
PATIENCE_S = 120.0
#: The first that the load generator makes.
CHANNEL = "ch0"
_HEAD = struct.Struct(">II")
_MESSAGE = 2
_HEARTBEAT = b"_heartbeat_"


def arrivals(port: int, topics: Sequence[str]) -> list[float]:
    """Return when each topic delivered a message, by the monotonic clock."""
    again_s = max(AGAIN_S_MIN, len(topics) / COMINGS_PER_S)

    async def all_of_them() -> list[float]:
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.gather(*(_arrival(port, topic, again_s) for topic in topics))

    return asyncio.run(all_of_them())


async def _arrival(port: int, topic: str, again_s: float) -> float:
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(again_s)
            continue
        try:
            writer.write(f"  V2SUB {topic} {CHANNEL}\nRDY 1\n".encode())
            while True:
                size, kind = _HEAD.unpack(await reader.readexactly(8))
                data = await reader.readexactly(size - 4)
                if kind == _MESSAGE:
                    return time.monotonic()
                if data == _HEARTBEAT:
                    writer.write(b"NOP\n")
                elif kind:
                    raise ConnectionError(data)
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.sleep(again_s)
        finally:
            writer.close()
