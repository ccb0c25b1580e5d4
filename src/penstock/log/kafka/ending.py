"""Ends what the earlier writer of a name left open, sooner than librdkafka hears of it.

Kafka ends the transaction of a writer that died once another asks for its name, which takes some milliseconds, and
answers "not yet" until then. librdkafka asks again after half a second, at every take-over; here it is asked every few
milliseconds, and librdkafka begins when nothing is open any more.
Owns no promise: librdkafka's own beginning is what shuts earlier writers out, whatever became of this.
"""

from __future__ import annotations

import logging
import secrets
import socket
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial

from penstock.columns import Buffer
from penstock.config.load import secret_in
from penstock.config.tree import SharedLogConfig
from penstock.errors import PenstockError
from penstock.kafka import coordinator, producer_id, sasl
from penstock.kafka.codes import CONCURRENT_TRANSACTIONS, COORDINATOR_LOAD_IN_PROGRESS, NONE
from penstock.kafka.exchange import Api, Asked, Exchange
from penstock.kafka.opening import Opening
from penstock.kafka.wire import Reader
from penstock.wire.tls import client_context

#: A broker that does not take a connection in this time is passed over.
CONNECT_S = 0.5
#: How long it is asked for the end: more than this is no matter of half a second.
END_S = 5.0
#: ... after this time at first, then after twice as long each time: all slots of a node that died are asked for
#: at once.
AGAIN_S = 0.005
AGAIN_S_MAX = 0.05
READ_BYTES = 64 << 10

_NOT_YET = (CONCURRENT_TRANSACTIONS, COORDINATOR_LOAD_IN_PROGRESS)

_log = logging.getLogger(__name__)


def end_earlier(config: SharedLogConfig, name: str, transaction_ms: int) -> None:
    """Return once nothing of an earlier writer of that name is open, or nobody here knows; blocking."""
    try:
        place = _coordinator(config, name)
        if place is not None:
            _end(config, place, name, transaction_ms)
    except (OSError, PenstockError) as error:
        _log.debug("what was left of %s is ended later: %s", name, error)


def _coordinator(config: SharedLogConfig, name: str) -> tuple[str, int] | None:
    """Return where the transactions of a name are looked after, as the first broker says that takes a connection."""
    for address in config.brokers:
        host, _, port = address.rpartition(":")
        try:
            line = _Line(config, host.strip("[]"), int(port))
        except OSError:
            continue
        with closing(line):
            version = line.versions[Api.FIND_COORDINATOR]
            found = coordinator.answer(line.ask(Api.FIND_COORDINATOR, coordinator.request(version, name)))
        return (found.host, found.port) if found.error == NONE else None
    return None


def _end(config: SharedLogConfig, place: tuple[str, int], name: str, transaction_ms: int) -> None:
    deadline = time.monotonic() + END_S
    with closing(_Line(config, *place)) as line:
        version = line.versions[Api.INIT_PRODUCER_ID]
        body = producer_id.request(version, name=name, transaction_ms=transaction_ms)
        again_s = AGAIN_S
        while producer_id.answer(line.ask(Api.INIT_PRODUCER_ID, body)).error in _NOT_YET:
            if time.monotonic() >= deadline:
                return
            time.sleep(again_s)
            again_s = min(2 * again_s, AGAIN_S_MAX)


class _Line:
    """A connection to a broker, which is asked one thing at a time."""

    def __init__(self, config: SharedLogConfig, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), CONNECT_S)
        try:
            # What is under way when this gives up could still shut out the one who comes then: it waits as long as it.
            self._socket.settimeout(config.patience_ns / 1e9)
            if config.tls:
                context = client_context(config.tls_ca, config.tls_cert, config.tls_key)
                self._socket = context.wrap_socket(self._socket, server_hostname=host)
            self._exchange = Exchange("penstock")
            self.versions = self._opened(config)
        except BaseException:
            self._socket.close()
            raise

    def _opened(self, config: SharedLogConfig) -> dict[Api, int]:
        login = None
        if config.sasl:
            password = secret_in(config.password_file, "password") if config.password_file else ""
            login = sasl.login(config.sasl, config.user, password, partial(secrets.token_hex, 16))
        opening = Opening(self._exchange, login, needed=(Api.FIND_COORDINATOR, Api.INIT_PRODUCER_ID))
        said = opening.begin()
        while opening.versions is None:
            said = opening.answered(*self._answered(said))
        return opening.versions

    def ask(self, api: Api, body: bytes) -> Reader:
        """Return the answer, open behind its head."""
        return self._answered(self._exchange.ask(api, self.versions[api], [body]))[1]

    def _answered(self, said: Sequence[Buffer]) -> tuple[Asked, Reader]:
        self._socket.sendall(b"".join(said))
        while True:
            data = self._socket.recv(READ_BYTES)
            answers = self._exchange.feed(data)
            if answers:
                return answers[0]
            if not data or self._exchange.fault:
                raise OSError(self._exchange.fault or "the broker hung up")

    def close(self) -> None:
        """Hang up."""
        self._socket.close()
