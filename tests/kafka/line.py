"""A plain connection to a broker, for tests: our bytes over a blocking socket."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from penstock.columns import Buffer
from penstock.kafka import metadata, produce, producer_id, versions
from penstock.kafka.exchange import SPOKEN, Api, Asked, Exchange
from penstock.kafka.wire import Reader
from tests.kafka.brokers import PATIENCE_S, wait_for

COORDINATOR_LOAD_IN_PROGRESS = 14


class Line:
    """Asks one thing at a time."""

    def __init__(self, port: int, ca: Path | None = None) -> None:
        self.exchange = Exchange("tests")
        self._socket: socket.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        if ca is not None:
            context = ssl.create_default_context(cafile=str(ca))
            try:
                self._socket = context.wrap_socket(self._socket, server_hostname="localhost")
            except BaseException:
                self._socket.close()
                raise
        #: The newest of what both speak; a test may take an older one.
        self.versions: dict[Api, int] = {Api.API_VERSIONS: versions.FIRST}

    def __enter__(self) -> Line:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._socket.close()

    def ask(self, api: Api, body: Sequence[Buffer]) -> Reader:
        """Return the answer."""
        self.write(self.exchange.ask(api, self.versions[api], body))
        return self.read()[0][1]

    def write(self, pieces: Sequence[Buffer]) -> None:
        self._socket.sendall(b"".join(map(bytes, pieces)))

    def read(self) -> list[tuple[Asked, Reader]]:
        """Return the answers that come next."""
        while True:
            data = self._socket.recv(65536)
            assert data, "the broker hung up"
            found = self.exchange.feed(data)
            assert not self.exchange.fault, self.exchange.fault
            if found:
                return found

    def negotiate(self, **most: int) -> None:
        """Learn what the broker speaks; `most` says the newest version that a test wants of something."""
        found = versions.answer(self.ask(Api.API_VERSIONS, [versions.request(3)]), 3)
        assert found is not None
        chosen = versions.chosen(found, SPOKEN)
        self.versions = {api: most.get(api.name, version) for api, version in chosen.items()}

    def metadata(self, topics: list[str] | None, autocreate: bool = False) -> metadata.Metadata:
        version = self.versions[Api.METADATA]
        return metadata.answer(
            self.ask(Api.METADATA, [metadata.request(version, topics, autocreate=autocreate)]), version
        )

    def produce(self, *parts: produce.Part, acks: int = produce.ACKS_ALL) -> produce.Produced:
        version = self.versions[Api.PRODUCE]
        return produce.answer(self.ask(Api.PRODUCE, produce.request(version, parts, acks, 30_000)), version)

    def producer(self) -> producer_id.Producer:
        """Become somebody; a broker that has just started wants to be asked again."""
        found: list[producer_id.Given] = []

        def given() -> bool:
            body = [producer_id.request(self.versions[Api.INIT_PRODUCER_ID])]
            found.append(producer_id.answer(self.ask(Api.INIT_PRODUCER_ID, body)))
            return found[-1].error != COORDINATOR_LOAD_IN_PROGRESS

        wait_for(given, "a producer's id")
        assert found[-1].error == 0
        return found[-1].producer
