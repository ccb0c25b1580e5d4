"""The feeds of a node: the ways in from other systems, which the node goes and fetches from. The one list of them."""

from penstock.feeds import kafka

FEEDS = (kafka.FEED,)
