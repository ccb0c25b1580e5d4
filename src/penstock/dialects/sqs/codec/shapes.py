"""What is asked and answered, by Amazon's names: one type for both encodings.

What may be left out has a default; what a client leaves out and may not is told by the decoder.
"""

from __future__ import annotations

import msgspec
from msgspec import field


class Shape(msgspec.Struct, kw_only=True, rename="pascal", omit_defaults=True, gc=False):
    """Named as on the wire, without what nobody set. Nothing in one leads back to it: no work for the collector."""


class Value(Shape, kw_only=True):
    """The value of a message attribute."""

    data_type: str = ""
    string_value: str | None = None
    binary_value: bytes | None = None


Values = dict[str, Value]


# --- asked --------------------------------------------------------------------------------------------------------


class ByUrl(Shape, kw_only=True):
    """Something about one queue."""

    queue_url: str


class CreateQueue(Shape, kw_only=True):
    """Make a queue."""

    queue_name: str
    attributes: dict[str, str] = {}
    tags: dict[str, str] = field(name="tags", default_factory=dict)


class GetQueueUrl(Shape, kw_only=True):
    """Find a queue by its name."""

    queue_name: str
    queue_owner_aws_account_id: str = field(name="QueueOwnerAWSAccountId", default="")


class ListQueues(Shape, kw_only=True):
    """List queues."""

    queue_name_prefix: str = ""
    next_token: str = ""
    max_results: int | None = None


class ListSources(ByUrl, kw_only=True):
    """List the queues whose dead letters come to one."""

    next_token: str = ""
    max_results: int | None = None


class GetQueueAttributes(ByUrl, kw_only=True):
    """Tell attributes."""

    attribute_names: list[str] = []


class SetQueueAttributes(ByUrl, kw_only=True):
    """Change attributes."""

    attributes: dict[str, str]


class Sending(Shape, kw_only=True):
    """A message to send."""

    message_body: str
    delay_seconds: int | None = None
    message_attributes: Values = {}
    message_system_attributes: Values = {}
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessage(Sending, kw_only=True):
    """Send one."""

    queue_url: str


class SendEntry(Sending, kw_only=True):
    """One of several to send."""

    id: str


class SendMessageBatch(ByUrl, kw_only=True):
    """Send several."""

    entries: list[SendEntry] = []


class ReceiveMessage(ByUrl, kw_only=True):
    """Receive some."""

    attribute_names: list[str] = []
    message_system_attribute_names: list[str] = []
    message_attribute_names: list[str] = []
    max_number_of_messages: int | None = None
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    receive_request_attempt_id: str = ""


class DeleteMessage(ByUrl, kw_only=True):
    """Delete one."""

    receipt_handle: str


class DeleteEntry(Shape, kw_only=True):
    """One of several to delete."""

    id: str
    receipt_handle: str


class DeleteMessageBatch(ByUrl, kw_only=True):
    """Delete several."""

    entries: list[DeleteEntry] = []


class ChangeMessageVisibility(ByUrl, kw_only=True):
    """Let one be invisible for longer, or not."""

    receipt_handle: str
    visibility_timeout: int


class ChangeEntry(Shape, kw_only=True):
    """One of several."""

    id: str
    receipt_handle: str
    visibility_timeout: int | None = None


class ChangeMessageVisibilityBatch(ByUrl, kw_only=True):
    """Change several."""

    entries: list[ChangeEntry] = []


class AddPermission(ByUrl, kw_only=True):
    """Add a statement to the policy."""

    label: str
    aws_account_ids: list[str] = field(name="AWSAccountIds", default_factory=list)
    actions: list[str] = []


class RemovePermission(ByUrl, kw_only=True):
    """Take one away."""

    label: str


class TagQueue(ByUrl, kw_only=True):
    """Set tags."""

    tags: dict[str, str]


class UntagQueue(ByUrl, kw_only=True):
    """Take tags away."""

    tag_keys: list[str]


class StartMessageMoveTask(Shape, kw_only=True):
    """Move dead letters."""

    source_arn: str
    destination_arn: str = ""
    max_number_of_messages_per_second: int | None = None


class CancelMessageMoveTask(Shape, kw_only=True):
    """End that."""

    task_handle: str


class ListMessageMoveTasks(Shape, kw_only=True):
    """Tell how it goes."""

    source_arn: str
    max_results: int | None = None


# --- answered -----------------------------------------------------------------------------------------------------


class Nothing(Shape, kw_only=True):
    """It is done."""


class QueueUrl(Shape, kw_only=True):
    """Where a queue is."""

    queue_url: str


class QueueUrls(Shape, kw_only=True):
    """Where queues are."""

    queue_urls: list[str] = []
    next_token: str | None = None


class SourceUrls(Shape, kw_only=True):
    """Where queues are that send dead letters."""

    queue_urls: list[str] = field(name="queueUrls", default_factory=list)
    next_token: str | None = None


class Attributes(Shape, kw_only=True):
    """Attributes of a queue, a topic or a subscription."""

    attributes: dict[str, str] = {}


class Tags(Shape, kw_only=True):
    """Tags of a queue."""

    tags: dict[str, str] = {}


class Sent(Shape, kw_only=True):
    """A message was stored."""

    message_id: str
    md5_of_message_body: str = field(name="MD5OfMessageBody")
    md5_of_message_attributes: str | None = field(name="MD5OfMessageAttributes", default=None)
    md5_of_message_system_attributes: str | None = field(name="MD5OfMessageSystemAttributes", default=None)
    sequence_number: str | None = None


class SentEntry(Sent, kw_only=True):
    """One of several was stored."""

    id: str


class Failed(Shape, kw_only=True):
    """One of several was refused."""

    id: str
    sender_fault: bool
    code: str
    message: str


class Done(Shape, kw_only=True):
    """One of several is done."""

    id: str


class SentBatch(Shape, kw_only=True):
    """What became of each."""

    successful: list[SentEntry] = []
    failed: list[Failed] = []


class DoneBatch(Shape, kw_only=True):
    """What became of each."""

    successful: list[Done] = []
    failed: list[Failed] = []


class Message(Shape, kw_only=True):
    """A message that was received."""

    message_id: str
    receipt_handle: str
    md5_of_body: str = field(name="MD5OfBody")
    body: str
    attributes: dict[str, str] = {}
    md5_of_message_attributes: str | None = field(name="MD5OfMessageAttributes", default=None)
    message_attributes: Values = {}


class Received(Shape, kw_only=True):
    """Messages, or none."""

    messages: list[Message] = []


class TaskHandle(Shape, kw_only=True):
    """A move of dead letters began."""

    task_handle: str


class Cancelled(Shape, kw_only=True):
    """It ends."""

    approximate_number_of_messages_moved: int


class MoveTask(Shape, kw_only=True):
    """A move of dead letters."""

    task_handle: str | None = None
    status: str
    source_arn: str
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None
    #: Shown also where it is 0.
    approximate_number_of_messages_moved: int
    approximate_number_of_messages_to_move: int | None = None
    failure_reason: str | None = None
    started_timestamp: int


class MoveTasks(Shape, kw_only=True):
    """Moves of dead letters, the latest first."""

    results: list[MoveTask] = []
