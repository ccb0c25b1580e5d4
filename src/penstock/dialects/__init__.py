"""The dialects of a node: the one list of them."""

from penstock.dialects import dynamiq, flight, nsq, sqs

DIALECTS = (flight.DIALECT, nsq.DIALECT, sqs.DIALECT, dynamiq.DIALECT)
