"""Where others find what listens here: the address that lookup services hand out."""

from __future__ import annotations

import socket

from penstock.config import Config
from penstock.dialects.nsq.config import NsqConfig

#: All addresses of a machine, which is nowhere to send anybody.
EVERYWHERE = ("", "0.0.0.0", "::")


def broadcast_address(config: Config) -> str:
    """Return the configured address, else the one that is listened on, else this machine's name.

    nsqd says its host name always; that leads nowhere while only loopback is open.
    """
    nsq = config.of(NsqConfig)
    return nsq.broadcast_address or (socket.gethostname() if nsq.address in EVERYWHERE else nsq.address)
