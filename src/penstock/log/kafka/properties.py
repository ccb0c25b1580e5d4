"""What librdkafka is told about the Kafka that holds shared logs, and what it says back.

Owns the settings that producer, consumer and admin have in common, and the table from its errors to ours.
"""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, KafkaException

from penstock.config.load import secret_in
from penstock.config.tree import SharedLogConfig
from penstock.log.kafka.store import AwayError, FencedError, GoneError, TooLargeError

#: A broker takes no request beyond 100 MiB unless it is told to, and a record comes in one.
RECORD_BYTES_MAX = 100_000_000

#: The last three are what a broker says to one whose transaction another has ended.
_FENCED = {
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    getattr(KafkaError, "PRODUCER_FENCED", 90),
    KafkaError.INVALID_TXN_STATE,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.UNKNOWN_PRODUCER_ID,
}
_GONE = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
_BEFORE = {KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET}
_TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}


def properties(config: SharedLogConfig, **more: Any) -> dict[str, Any]:
    """Return what every client is told; `a__b` in a name is `a.b`."""
    found: dict[str, Any] = {
        "client.id": "penstock",
        "bootstrap.servers": ",".join(config.brokers),
        "security.protocol": ("SASL_" if config.sasl else "") + ("SSL" if config.tls else "PLAINTEXT"),
        "allow.auto.create.topics": False,
        "reconnect.backoff.max.ms": 1_000,
        # What goes wrong is told to whoever waits for it.
        "log_level": 0,
    }
    secured = (
        ("ssl.ca.location", config.tls_ca),
        ("ssl.certificate.location", config.tls_cert),
        ("ssl.key.location", config.tls_key),
        ("sasl.mechanisms", config.sasl),
        ("sasl.username", config.user),
        ("sasl.password", secret_in(config.password_file, "password") if config.password_file else ""),
    )
    found |= {key: value for key, value in secured if value}
    return found | {key.replace("__", "."): value for key, value in more.items()}


def error_of(error: KafkaError | BaseException, what: str) -> OSError:
    """Return what an error of librdkafka's means here."""
    inner = error.args[0] if isinstance(error, KafkaException) else error
    if not isinstance(inner, KafkaError):
        return AwayError(f"{what}: {inner}")
    code, text = inner.code(), f"{what}: {inner.str()}"
    if code in _FENCED or inner.fatal():
        return FencedError(text)
    if code in _GONE or code in _BEFORE:
        return GoneError(text)
    if code in _TOO_LARGE:
        return TooLargeError(f"{text}. Raise max.message.bytes of that topic in Kafka to {RECORD_BYTES_MAX}")
    return AwayError(text)


def is_unknown(error: KafkaError | BaseException) -> bool:
    """Tell whether a broker says that there is no such topic or partition."""
    inner = error.args[0] if isinstance(error, KafkaException) else error
    return isinstance(inner, KafkaError) and inner.code() in _GONE


def may_pass(error: KafkaError | BaseException) -> bool:
    """Tell whether asking again may help."""
    inner = error.args[0] if isinstance(error, KafkaException) else error
    return isinstance(inner, KafkaError) and (inner.retriable() or inner.code() in _PASSING)


_PASSING = {
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
