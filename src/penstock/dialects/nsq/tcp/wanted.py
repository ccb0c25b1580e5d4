"""What one NSQ client wants of the messages that are chosen for it, in NSQ's own measure of sampling."""

from __future__ import annotations

from penstock.delivery.consumer import Keep
from penstock.delivery.wanted import wanted as share
from penstock.filters.match import HeaderFilter
from penstock.filters.sample import percent_of


def wanted(headers: HeaderFilter | None, rate: int) -> Keep | None:
    """Return the test for a client with this filter and sample rate, None if it wants everything."""
    return share(headers, percent_of(rate))
