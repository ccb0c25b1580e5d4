"""What the configuration needs to know of somebody who listens: a section, what cannot work, and where it listens.

Dialects and the admin API are such parts; the tree itself knows none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

from penstock.config.tree import Config, Section

#: `tcp`, `http` and `grpc` have an address and a port; `unix` (a stream) and `datagram` are sockets in the file system.
Kind = Literal["tcp", "http", "grpc", "unix", "datagram"]

_SCHEMES = {"http": ("http://", "https://"), "grpc": ("grpc://", "grpc+tls://")}


#: How a listener of the node's own certificate and token is made safe.
TOKEN_AND_TLS = "set token_file or make users (`penstock user add`), and set tls_cert and tls_key"


class Endpoint(NamedTuple):
    """One place to listen at, as it is configured."""

    #: The setting that says where, which is also its name everywhere else.
    key: str
    kind: Kind
    #: What is spoken there, for people.
    purpose: str
    #: An address of this machine, or for a socket in the file system its path.
    address: str
    #: With the offset added; 0 = any free one.
    port: int = 0
    #: Nobody is served there without TLS.
    tls: bool = False
    #: Nobody from elsewhere is served there without showing who it is.
    asks: bool = False
    #: What must be set for both, as a command: "set ...".
    mend: str = ""
    #: It serves nobody, and only says where to go.
    only_points: bool = False
    #: A command that shows it at work, {} being where it is.
    example: str = ""

    @property
    def is_path(self) -> bool:
        """Whether it is in the file system."""
        return self.kind in ("unix", "datagram")

    @property
    def address_key(self) -> str:
        """The setting that says at which address."""
        return self.key if self.is_path else f"{self.key.partition('.')[0]}.address"

    def place(self, port: int) -> str:
        """Return where clients find it, once it is known which port it got."""
        if self.is_path:
            return f"unix:{self.address}"
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{_SCHEMES.get(self.kind, ('', ''))[self.tls]}{host}:{port}"


class Part(Protocol):
    """Somebody who listens, as far as the configuration goes."""

    @property
    def name(self) -> str:
        """The name of its section."""

    @property
    def config(self) -> type[Section]:
        """Its section, with the defaults."""

    @property
    def check(self) -> Callable[[Config], None]:
        """Refuses what is well formed and still cannot work."""

    @property
    def endpoints(self) -> Callable[[Config], Sequence[Endpoint]]:
        """Tells where it listens."""


def endpoints(config: Config, parts: Sequence[Part]) -> list[Endpoint]:
    """Return every place that a configuration listens at."""
    return [endpoint for part in parts for endpoint in part.endpoints(config)]
