"""What queues are called: names, addresses (URLs) and ARNs.

A queue's name is its topic's. Names of topics that SQS cannot spell are not listed and not found.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from penstock.dialects.sqs.config import SqsConfig
from penstock.dialects.sqs.faults import Fault, no_queue

FIFO = ".fifo"

#: Clients ask for the same addresses again and again; longer ones than these are not remembered.
REMEMBERED_MAX = 256

_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}").fullmatch


def is_name(name: str) -> bool:
    """Tell whether a queue may be called so: letters, digits, - and _, at most 80 with the end of a FIFO queue."""
    return len(name) <= 80 and _NAME(name.removesuffix(FIFO)) is not None


def check_name(name: str) -> None:
    """Refuse a name that no queue may have."""
    if not is_name(name):
        raise Fault(
            "InvalidParameterValue",
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length",
        )


class Names(NamedTuple):
    """Makes addresses and ARNs, and takes them apart."""

    region: str
    account_id: str
    public_url: str = ""

    @classmethod
    def of(cls, config: SqsConfig) -> Names:
        """Return what a configuration says."""
        return cls(config.region, config.account_id, config.public_url.rstrip("/"))

    def base(self, host: str, *, secure: bool = False) -> str:
        """Return how addresses begin for somebody who reached the node by `host`."""
        return self.public_url or f"{'https' if secure else 'http'}://{host}"

    def url(self, name: str, base: str) -> str:
        """Return the address of a queue."""
        return f"{base}/{self.account_id}/{name}"

    def arn(self, name: str, service: str = "sqs") -> str:
        """Return the ARN of a queue, or of a topic of SNS."""
        return f"arn:aws:{service}:{self.region}:{self.account_id}:{name}"

    def of_url(self, url: str) -> str:
        """Return the name in the address of a queue, whatever host it names: clients go by proxies."""
        return _remembered(url) if len(url) <= REMEMBERED_MAX else _of_url(url)

    def of_arn(self, arn: str, service: str = "sqs") -> str | None:
        """Return the name in an ARN of this account and service, None for any other."""
        head = self.arn("", service)
        name = arn.removeprefix(head)
        return name if arn.startswith(head) and is_name(name) else None


def _of_url(url: str) -> str:
    try:
        path = urlsplit(url).path if "://" in url else url
    except ValueError:  # there is half an IPv6 address in it
        path = ""
    name = unquote(path.rstrip("/").rpartition("/")[2])
    if not name:
        raise Fault("InvalidAddress", f"The address {url[:200]} is not valid for this endpoint.")
    if not is_name(name):
        raise no_queue()
    return name


_remembered = lru_cache(maxsize=4096)(_of_url)
