"""The connections of one service: some to each instance, which all its replicas share."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.config import host_and_port
from penstock.relays.m3msg.connection import Connection, Counts, Manner
from penstock.relays.m3msg.owners import taker


class Connections:
    """By the endpoint of the instance, for as long as a replica sends there."""

    def __init__(self, number: int, manner: Manner, counts: Counts, shards: int) -> None:
        #: How many there are to each instance.
        self.number = number
        self._manner = manner
        self._counts = counts
        self._shards = shards
        self._open: dict[str, list[Connection]] = {}

    def __iter__(self) -> Iterator[Connection]:
        """Return all of them."""
        return (each for some in self._open.values() for each in some)

    def to(self, endpoint: str) -> list[Connection]:
        """Return those to an instance; what is not used yet does not dial."""
        if endpoint not in self._open:
            address = host_and_port(endpoint)
            self._open[endpoint] = [
                Connection(address, taker(endpoint, number), self._manner, self._counts, self._shards)
                for number in range(self.number)
            ]
        return self._open[endpoint]

    def leave(self, endpoint: str, first_shard: int) -> None:
        """Send nothing more of a replica to an instance, and hang up if no other one is sent there."""
        for connection in self._open.get(endpoint, ()):
            connection.leave(first_shard)
            if not connection.is_used:
                connection.close()
        if endpoint in self._open and not any(each.is_used for each in self._open[endpoint]):
            del self._open[endpoint]
