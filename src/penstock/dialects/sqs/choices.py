"""What SQS lets people choose of a queue and the core has no setting for; the rest is the subscription's."""

from __future__ import annotations

import msgspec

from penstock.dialect import Choices
from penstock.settings import TopicSettings

#: The largest message, with its attributes.
MESSAGE_BYTES_MAX = 1 << 20


class SqsChoices(Choices, frozen=True, kw_only=True):
    """A queue's attributes, as far as they are Amazon's alone."""

    fifo: bool = False
    content_dedup: bool = False
    #: Amazon's words: queue | messageGroup, perQueue | perMessageGroupId.
    dedup_scope: str = "queue"
    throughput: str = "perQueue"
    delay_s: int = 0
    wait_s: int = 0
    message_bytes: int = MESSAGE_BYTES_MAX
    redrive_allow: str = ""
    modified_s: int = 0
    #: JSON objects: tags, and attributes that mean nothing here and are shown as they were set.
    tags: str = ""
    others: str = ""

    def put(self, settings: TopicSettings) -> TopicSettings:
        """Return settings of a topic with these choices among them."""
        return msgspec.structs.replace(settings, dialects={**settings.dialects, "sqs": msgspec.to_builtins(self)})
