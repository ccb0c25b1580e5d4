"""What the brokers of a configuration say of their limits, where they can be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.relays.kafka.config import KafkaRelayConfig

#: How long brokers that do not answer are waited for.
PATIENCE_S = 2.0

LIMIT = "message.max.bytes"


def complaints(relay: KafkaRelayConfig) -> list[str]:
    """Return what is wrong between the relay and its brokers; nothing where they cannot be asked."""
    if not relay.topics:
        return []
    return [
        f"broker {broker} takes messages of {most} bytes ({LIMIT}), and kafka_relay.message_max_bytes is "
        f"{relay.message_max_bytes}: what lies between is refused there and thrown away. Lower this or raise that"
        for broker, most in _limits(relay).items()
        if most < relay.message_max_bytes
    ]


def _limits(relay: KafkaRelayConfig) -> dict[str, int]:
    """Return the limit of each broker that tells it."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

    admin = AdminClient(_options(relay), logger=_silent())
    try:
        brokers = admin.list_topics(timeout=PATIENCE_S).brokers
        asked = [ConfigResource(ConfigResource.Type.BROKER, str(number)) for number in brokers]
        found = {}
        for resource, answer in admin.describe_configs(asked, request_timeout=PATIENCE_S).items():
            limit = answer.result(PATIENCE_S).get(LIMIT)
            broker = brokers[int(resource.name)]
            if limit is not None and limit.value:
                found[f"{broker.host}:{broker.port}"] = int(limit.value)
        return found
    except (KafkaException, TimeoutError):
        return {}


def _options(relay: KafkaRelayConfig) -> dict[str, Any]:
    found: dict[str, Any] = {
        "bootstrap.servers": ",".join(relay.brokers),
        "socket.timeout.ms": int(PATIENCE_S * 1000),
        "log_level": 0,
    }
    found["security.protocol"] = "SSL" if relay.tls else "PLAINTEXT"
    if relay.sasl != "none":
        protocol = found["security.protocol"]
        found |= {
            "security.protocol": f"SASL_{protocol}",
            "sasl.mechanism": relay.sasl.upper(),
            "sasl.username": relay.user,
            "sasl.password": relay.secret(),
        }
    if relay.tls_ca:
        found["ssl.ca.location"] = relay.tls_ca
    if relay.tls_cert:
        found |= {"ssl.certificate.location": relay.tls_cert, "ssl.key.location": relay.tls_key}
    return found


def _silent() -> Any:
    """Return a log that nobody reads: that nobody answers is no news here."""
    import logging

    log = logging.getLogger("penstock.brokers")
    log.disabled = True
    return log
