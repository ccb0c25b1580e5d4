"""The dialects of a node: the one list of them."""

from penstock.dialects import flight, nsq

DIALECTS = (flight.DIALECT, nsq.DIALECT)
