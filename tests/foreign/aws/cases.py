"""What is asked of moto's server, of ElasticMQ and of a node with the same boto3, and what Amazon answers.

A case is a function of a client and a prefix for names that returns what it saw, without what differs by chance. Its
decorator says what Amazon answers; where moto, ElasticMQ or Penstock answer something else, that stands beside it, and
docs/dialects/queues.md says the same in words. ElasticMQ has no SNS, and is not asked about it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from tests.sqs.boto import AwsError, Boto

OLD = "AWS.SimpleQueueService."
ARN = "arn:aws:{}:us-east-1:{}:{}"

Ask = Callable[[Boto, str], Any]
SAME: Any = object()
UNASKED: Any = object()


class Case(NamedTuple):
    """One question, and the answers."""

    ask: Ask
    amazon: Any
    moto: Any
    here: Any
    elasticmq: Any

    @property
    def is_agreed(self) -> bool:
        """Whether everybody answers as Amazon does."""
        return all(each in (self.amazon, UNASKED) for each in (self.moto, self.here, self.elasticmq))


CASES: dict[str, Case] = {}


def case(amazon: Any, *, moto: Any = SAME, here: Any = SAME, elasticmq: Any = SAME) -> Callable[[Ask], Ask]:
    """Note a case."""

    def note(ask: Ask) -> Ask:
        others = [amazon if each is SAME else each for each in (moto, here, elasticmq)]
        CASES[ask.__name__] = Case(ask, amazon, *others)
        return ask

    return note


of_sns = partial(case, elasticmq=UNASKED)


def refused(boto: Boto, operation: str, service: str = "sqs", **params: Any) -> Any:
    """Return how a call is refused, or that it is not."""
    try:
        boto(operation, service, **params)
    except AwsError as error:
        return [error.code, error.status]
    return "taken"


def queue(boto: Boto, name: str, **attributes: str) -> str:
    return boto.queue(name, **attributes)


def arn(boto: Boto, url: str) -> str:
    return boto.attributes(url)["QueueArn"]


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [each["Body"] for each in messages]


def entries(*given: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"Id": str(at), "MessageBody": "x", **each} for at, each in enumerate(given)]


#: What ElasticMQ says, which sends no header for clients that go by the older names.
BARE = ["QueueDoesNotExist", 400]
VALUE = ["InvalidAttributeValue", 400]


# --- queues -------------------------------------------------------------------------------------------------------


@case([OLD + "NonExistentQueue", 400], elasticmq=BARE)
def a_queue_that_is_not_there(boto: Boto, name: str) -> Any:
    return refused(boto, "get_queue_url", QueueName=name)


@case([OLD + "NonExistentQueue", 400], elasticmq=BARE)
def sending_to_a_queue_that_is_not_there(boto: Boto, name: str) -> Any:
    url = queue(boto, name)
    return refused(boto, "send_message", QueueUrl=f"{url}-not", MessageBody="x")


@case(["QueueAlreadyExists", 400], elasticmq=["QueueNameExists", 400])
def a_queue_again_with_another_attribute(boto: Boto, name: str) -> Any:
    queue(boto, name, VisibilityTimeout="7")
    return refused(boto, "create_queue", QueueName=name, Attributes={"VisibilityTimeout": "8"})


@case(["same", "same"])
def a_queue_again_as_it_is(boto: Boto, name: str) -> Any:
    url = queue(boto, name, VisibilityTimeout="7")
    return [
        "same" if again == url else again for again in (queue(boto, name), queue(boto, name, VisibilityTimeout="7"))
    ]


@case(
    [["InvalidParameterValue", 400]] * 3,
    moto=[*[["InvalidParameterValue", 400]] * 2, "taken"],
    elasticmq=[["InvalidAttributeName", 400]] * 3,
)
def names_that_no_queue_may_have(boto: Boto, name: str) -> Any:
    return [refused(boto, "create_queue", QueueName=each) for each in ("no spaces", "a" * 81, f"{name}.fifo")]


@case(
    [["InvalidAttributeValue", 400]] * 5,
    moto=["taken", ["InvalidAttributeValue", 400], *["taken"] * 3],
    elasticmq=[*["taken"] * 3, VALUE, "taken"],
)
def attributes_out_of_bounds(boto: Boto, name: str) -> Any:
    wrong = {
        "DelaySeconds": "901",
        "MaximumMessageSize": "1023",
        "MessageRetentionPeriod": "59",
        "ReceiveMessageWaitTimeSeconds": "21",
        "VisibilityTimeout": "43201",
    }
    return [
        refused(boto, "create_queue", QueueName=f"{name}-{at}", Attributes={key: text})
        for at, (key, text) in enumerate(wrong.items())
    ]


@case(["InvalidAttributeName", 400], moto="taken", here="taken", elasticmq="taken")
def an_attribute_that_nobody_knows(boto: Boto, name: str) -> Any:
    return refused(boto, "create_queue", QueueName=name, Attributes={"Colour": "blue"})


@case(["InvalidAttributeName", 400], elasticmq="taken")
def asking_for_an_attribute_that_nobody_knows(boto: Boto, name: str) -> Any:
    return refused(boto, "get_queue_attributes", QueueUrl=queue(boto, name), AttributeNames=["Colour"])


NEW = {
    "DelaySeconds": "0",
    "MaximumMessageSize": "1048576",
    "MessageRetentionPeriod": "345600",
    "ReceiveMessageWaitTimeSeconds": "0",
    "SqsManagedSseEnabled": "true",
    "VisibilityTimeout": "30",
}


@case(
    NEW,
    here={**NEW, "SqsManagedSseEnabled": "false"},
    elasticmq={"DelaySeconds": "0", "ReceiveMessageWaitTimeSeconds": "0", "VisibilityTimeout": "30"},
)
def what_a_new_queue_starts_with(boto: Boto, name: str) -> Any:
    told = boto.attributes(queue(boto, name))
    own = ("Approximate", "Created", "LastModified", "QueueArn")
    return {key: text for key, text in sorted(told.items()) if not key.startswith(own)}


@case(
    [["taken", OLD + "NonExistentQueue"], [OLD + "QueueDeletedRecently", 400]],
    moto=[["taken", OLD + "NonExistentQueue"], "taken"],
    elasticmq=[["taken", "QueueDoesNotExist"], "taken"],
)
def a_deleted_queue_made_again_at_once(boto: Boto, name: str) -> Any:
    url = queue(boto, name)
    gone = [refused(boto, "delete_queue", QueueUrl=url), refused(boto, "receive_message", QueueUrl=url)[0]]
    return [gone, refused(boto, "create_queue", QueueName=name)]


@case(["taken", [OLD + "PurgeQueueInProgress", 403]], elasticmq=["taken", "taken"])
def purging_twice_within_a_minute(boto: Boto, name: str) -> Any:
    url = queue(boto, name)
    return [refused(boto, "purge_queue", QueueUrl=url) for _ in range(2)]


@case([{"a": "1", "b": "2"}, {"b": "2"}])
def tags(boto: Boto, name: str) -> Any:
    url = boto("create_queue", QueueName=name, tags={"a": "1"})["QueueUrl"]
    boto("tag_queue", QueueUrl=url, Tags={"b": "2"})
    both = boto("list_queue_tags", QueueUrl=url)["Tags"]
    boto("untag_queue", QueueUrl=url, TagKeys=["a", "never"])
    return [both, boto("list_queue_tags", QueueUrl=url)["Tags"]]


@case([["0", "1"], ["2", "3"], ["4"]], elasticmq=[["2", "3", "0", "1", "4"]])
def listing_in_pages(boto: Boto, name: str) -> Any:
    for at in range(5):
        queue(boto, f"{name}-{at}")
    pages: list[list[str]] = []
    more: dict[str, Any] = {}
    while True:
        page = boto("list_queues", QueueNamePrefix=f"{name}-", MaxResults=2, **more)
        pages.append([url[-1] for url in page["QueueUrls"]])
        if "NextToken" not in page:
            return pages
        more = {"NextToken": page["NextToken"]}


# --- messages -----------------------------------------------------------------------------------------------------


DIGESTS = ["c03410a5204b21cd8229ff754688d743", "1f40e380b43a0e470f42f9a660567bcd", "d6619b3d47b81d3fc72c0db005a70eda"]


@case(DIGESTS, moto=[*DIGESTS[:2], None], elasticmq=[*DIGESTS[:2], None])
def digests(boto: Boto, name: str) -> Any:
    sent = boto.send(
        queue(boto, name),
        "ü",
        MessageAttributes={
            "text": {"DataType": "String.mine", "StringValue": "ü"},
            "number": {"DataType": "Number", "StringValue": "-1.5"},
            "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        },
        MessageSystemAttributes={"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}},
    )
    return [sent.get(f"MD5OfMessage{part}") for part in ("Body", "Attributes", "SystemAttributes")]


@case(
    [["MissingParameter", 400], ["InvalidMessageContents", 400], ["InvalidParameterValue", 400]],
    moto=["taken", "taken", ["InvalidParameterValue", 400]],
    elasticmq=[VALUE, VALUE, "taken"],
)
def bodies_that_no_message_may_have(boto: Boto, name: str) -> Any:
    url = queue(boto, name, MaximumMessageSize="1024")
    return [refused(boto, "send_message", QueueUrl=url, MessageBody=body) for body in ("", "\x01", "x" * 1025)]


@case(
    [["InvalidParameterValue", 400]] * 6,
    moto=[*["taken"] * 4, ["InvalidParameterValue", 400], "taken"],
    elasticmq=["taken", "taken", VALUE, VALUE, ["InvalidParameterValue", 400], VALUE],
)
def attributes_that_no_message_may_have(boto: Boto, name: str) -> Any:
    url = queue(boto, name)
    text = {"DataType": "String", "StringValue": "v"}
    wrong: list[dict[str, Any]] = [
        {"AWS.x": text},
        {"a..b": text},
        {"n": {"DataType": "Number", "StringValue": "seven"}},
        {"e": {"DataType": "String", "StringValue": ""}},
        {"t": {"DataType": "Text", "StringValue": "v"}},
        {str(at): text for at in range(11)},
    ]
    return [refused(boto, "send_message", QueueUrl=url, MessageBody="x", MessageAttributes=each) for each in wrong]


@case(
    [
        [OLD + "EmptyBatchRequest", 400],
        [OLD + "BatchEntryIdsNotDistinct", 400],
        [OLD + "InvalidBatchEntryId", 400],
        [OLD + "TooManyEntriesInBatchRequest", 400],
        [OLD + "BatchRequestTooLong", 400],
    ],
    elasticmq=["taken", ["BatchEntryIdsNotDistinct", 400], "taken", ["TooManyEntriesInBatchRequest", 400], VALUE],
)
def batches_that_are_none(boto: Boto, name: str) -> Any:
    url = queue(boto, name)
    wrong = [
        [],
        entries({"Id": "a"}, {"Id": "a"}),
        entries({"Id": "a b"}),
        entries(*({} for _ in range(11))),
        entries(*({"MessageBody": "x" * 600_000} for _ in range(2))),
    ]
    return [refused(boto, "send_message_batch", QueueUrl=url, Entries=each) for each in wrong]


@case([["0"], [["1", "InvalidParameterValue", True]]])
def one_bad_entry_among_good_ones(boto: Boto, name: str) -> Any:
    told = boto("send_message_batch", QueueUrl=queue(boto, name), Entries=entries({}, {"DelaySeconds": 901}))
    failed = [[each["Id"], each["Code"], each["SenderFault"]] for each in told.get("Failed", [])]
    return [[each["Id"] for each in told.get("Successful", [])], failed]


@case([["InvalidParameterValue", 400]] * 5, elasticmq=[VALUE, VALUE, VALUE, "taken", ["InvalidParameterValue", 400]])
def numbers_out_of_bounds(boto: Boto, name: str) -> Any:
    url = queue(boto, name)
    wrong: list[dict[str, Any]] = [
        {"MaxNumberOfMessages": 11},
        {"MaxNumberOfMessages": 0},
        {"WaitTimeSeconds": 21},
        {"VisibilityTimeout": 43201},
    ]
    receives = [refused(boto, "receive_message", QueueUrl=url, **each) for each in wrong]
    return [*receives, refused(boto, "send_message", QueueUrl=url, MessageBody="x", DelaySeconds=901)]


@case({"n": ["1", "2"], "same id": True, "other handle": True, "left": "0"})
def a_message_made_visible_comes_again(boto: Boto, name: str) -> Any:
    url = queue(boto, name)
    boto.send(url, "x")
    (first,) = boto.receive(url)
    boto("change_message_visibility", QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0)
    (again,) = boto.receive(url)
    count = "ApproximateReceiveCount"
    boto("delete_message", QueueUrl=url, ReceiptHandle=again["ReceiptHandle"])
    return {
        "n": [each["Attributes"][count] for each in (first, again)],
        "same id": first["MessageId"] == again["MessageId"],
        "other handle": first["ReceiptHandle"] != again["ReceiptHandle"],
        "left": boto.attributes(url)["ApproximateNumberOfMessagesNotVisible"],
    }


@case(
    [[OLD + "MessageNotInflight", 400], ["InvalidParameterValue", 400]],
    moto=["taken", ["InvalidParameterValue", 400]],
    elasticmq=["taken", "taken"],
)
def changing_what_is_visible_and_by_too_much(boto: Boto, name: str) -> Any:
    url = queue(boto, name)
    boto.send(url, "x")
    (first,) = boto.receive(url)
    handle = {"QueueUrl": url, "ReceiptHandle": first["ReceiptHandle"]}
    boto("change_message_visibility", VisibilityTimeout=0, **handle)
    late = refused(boto, "change_message_visibility", VisibilityTimeout=30, **handle)
    return [late, refused(boto, "change_message_visibility", VisibilityTimeout=43201, **handle)]


@case(
    [["ReceiptHandleIsInvalid", 404], "taken", "taken"],
    moto=[["ReceiptHandleIsInvalid", 400], "taken", "taken"],
    elasticmq=[["ReceiptHandleIsInvalid", 400], "taken", ["ReceiptHandleIsInvalid", 400]],
)
def deleting_with_no_handle_and_twice_with_one(boto: Boto, name: str) -> Any:
    url = queue(boto, name)
    boto.send(url, "x")
    (first,) = boto.receive(url)
    handles = ["nonsense", first["ReceiptHandle"], first["ReceiptHandle"]]
    return [refused(boto, "delete_message", QueueUrl=url, ReceiptHandle=each) for each in handles]


@case(["InvalidParameterValue", 400], moto="taken")
def a_deduplication_id_on_a_standard_queue(boto: Boto, name: str) -> Any:
    return refused(boto, "send_message", QueueUrl=queue(boto, name), MessageBody="x", MessageDeduplicationId="d")


@case(["g"])
def a_group_on_a_standard_queue(boto: Boto, name: str) -> Any:
    url = queue(boto, name)
    if (told := refused(boto, "send_message", QueueUrl=url, MessageBody="x", MessageGroupId="g")) != "taken":
        return told
    return [each["Attributes"].get("MessageGroupId") for each in boto.receive(url)]


@case([["now"], "1"])
def a_delayed_message(boto: Boto, name: str) -> Any:
    url = queue(boto, name, DelaySeconds="600")
    boto.send(url, "later")
    boto.send(url, "now", DelaySeconds=0)
    return [bodies(boto.receive(url)), boto.attributes(url)["ApproximateNumberOfMessagesDelayed"]]


# --- FIFO queues --------------------------------------------------------------------------------------------------


@case([["MissingParameter", 400], ["InvalidParameterValue", 400], ["InvalidParameterValue", 400]])
def what_a_fifo_queue_asks_for(boto: Boto, name: str) -> Any:
    url = queue(boto, f"{name}.fifo", FifoQueue="true")
    wrong: list[dict[str, Any]] = [
        {"MessageDeduplicationId": "d"},
        {"MessageGroupId": "g"},
        {"MessageGroupId": "g", "MessageDeduplicationId": "d", "DelaySeconds": 5},
    ]
    return [refused(boto, "send_message", QueueUrl=url, MessageBody="x", **each) for each in wrong]


@case(
    {"ids": 1, "numbers": 1, "digits": 20, "left": ["x"]},
    moto={"ids": 2, "numbers": 1, "digits": 0, "left": ["x"]},
    elasticmq={"ids": 1, "numbers": 1, "digits": 1, "left": ["x"]},
)
def a_message_sent_twice_is_stored_once(boto: Boto, name: str) -> Any:
    url = queue(boto, f"{name}.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    sent = [boto.send(url, "x", MessageGroupId="g") for _ in range(2)]
    return {
        "ids": len({each["MessageId"] for each in sent}),
        "numbers": len({each.get("SequenceNumber") for each in sent}),
        "digits": len(sent[0].get("SequenceNumber", "")),
        "left": bodies(boto.receive(url)),
    }


@case([["a0", "a1"], [], ["b0"]])
def a_group_waits_for_what_is_out_and_others_do_not(boto: Boto, name: str) -> Any:
    url = queue(boto, f"{name}.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    for body in ("a0", "a1", "a2"):
        boto.send(url, body, MessageGroupId="a")
    first = bodies(boto.receive(url, 2))
    second = bodies(boto.receive(url))
    boto.send(url, "b0", MessageGroupId="b")
    return [first, second, bodies(boto.receive(url))]


@case(["InvalidParameterValue", 400], moto="taken", elasticmq="taken")
def deleting_from_a_fifo_queue_what_is_visible_again(boto: Boto, name: str) -> Any:
    url = queue(boto, f"{name}.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    boto.send(url, "x", MessageGroupId="g")
    (first,) = boto.receive(url)
    handle = {"QueueUrl": url, "ReceiptHandle": first["ReceiptHandle"]}
    boto("change_message_visibility", VisibilityTimeout=0, **handle)
    return refused(boto, "delete_message", **handle)


# --- dead letters -------------------------------------------------------------------------------------------------


def redrive(boto: Boto, name: str, most: Any = 1) -> tuple[str, str, dict[str, str]]:
    letters = queue(boto, f"{name}-dead")
    policy = json.dumps({"deadLetterTargetArn": arn(boto, letters), "maxReceiveCount": most})
    return queue(boto, name, RedrivePolicy=policy), letters, {"RedrivePolicy": policy}


@case([[], ["x"], True], moto=[[], ["x"], False])
def a_message_that_failed_too_often_is_a_dead_letter(boto: Boto, name: str) -> Any:
    url, letters, _ = redrive(boto, name)
    boto.send(url, "x")
    (first,) = boto.receive(url)
    boto("change_message_visibility", QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0)
    none = bodies(boto.receive(url))
    dead = boto.receive(letters, WaitTimeSeconds=5)
    return [none, bodies(dead), dead[0]["Attributes"].get("DeadLetterQueueSourceArn") == arn(boto, url)]


GONE = [OLD + "NonExistentQueue", 400]


@case(
    [["InvalidParameterValue", 400]] * 4,
    moto=[GONE, "taken", GONE, ["InvalidParameterValue", 400]],
    elasticmq=[BARE, VALUE, BARE, VALUE],
)
def what_cannot_be_a_redrive_policy(boto: Boto, name: str) -> Any:
    letters = arn(boto, queue(boto, f"{name}-dead"))
    wrong = [
        {"deadLetterTargetArn": f"{letters}-not", "maxReceiveCount": 1},
        {"deadLetterTargetArn": letters, "maxReceiveCount": 1001},
        {"deadLetterTargetArn": "no arn", "maxReceiveCount": 1},
        {"maxReceiveCount": 1},
    ]
    return [
        refused(boto, "create_queue", QueueName=f"{name}-{at}", Attributes={"RedrivePolicy": json.dumps(each)})
        for at, each in enumerate(wrong)
    ]


@case([True])
def sources_of_dead_letters(boto: Boto, name: str) -> Any:
    url, letters, _ = redrive(boto, name)
    return [each == url for each in boto("list_dead_letter_source_queues", QueueUrl=letters)["queueUrls"]]


@case(
    [["ResourceNotFoundException", 404], ["ResourceNotFoundException", 404]],
    moto=[["500", 500]] * 2,
    elasticmq=[BARE, BARE],
)
def moves_that_cannot_be(boto: Boto, name: str) -> Any:
    _, letters, _ = redrive(boto, name)
    dead = arn(boto, letters)
    wrong = [{"SourceArn": f"{dead}-not"}, {"SourceArn": dead, "DestinationArn": f"{dead}-not"}]
    return [refused(boto, "start_message_move_task", **each) for each in wrong]


# ElasticMQ answers after twenty seconds, that it failed.
@case(["InvalidParameterValue", 400], moto=["500", 500], elasticmq=UNASKED)
def a_move_from_a_queue_of_no_dead_letters(boto: Boto, name: str) -> Any:
    url, _, _ = redrive(boto, name)
    return refused(boto, "start_message_move_task", SourceArn=arn(boto, url))


@case([["InvalidParameterValue", 400]], moto=[["500", 500]], elasticmq=[["ResourceNotFoundException", 400]])
def ending_a_move_that_is_none(boto: Boto, name: str) -> Any:
    return [refused(boto, "cancel_message_move_task", TaskHandle="nonsense")]


# --- SNS ----------------------------------------------------------------------------------------------------------


def topic(boto: Boto, name: str, **attributes: str) -> str:
    return str(boto("create_topic", "sns", Name=name, Attributes=attributes)["TopicArn"])


def fed(boto: Boto, name: str, **attributes: str) -> tuple[str, str, str]:
    """Return a topic, the queue that it feeds, and the subscription."""
    url, of = queue(boto, name), topic(boto, name)
    given = {"TopicArn": of, "Protocol": "sqs", "Endpoint": arn(boto, url), "Attributes": attributes}
    return of, url, boto("subscribe", "sns", ReturnSubscriptionArn=True, **given)["SubscriptionArn"]


@of_sns(["same", ["NotFound", 404], ["InvalidParameter", 400], ["InvalidParameter", 400]])
def topics_that_are_there_and_that_are_not(boto: Boto, name: str) -> Any:
    made = topic(boto, name)
    return [
        "same" if topic(boto, name) == made else "other",
        refused(boto, "get_topic_attributes", "sns", TopicArn=f"{made}-not"),
        refused(boto, "create_topic", "sns", Name="no spaces"),
        refused(boto, "create_topic", "sns", Name=f"{name}.fifo"),
    ]


@of_sns(
    {
        "keys": [
            "Message", "MessageAttributes", "MessageId", "Signature", "SignatureVersion", "SigningCertURL", "Subject",
            "Timestamp", "TopicArn", "Type", "UnsubscribeURL",
        ],
        "type": "Notification",
        "attributes": {"size": {"Type": "String", "Value": "L"}},
        "message": "a shirt",
    }
)  # fmt: skip
def an_envelope(boto: Boto, name: str) -> Any:
    of, url, _ = fed(boto, name)
    size = {"size": {"DataType": "String", "StringValue": "L"}}
    boto("publish", "sns", TopicArn=of, Message="a shirt", Subject="sale", MessageAttributes=size)
    (copy,) = boto.receive(url, WaitTimeSeconds=20)
    told = json.loads(copy["Body"])
    return {
        "keys": sorted(told),
        "type": told["Type"],
        "attributes": told["MessageAttributes"],
        "message": told["Message"],
    }


@of_sns(["a shirt", {"size": {"DataType": "String", "StringValue": "L"}}])
def a_raw_copy(boto: Boto, name: str) -> Any:
    of, url, _ = fed(boto, name, RawMessageDelivery="true")
    boto(
        "publish",
        "sns",
        TopicArn=of,
        Message="a shirt",
        MessageAttributes={"size": {"DataType": "String", "StringValue": "L"}},
    )
    (copy,) = boto.receive(url, WaitTimeSeconds=20)
    return [copy["Body"], copy.get("MessageAttributes")]


@of_sns([["InvalidParameter", 400]] * 4, moto=["taken", ["InvalidParameter", 400], "taken", "taken"])
def messages_that_no_topic_takes(boto: Boto, name: str) -> Any:
    of = topic(boto, name)
    wrong: list[dict[str, Any]] = [
        {"Message": ""},
        {"Message": "x", "Subject": "x" * 101},
        {"Message": "no json", "MessageStructure": "json"},
        {"Message": '{"sqs": "x"}', "MessageStructure": "json"},
    ]
    return [refused(boto, "publish", "sns", TopicArn=of, **each) for each in wrong]


@of_sns("for queues")
def a_message_by_protocol(boto: Boto, name: str) -> Any:
    of, url, _ = fed(boto, name, RawMessageDelivery="true")
    parts = json.dumps({"default": "for all", "sqs": "for queues"})
    boto("publish", "sns", TopicArn=of, Message=parts, MessageStructure="json")
    (copy,) = boto.receive(url, WaitTimeSeconds=20)
    return copy["Body"]


@of_sns(
    [
        ["EmptyBatchRequest", 400],
        ["BatchEntryIdsNotDistinct", 400],
        ["InvalidBatchEntryId", 400],
        ["TooManyEntriesInBatchRequest", 400],
    ],
    moto=["taken", ["BatchEntryIdsNotDistinct", 400], "taken", ["TooManyEntriesInBatchRequest", 400]],
)
def batches_that_no_topic_takes(boto: Boto, name: str) -> Any:
    of = topic(boto, name)
    wrong = [[], ["a", "a"], ["a b"], [str(at) for at in range(11)]]
    return [
        refused(
            *(boto, "publish_batch", "sns"),
            TopicArn=of,
            PublishBatchRequestEntries=[{"Id": each, "Message": "x"} for each in ids],
        )
        for ids in wrong
    ]


@of_sns(
    [["InvalidParameter", 400], ["InvalidParameter", 400], ["NotFound", 404], "same"],
    moto=["taken", ["InvalidParameter", 400], ["NotFound", 404], "same"],
)
def subscriptions_that_cannot_be_and_one_that_is_there(boto: Boto, name: str) -> Any:
    of, url, made = fed(boto, name)
    given = {"TopicArn": of, "Protocol": "sqs", "Endpoint": arn(boto, url)}
    again = boto("subscribe", "sns", ReturnSubscriptionArn=True, **given)["SubscriptionArn"]
    return [
        refused(boto, "subscribe", "sns", **{**given, "Protocol": "pigeon"}),
        refused(boto, "subscribe", "sns", **{**given, "Endpoint": "no arn"}),
        refused(boto, "subscribe", "sns", **{**given, "TopicArn": f"{of}-not"}),
        "same" if again == made else "other",
    ]


@of_sns(
    [["InvalidParameter", 400]] * 3,
    moto=[["InvalidParameter", 400], "taken", ["", 0]],
    here=["taken", *[["InvalidParameter", 400]] * 2],
)
def what_no_subscription_can_be_set_to(boto: Boto, name: str) -> Any:
    _, _, made = fed(boto, name)
    wrong = {"Colour": "blue", "RawMessageDelivery": "maybe", "FilterPolicy": "no json"}
    return [
        refused(
            boto, "set_subscription_attributes", "sns", SubscriptionArn=made, AttributeName=key, AttributeValue=text
        )
        for key, text in wrong.items()
    ]


@of_sns(["taken", "taken", ["NotFound", 404]])
def what_is_deleted_twice(boto: Boto, name: str) -> Any:
    of, _, made = fed(boto, name)
    boto("unsubscribe", "sns", SubscriptionArn=made)
    again = refused(boto, "unsubscribe", "sns", SubscriptionArn=made)
    boto("delete_topic", "sns", TopicArn=of)
    gone = refused(boto, "delete_topic", "sns", TopicArn=of)
    return [again, gone, refused(boto, "publish", "sns", TopicArn=of, Message="x")]


FILTERS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "exact": ({"size": ["L"]}, ["L"]),
    "prefix": ({"size": [{"prefix": "X"}]}, ["XL", "XS"]),
    "suffix": ({"size": [{"suffix": "L"}]}, ["L", "XL"]),
    "anything-but": ({"size": [{"anything-but": ["L", "XL"]}]}, ["XS"]),
    "equals-ignore-case": ({"size": [{"equals-ignore-case": "xs"}]}, ["XS"]),
    "exists": ({"size": [{"exists": False}]}, ["none"]),
    "numeric": ({"price": [{"numeric": [">", 1, "<=", 3]}]}, ["L", "XL"]),
    "two keys": ({"size": [{"prefix": "X"}], "price": [2]}, ["XL"]),
    "or": ({"$or": [{"size": ["L"]}, {"price": [1]}]}, ["L", "XS"]),
}


@of_sns({name: sorted(taken) for name, (_, taken) in FILTERS.items()})
def filters(boto: Boto, name: str) -> Any:
    of, told = topic(boto, name), {}
    urls = {}
    for at, (kind, (policy, _)) in enumerate(FILTERS.items()):
        urls[kind] = queue(boto, f"{name}-{at}")
        attributes = {"RawMessageDelivery": "true", "FilterPolicy": json.dumps(policy)}
        given = {"TopicArn": of, "Protocol": "sqs", "Endpoint": arn(boto, urls[kind]), "Attributes": attributes}
        if (refusal := refused(boto, "subscribe", "sns", **given)) != "taken":
            told[kind] = refusal
    prices = {"L": "3", "XL": "2", "XS": "1"}
    batch = [
        {
            "Id": size,
            "Message": size,
            "MessageAttributes": {
                "size": {"DataType": "String", "StringValue": size},
                "price": {"DataType": "Number", "StringValue": price},
            },
        }
        for size, price in prices.items()
    ]
    boto("publish_batch", "sns", TopicArn=of, PublishBatchRequestEntries=[*batch, {"Id": "n", "Message": "none"}])
    for kind, url in urls.items():
        told.setdefault(kind, sorted(bodies(boto.receive(url))))
    return told


@of_sns(
    [["InvalidParameter", 400], ["InvalidParameter", 400], "20 digits", ["x"]],
    moto=[["MissingParameter", 400], ["InvalidParameter", 400], "0 digits", ["x"]],
)
def a_fifo_topic(boto: Boto, name: str) -> Any:
    of = topic(boto, f"{name}.fifo", FifoTopic="true")
    url = queue(boto, f"{name}.fifo", FifoQueue="true")
    boto(
        "subscribe",
        "sns",
        TopicArn=of,
        Protocol="sqs",
        Endpoint=arn(boto, url),
        Attributes={"RawMessageDelivery": "true"},
    )
    whole = {"TopicArn": of, "Message": "x", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    without = [
        {key: each for key, each in whole.items() if key != left}
        for left in ("MessageGroupId", "MessageDeduplicationId")
    ]
    told: list[Any] = [refused(boto, "publish", "sns", **each) for each in without]
    sent = [boto("publish", "sns", **whole) for _ in range(2)]
    told.append(f"{len(sent[0].get('SequenceNumber', ''))} digits")
    return [*told, bodies(boto.receive(url, WaitTimeSeconds=5))]


@of_sns(["InvalidParameter", 400])
def a_fifo_queue_at_a_standard_topic(boto: Boto, name: str) -> Any:
    url = queue(boto, f"{name}.fifo", FifoQueue="true")
    return refused(boto, "subscribe", "sns", TopicArn=topic(boto, name), Protocol="sqs", Endpoint=arn(boto, url))


@of_sns(["a", "b"])
def tags_of_a_topic(boto: Boto, name: str) -> Any:
    of = boto("create_topic", "sns", Name=name, Tags=[{"Key": "a", "Value": "1"}])["TopicArn"]
    boto("tag_resource", "sns", ResourceArn=of, Tags=[{"Key": "b", "Value": "2"}])
    return sorted(each["Key"] for each in boto("list_tags_for_resource", "sns", ResourceArn=of)["Tags"])


@of_sns(["InvalidParameter", 400], moto="taken")
def a_topic_again_with_other_tags(boto: Boto, name: str) -> Any:
    boto("create_topic", "sns", Name=name, Tags=[{"Key": "a", "Value": "1"}])
    return refused(boto, "create_topic", "sns", Name=name, Tags=[{"Key": "a", "Value": "2"}])
