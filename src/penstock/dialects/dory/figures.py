"""Dory's counters: every name that its documentation speaks of or its monitoring scripts look up, and what it is here.

Scripts compare two readings: a name that comes, goes or falls is an error to them. So all names are always there, and
what cannot happen here stays 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.dialect import Sample
from penstock.discards import Discards

#: What was thrown away, by our reason.
DISCARDED = {
    "DiscardBadTopicMsgOnRoute": "bad_topic",
    "DiscardLongMsg": "too_long",
    "DiscardNoAvailablePartition": "no_available_partitions",
    "TopicHasNoAvailablePartitions": "no_available_partitions",
    "DiscardDueToRateLimit": "rate_limit",
    "DiscardOnTopicAutocreateFail": "topic_autocreate_failed",
    "DiscardOnFailedDeliveryAttemptLimit": "attempt_limit",
    "ConnectorGotDiscardAck": "error_ack",
}

#: Errors that brokers answer with, as Kafka numbers them.
ACK_ERRORS = {
    -1: "Unknown",
    1: "OffsetOutOfRange",
    2: "CorruptMessage",
    3: "UnknownTopicOrPartition",
    4: "InvalidFetchSize",
    5: "LeaderNotAvailable",
    6: "NotLeaderForPartition",
    7: "RequestTimedOut",
    8: "BrokerNotAvailable",
    9: "ReplicaNotAvailable",
    10: "MessageTooLarge",
    11: "StaleControllerEpoch",
    12: "OffsetMetadataTooLarge",
    13: "NetworkException",
    14: "GroupLoadInProgress",
    15: "GroupCoordinatorNotAvailable",
    16: "NotCoordinatorForGroup",
    17: "InvalidTopicException",
    18: "RecordListTooLarge",
    19: "NotEnoughReplicas",
    20: "NotEnoughReplicasAfterAppend",
    21: "InvalidRequiredAcks",
    29: "TopicAuthorizationFailed",
    30: "GroupAuthorizationFailed",
    31: "ClusterAuthorizationFailed",
    32: "InvalidTimestamp",
}

#: Answers of brokers that cannot be read are one thing here, and many there.
BROKEN_METADATA = (
    "MetadataHasEmptyBrokerList",
    "MetadataHasEmptyTopicList",
    "MetadataResponseBadBrokerHostLen",
    "MetadataResponseBadBrokerPort",
    "MetadataResponseBadTopicNameLen",
    "MetadataResponseInvalidLeaderNodeId",
    "MetadataResponseNegativeBrokerCount",
    "MetadataResponseNegativeBrokerNodeId",
    "MetadataResponseNegativeCaughtUpReplicaNodeId",
    "MetadataResponseNegativePartitionCaughtUpReplicaCount",
    "MetadataResponseNegativePartitionCount",
    "MetadataResponseNegativePartitionId",
    "MetadataResponseNegativePartitionReplicaCount",
    "MetadataResponseNegativeReplicaNodeId",
    "MetadataResponseNegativeTopicCount",
    "MetadataSanityCheckFail",
    "ShortMetadataResponse",
    "BadMetadataResponseSize",
    "MetadataResponseReadLostTcpConnection",
    "MetadataResponseReadTimeout",
    "SendMetadataRequestFail",
    "SendMetadataRequestLostTcpConnection",
)
BROKEN_PRODUCE = (
    "BadKafkaResponseSize",
    "BadProduceResponseSize",
    "CorrelationIdMismatch",
    "ProduceResponseBadPartitionCount",
    "ProduceResponseBadTopicCount",
    "ProduceResponseBadTopicNameLength",
    "ProduceResponseShortPartitionList",
    "ProduceResponseShortTopicList",
    "ProduceResponseUnexpectedPartition",
    "ProduceResponseUnexpectedTopic",
)
#: Faults that Dory looks for in itself; ours are counted as bugs of the node, under the first.
BUGS = (
    "BugDispatchBatchOutOfRangeIndex",
    "BugAllTopicsEmpty",
    "BugDispatchMsgOutOfRangeIndex",
    "BugGetAckWaitQueueOutOfRangeIndex",
    "BugMsgListMultipleTopics",
    "BugMsgSetEmpty",
    "BugMultiPartitionGroupEmpty",
    "BugProduceRequestEmpty",
)
#: What a relay counts.
RELAYED = (
    "AckOk",
    *(f"AckError{name}" for name in ACK_ERRORS.values()),
    "AckErrorUndocumented",
    "BadMetadataResponse",
    "BadProduceResponse",
    "ConnectFailOnTryGetMetadata",
    "ConnectorConnectFail",
    "ConnectorSocketBrokerClose",
    "ConnectorSocketError",
    "ConnectorSocketTimeout",
    "ConnectorTruncateLongTimeout",
    "GetMetadataFail",
    "GetMetadataSuccess",
    "MetadataChangedOnRefresh",
    "MetadataUnchangedOnRefresh",
    "MsgSetCompressionError",
    "MsgSetCompressionNo",
    "MsgSetCompressionYes",
    "PauseStarted",
    "SendProduceRequestOk",
)
#: By the relay's own names.
SAMPLES = {
    "acked_total": "AckOk",
    "requests_total": "SendProduceRequestOk",
    "pauses_total": "PauseStarted",
    "metadata_fetches_total": "GetMetadataSuccess",
    "metadata_failures_total": "GetMetadataFail",
    "metadata_changed_total": "MetadataChangedOnRefresh",
    "metadata_unchanged_total": "MetadataUnchangedOnRefresh",
    "compressed_sets_total": "MsgSetCompressionYes",
    "plain_sets_total": "MsgSetCompressionNo",
    "compression_errors_total": "MsgSetCompressionError",
}
#: Connections that failed, by the relay's kinds.
FAILURES = {
    "connect": "ConnectorConnectFail",
    "closed": "ConnectorSocketBrokerClose",
    "silent": "ConnectorSocketTimeout",
    "answer": "BadProduceResponse",
    "error": "ConnectorSocketError",
}
OWN = (
    "MsgDestroy",
    "MsgUnprocessedDestroy",
    "NoDiscardQuery",
    "PossibleDuplicateMsg",
    "StreamClientWorkerStdException",
    "StreamClientWorkerUnknownException",
    "MongooseHttpRequest",
    "MongooseGetCountersRequest",
    "MongooseGetDiscardsRequest",
    "MongooseGetMetadataFetchTimeRequest",
    "MongooseGetMsgStatsRequest",
    "MongooseStdException",
    "MongooseUnknownException",
    "MongooseUrlDecodeError",
)


class Figure(NamedTuple):
    """One counter."""

    #: Where Dory would have a file and a line: whose it is, and its place among those.
    location: str
    name: str
    value: int


class Figures:
    """All of them, as they are now."""

    def __init__(self) -> None:
        self._destroyed = 0

    def read(
        self,
        inputs: Mapping[str, int],
        discards: Discards,
        relayed: Iterable[Sample],
        held: int,
        bugs: int,
        own: Mapping[str, int],
    ) -> list[Figure]:
        """Return every counter.

        `inputs` are those of the inputs by Dory's names, `held` is how many messages a relay has not finished.
        """
        created = inputs.get("MsgCreate", 0)
        # What is held may have come before the start, or from elsewhere; scripts know of neither.
        self._destroyed = min(max(self._destroyed, created - held), created)
        found = dict.fromkeys(RELAYED, 0)
        for name, count in _named(relayed):
            found[name] += count
        return [
            *_located("inputs", inputs),
            *_located("discards", {name: discards.total(reason) for name, reason in DISCARDED.items()}),
            *_located("kafka_relay", found),
            *_located("kafka_relay.answers", dict.fromkeys((*BROKEN_METADATA, *BROKEN_PRODUCE), 0)),
            *_located("bugs", dict.fromkeys(BUGS, 0) | {BUGS[0]: bugs}),
            *_located(
                "status",
                dict.fromkeys(OWN, 0)
                | {"MsgDestroy": self._destroyed, "PossibleDuplicateMsg": sum(discards.duplicates.values())}
                | dict(own),
            ),
        ]


def _named(samples: Iterable[Sample]) -> Iterable[tuple[str, int]]:
    """Return what a relay's figures are to Dory."""
    for sample in samples:
        name = SAMPLES.get(sample.name, "")
        if sample.name == "errors_total":
            code = sample.labels["code"]
            name = f"AckError{ACK_ERRORS.get(int(code), 'Undocumented')}"
        elif sample.name == "connection_failures_total":
            name = FAILURES.get(sample.labels.get("kind", ""), FAILURES["error"])
        if name:
            yield name, int(sample.value)


def _located(where: str, counts: Mapping[str, int]) -> list[Figure]:
    return [Figure(f"{where}, {place}", name, count) for place, (name, count) in enumerate(counts.items(), 1)]
