"""The real way to lookup services elsewhere: connections and questions on the running loop.

Every task is kept until it ends, and ended by `close`. Nothing here decides anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from urllib.parse import quote

import msgspec

from penstock.dialects.nsq.lookup.link import Channels, Link

#: A service that takes longer to accept, or to answer, is not there.
CONNECT_S = 5.0
ANSWER_S = 5.0

#: A list of channels is a few hundred bytes; more than this is something else.
ANSWER_BYTES_MAX = 1 << 20

_log = logging.getLogger("penstock.nsq.lookup")


class _Listed(msgspec.Struct):
    channels: list[str]


class LoopNetwork:
    """Connections from the loop that runs the node."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def dial(self, host: str, port: int, link: Link) -> None:
        """Connect; the link hears `connection_made` or `failed`."""
        self._start(self._dial(host, port, link))

    def ask(self, host: str, port: int, topic: str, done: Channels) -> None:
        """Ask a service over HTTP for the channels of a topic; `done` is not called if it does not answer."""
        self._start(self._ask(host, port, topic, done))

    async def close(self) -> None:
        """End whatever is under way."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _dial(self, host: str, port: int, link: Link) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                await asyncio.get_running_loop().create_connection(lambda: link, host, port)
        except TimeoutError:
            link.failed(f"it did not accept for {CONNECT_S:.0f} s")
        except (OSError, UnicodeError) as error:
            link.failed(str(error))

    async def _ask(self, host: str, port: int, topic: str, done: Channels) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                listed = await _channels(host, port, topic)
        except (OSError, UnicodeError, ValueError, msgspec.MsgspecError) as error:  # TimeoutError is an OSError
            _log.warning("lookup service %s:%d did not tell the channels of %s: %r", host, port, topic, error)
            return
        done(listed)


async def _channels(host: str, port: int, topic: str) -> list[str]:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        request = f"GET /channels?topic={quote(topic, safe='')} HTTP/1.0\r\nHost: {host}\r\n"
        # Youzan's services wrap their answers for whoever does not ask for this version.
        writer.write(f"{request}Accept: application/vnd.nsq; version=1.0\r\n\r\n".encode("ascii"))
        answer = b""
        while part := await reader.read(65536):
            answer += part
            if len(answer) > ANSWER_BYTES_MAX:
                raise ValueError(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
    finally:
        writer.close()
    head, _, content = answer.partition(b"\r\n\r\n")
    status = head.split(None, 2)[1:2]
    if status != [b"200"]:
        raise ValueError(f"it answered {head[:100]!r}")
    return msgspec.json.decode(content, type=_Listed).channels
