"""The section [sqs]: the listener of SQS and SNS, and what the node calls itself there."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from penstock.config import TOKEN_AND_TLS, Config, Endpoint, Section, has_callers
from penstock.config.tree import MIB, NamedList, Port, SomeSize
from penstock.errors import ConfigError


class SqsConfig(Section, frozen=True, kw_only=True):
    """The listener of SQS and SNS."""

    enabled: bool = True
    address: str = "127.0.0.1"
    port: Port = 9324
    #: How clients reach it, as queue URLs begin; empty = by the name that each request asks for.
    public_url: str = ""
    #: Both stand in ARNs, the second in queue URLs, too. Signatures may be for any region.
    region: str = "us-east-1"
    account_id: str = "000000000000"
    #: One request; never more than the memory for bodies. Amazon's largest is 1 MiB of messages, which takes up to four
    #: times as much as JSON or a form.
    max_body_size: SomeSize = 4 * MIB
    #: Hosts to which topics of SNS may send over HTTP: names (*.example.org too), addresses, networks, or "public" for
    #: any address of the internet. Empty = this machine, if whoever subscribes is on it, too.
    sns_http: NamedList = ()


def check(config: Config) -> None:
    """Refuse what is well formed and still cannot work."""
    from penstock.dialects.sqs.sns.endpoints import Allowed

    sqs = config.of(SqsConfig)
    if sqs.public_url and (not urlsplit(sqs.public_url).netloc or urlsplit(sqs.public_url).query):
        raise ConfigError(
            f'sqs.public_url = "{sqs.public_url}" is no address; write one like http://queues.example:9324'
        )
    if re.fullmatch("[0-9]{12}", sqs.account_id) is None:
        raise ConfigError(f'sqs.account_id = "{sqs.account_id}"; an account has 12 digits')
    if re.fullmatch("[a-z0-9-]{1,32}", sqs.region) is None:
        raise ConfigError(f'sqs.region = "{sqs.region}"; a region is like us-east-1')
    Allowed(sqs.sns_http)


def endpoints(config: Config) -> list[Endpoint]:
    """Return where SQS and SNS clients connect."""
    sqs = config.of(SqsConfig)
    if not sqs.enabled:
        return []
    port, tls, asks = config.listen_port(sqs.port), bool(config.tls_cert), has_callers(config)
    return [Endpoint("sqs.port", "http", "SQS and SNS", sqs.address, port, tls, asks, TOKEN_AND_TLS)]
