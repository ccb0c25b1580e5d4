"""Kafka out: messages of topics go to Kafka's topics of the same names, as Dory would send them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.config import Config
from penstock.dialect import Bound, Dialect, Running
from penstock.relays.kafka.config import KafkaRelayConfig, check

if TYPE_CHECKING:
    from penstock.node.node import Node


async def start(node: Node, config: Config, bound: Mapping[str, Bound]) -> Running:
    """Begin to send."""
    import os
    import secrets
    from functools import partial
    from random import Random

    from penstock.kafka.sasl import Login, login
    from penstock.relays.kafka.conversation import Manner
    from penstock.relays.kafka.learning import Learning, beside
    from penstock.relays.kafka.outside import KafkaOutside
    from penstock.relays.kafka.relay import Relay
    from penstock.wire.dial import LoopDialler
    from penstock.wire.tls import client_context

    relay, dialler, chance = config.of(KafkaRelayConfig), LoopDialler(), Random(os.urandom(32))

    def logged_in() -> Login:
        return login(relay.sasl.upper(), relay.user, relay.secret(), partial(secrets.token_hex, 16))

    manner = Manner(
        node.clock,
        dialler,
        chance,
        client_id=relay.client_id,
        timeout_ns=relay.socket_timeout_ns,
        tls=client_context(relay.tls_ca, relay.tls_cert, relay.tls_key) if relay.tls else None,
        login=logged_in if relay.sasl != "none" else None,
    )
    learning = Learning(node.clock, beside)
    return Relay(node, relay, KafkaOutside(relay, manner, learning), chance, dialler.close, learning)


RELAY = Dialect(
    "kafka_relay",
    KafkaRelayConfig,
    check,
    lambda config: (),
    start,
    is_on=lambda config: bool(config.of(KafkaRelayConfig).topics),
    is_way_out=True,
)
