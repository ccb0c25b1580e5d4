"""The relays of a node: subscriptions whose consumers are other systems. The one list of them."""

from penstock.relays import kafka, m3msg

RELAYS = (m3msg.RELAY, kafka.RELAY)
