"""The real way to lookup services elsewhere: connections and questions on the running loop."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from urllib.parse import quote

import msgspec

from penstock.dialects.nsq.lookup.link import Channels
from penstock.wire.dial import LoopDialler
from penstock.wire.fetch import fetch

#: A service that takes longer to answer is not there.
ANSWER_S = 5.0

#: Youzan's services wrap their answers for whoever does not ask for this version.
_HEADERS = {"Accept": "application/vnd.nsq; version=1.0"}

_log = logging.getLogger("penstock.nsq.lookup")


class _Listed(msgspec.Struct):
    channels: list[str]


class LoopNetwork(LoopDialler):
    """Connections from the loop that runs the node."""

    def __init__(self, token: str = "") -> None:
        """Take what services are shown that want to know who asks."""
        super().__init__()
        self._headers = {**_HEADERS, "Authorization": f"Bearer {token}"} if token else _HEADERS

    def ask(self, host: str, port: int, topic: str, done: Channels) -> None:
        """Ask a service over HTTP for the channels of a topic; `done` is not called if it does not answer."""
        self.start(_ask(host, port, topic, self._headers, done))


async def _ask(host: str, port: int, topic: str, headers: Mapping[str, str], done: Channels) -> None:
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        answer = await fetch(f"http://{place}/channels?topic={quote(topic, safe='')}", ANSWER_S, headers)
        listed = msgspec.json.decode(answer, type=_Listed).channels
    except (OSError, ValueError, msgspec.MsgspecError) as error:  # TimeoutError is an OSError
        _log.warning("lookup service %s did not tell the channels of %s: %r", place, topic, error)
        return
    done(listed)
