"""Bytes that another implementation of protobuf made, each with what it says."""

from __future__ import annotations

from penstock.m3.topic import ConsumerService, Filters, RoutingFilter, ServiceId, Topic

POLICY = {"debug": 63, "production": 0, "staging": 1}
POLICY_BYTES = bytes.fromhex(
    "0a 09 0a 05 64 65 62 75 67 10 3f 0a 0e 0a 0a 70 72 6f 64 75 63 74 69 6f 6e 10 00"
    "0a 0b 0a 07 73 74 61 67 69 6e 67 10 01"
)
TOPIC = Topic(
    name="aggregated_metrics",
    shards=64,
    services=(
        ConsumerService(
            service_id=ServiceId("m3coordinator", "default_env", "embedded"),
            consumption="shared",
            ttl_ns=300 * 10**9,
            filters=Filters(routing=RoutingFilter(("production",), is_default=True)),
        ),
        ConsumerService(service_id=ServiceId("agg", "default_env", "embedded"), consumption="replicated"),
    ),
)
TOPIC_BYTES = bytes.fromhex(
    "0a 12 61 67 67 72 65 67 61 74 65 64 5f 6d 65 74 72 69 63 73 10 40 1a 43 0a 26 0a 0d 6d 33 63 6f 6f 72 64 69 6e"
    "61 74 6f 72 12 0b 64 65 66 61 75 6c 74 5f 65 6e 76 1a 08 65 6d 62 65 64 64 65 64 10 01 18 80 f0 92 cb dd 08 22"
    "10 22 0e 0a 0a 70 72 6f 64 75 63 74 69 6f 6e 10 01 1a 20 0a 1c 0a 03 61 67 67 12 0b 64 65 66 61 75 6c 74 5f 65"
    "6e 76 1a 08 65 6d 62 65 64 64 65 64 10 02"
)
