"""The section [flight]: the Arrow Flight listener and its limits."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from penstock.config import TOKEN_AND_TLS, Config, Endpoint, Section, has_callers
from penstock.config.tree import MIB, Port, SomeSize
from penstock.errors import ConfigError


class FlightConfig(Section, frozen=True, kw_only=True):
    """The Arrow Flight listener."""

    enabled: bool = True
    address: str = "127.0.0.1"
    port: Port = 7071
    #: Exchanges that may be open over Flight at once, subscriptions and others; each takes two threads.
    exchanges_max: Annotated[int, Meta(ge=1)] = 500
    #: Streams that publish or stage at once; each takes a thread.
    puts_max: Annotated[int, Meta(ge=1)] = 200
    #: Streams that read at once; each takes a thread.
    gets_max: Annotated[int, Meta(ge=1)] = 500
    #: One record batch of a publisher; never more than memory.input_bytes, or memory.body_bytes, while it comes.
    max_batch_size: SomeSize = 64 * MIB


def check(config: Config) -> None:
    """Refuse what is well formed and still cannot work."""
    if config.pipeline.file not in ("", "off") and not config.of(FlightConfig).enabled:
        raise ConfigError("pipeline.file needs flight.enabled = true, a pipeline writes over Flight; or set it to off")


def endpoints(config: Config) -> list[Endpoint]:
    """Return where Flight clients connect."""
    flight = config.of(FlightConfig)
    if not flight.enabled:
        return []
    port, tls, asks = config.listen_port(flight.port), bool(config.tls_cert), has_callers(config)
    return [Endpoint("flight.port", "grpc", "Flight", flight.address, port, tls, asks, TOKEN_AND_TLS)]
