"""The dialects of a node: the one list of them."""

from penstock.dialects import dory, dynamiq, flight, m3msg, nsq, sqs, timeline

DIALECTS = (flight.DIALECT, nsq.DIALECT, sqs.DIALECT, dynamiq.DIALECT, m3msg.DIALECT, dory.DIALECT, timeline.DIALECT)
