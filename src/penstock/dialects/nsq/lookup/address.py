"""Where others find what listens here: the address that lookup services hand out, and the names it answers to."""

from __future__ import annotations

import socket

from penstock.config import Config
from penstock.dialects.nsq.config import NsqConfig
from penstock.http import Door
from penstock.wire.crowd import Crowd, files_left

#: All addresses of a machine, which is nowhere to send anybody.
EVERYWHERE = ("", "0.0.0.0", "::")


def broadcast_address(config: Config) -> str:
    """Return the configured address, else the one that is listened on, else this machine's name.

    nsqd says its host name always; that leads nowhere while only loopback is open.
    """
    nsq = config.of(NsqConfig)
    return nsq.broadcast_address or (socket.gethostname() if nsq.address in EVERYWHERE else nsq.address)


def door(config: Config) -> Door:
    """Return who may knock at the HTTP listeners: whoever asks for the address that is handed out, too."""
    return Door(config.of(NsqConfig).address, (*config.http.hosts, broadcast_address(config)))


def crowd(config: Config) -> Crowd:
    """Return how many may be connected to one of the listeners."""
    limits = config.limits
    return Crowd(limits.connections, limits.connections_per_address, files_left())
