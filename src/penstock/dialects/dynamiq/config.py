"""The section [dynamiq]: the listener of the queue service, its limits and habits."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from penstock.config import TOKEN_AND_TLS, Config, Endpoint, Section, has_callers, host_and_port
from penstock.config.tree import MIB, MILLISECOND_NS, Port, SomeSize
from penstock.errors import ConfigError
from penstock.settings import SECOND_NS


class DynamiqConfig(Section, frozen=True, kw_only=True):
    """The queue service."""

    enabled: bool = True
    address: str = "127.0.0.1"
    port: Port = 8081
    #: What status/servers calls this node; empty = this machine's name. In a cluster it is called by cluster.node.
    name: str = ""
    #: Changed settings of queues are in force after this at most, and partitions nobody looks into go.
    sync_interval_ns: Annotated[int, Meta(ge=10 * MILLISECOND_NS, extra={"kind": "duration"})] = 30 * SECOND_NS
    #: One message; never more than node.message_bytes.
    max_body_bytes: SomeSize = MIB
    #: Messages of one receive; who asks for more gets so many.
    max_receive_batch: Annotated[int, Meta(ge=1)] = 1000
    #: Ids or receipts of one request, or of one look at messages.
    max_delete_batch: Annotated[int, Meta(ge=1)] = 1000
    #: Messages of one publish under /v2, ...
    max_publish_batch: Annotated[int, Meta(ge=1)] = 1000
    #: ... and their request as a whole.
    max_batch_bytes: SomeSize = 8 * MIB
    #: A receive under /v2 waits so long at most.
    max_wait_ns: Annotated[int, Meta(ge=0, extra={"kind": "duration"})] = 60 * SECOND_NS
    #: A receive under /v1 that finds every partition locked is answered with 204, as on the bare path.
    strict_204: bool = False
    #: A setting of a queue that is of the wrong type is refused, and not passed over.
    strict_config: bool = False
    #: Where StatsD listens, "host:port"; empty = nothing is sent.
    statsd_address: str = ""
    #: What happened is sent this often.
    statsd_interval_ns: Annotated[int, Meta(ge=10 * MILLISECOND_NS, extra={"kind": "duration"})] = 2 * SECOND_NS
    #: Before every name, with its dot.
    statsd_prefix: str = "dynamiq."


def check(config: Config) -> None:
    """Refuse what is well formed and still cannot work."""
    dynamiq = config.of(DynamiqConfig)
    if dynamiq.statsd_address:
        try:
            host_and_port(dynamiq.statsd_address)
        except ConfigError as error:
            raise ConfigError(f"dynamiq.statsd_address: {error}") from None


def endpoints(config: Config) -> list[Endpoint]:
    """Return where clients of queues connect."""
    dynamiq = config.of(DynamiqConfig)
    if not dynamiq.enabled:
        return []
    port, tls, asks = config.listen_port(dynamiq.port), bool(config.tls_cert), has_callers(config)
    curl = "curl -X PUT {}/v1/queues/jobs"
    return [Endpoint("dynamiq.port", "http", "Dynamiq", dynamiq.address, port, tls, asks, TOKEN_AND_TLS, example=curl)]
