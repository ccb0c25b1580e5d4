"""A node that is killed: what was deleted never comes back, what was not always does, and receipts hold."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tests.proofs.process import Process
from tests.sqs.boto import AwsError, Boto

ROUNDS = 20


def test_a_receipt_holds_after_kill_9_and_what_was_deleted_stays_deleted(tmp_path: Path) -> None:
    node = Process(tmp_path / "data")
    node.start()
    try:
        with Boto(node.ports["sqs.port"]) as boto:
            url = boto.queue("orders")
            entries = [{"Id": str(i), "MessageBody": str(i)} for i in range(10)]
            boto("send_message_batch", QueueUrl=url, Entries=entries)
            received = boto.receive(url, VisibilityTimeout=600)
            assert len(received) == 10
            for message in received[::2]:
                boto("delete_message", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        node.kill()
        node.start()
        with Boto(node.ports["sqs.port"]) as boto:
            assert boto.receive(url) == []
            assert boto.attributes(url)["ApproximateNumberOfMessagesNotVisible"] == "5"
            for message in received[1::2]:
                boto(
                    "change_message_visibility",
                    QueueUrl=url,
                    ReceiptHandle=message["ReceiptHandle"],
                    VisibilityTimeout=0,
                )
            again = boto.receive(url)
            assert [each["Body"] for each in again] == [str(i) for i in range(1, 10, 2)]
            assert [each["Attributes"]["ApproximateReceiveCount"] for each in again] == ["2"] * 5
    finally:
        node.stop()


def test_under_load_a_deleted_message_never_comes_back_and_an_undeleted_one_always_does(tmp_path: Path) -> None:
    node = Process(tmp_path / "data")
    node.start()
    sent: set[str] = set()
    deleted: set[str] = set()
    try:
        with Boto(node.ports["sqs.port"]) as boto:
            url = boto.queue("orders", VisibilityTimeout="1")
            under_way: list[tuple[list[str], Future[dict[str, Any]]]] = []
            for number in range(ROUNDS):
                bodies = [f"{number}-{i}" for i in range(10)]
                entries = [{"Id": body, "MessageBody": body} for body in bodies]
                under_way.append((bodies, boto.begin("send_message_batch", QueueUrl=url, Entries=entries)))
                got = boto.receive(url)
                handles = [{"Id": each["Body"], "ReceiptHandle": each["ReceiptHandle"]} for each in got]
                if handles:
                    done = boto("delete_message_batch", QueueUrl=url, Entries=handles)
                    deleted |= {each["Id"] for each in done["Successful"]}
            last = [
                (bodies, boto.begin("send_message_batch", QueueUrl=url, Entries=entries))
                for number in range(10)
                for bodies in [[f"last-{number}-{i}" for i in range(10)]]
                for entries in [[{"Id": body, "MessageBody": body} for body in bodies]]
            ]
            node.kill()
            for bodies, answer in (*under_way, *last):
                try:
                    answer.result(60)
                except AwsError:
                    continue  # nobody was told that these are stored
                sent.update(bodies)
        node.start()
        with Boto(node.ports["sqs.port"]) as boto:
            seen: set[str] = set()
            while not sent - deleted <= seen:
                got = boto.receive(url, WaitTimeSeconds=20, VisibilityTimeout=600)
                assert got, f"{len(sent - deleted - seen)} messages are lost"
                seen.update(each["Body"] for each in got)
            while got := boto.receive(url, VisibilityTimeout=600):
                seen.update(each["Body"] for each in got)
        assert not seen & deleted
    finally:
        node.stop()
