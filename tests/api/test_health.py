from __future__ import annotations

import errno
from pathlib import Path

import pytest

from penstock.disk import LocalDisk, LocalFile
from tests.callers.parts import user, users_in
from tests.served import Served


def test_healthz_says_that_the_process_is_up(served: Served) -> None:
    answer = served.get("/healthz")
    assert (answer.status, answer.json["status"]) == (200, "ok")


def test_readyz_of_a_healthy_node_lists_no_problem_and_leaves_no_file(served: Served) -> None:
    answer = served.get("/readyz")
    assert (answer.status, answer.json) == (200, {"ready": True, "problems": [], "degraded": []})
    assert not list(served.path.glob("*probe*"))


def test_readyz_tells_that_the_node_stops(served: Served) -> None:
    served.do(served.node.stop)
    answer = served.get("/readyz")
    told = {"ready": False, "problems": ["the node is stopping"], "degraded": []}
    assert (answer.status, answer.json) == (503, told)


def test_readyz_tells_that_the_node_is_degraded_and_one_busy_topic_does_not_make_it_unready(served: Served) -> None:
    health = served.node.health
    served.do(lambda: health.consumer("reminders", "c1", is_busy=True))
    answer = served.get("/readyz")
    assert (answer.status, answer.json["problems"]) == (200, [])
    assert "most consumers of reminders are busy" in answer.json["degraded"][0]
    for _ in range(5):
        served.do(lambda: health.storage.observe(False))
    answer = served.get("/readyz")
    assert (answer.status, answer.json["ready"]) == (503, False)
    assert "degraded (storage): its storage fails" in answer.json["problems"][0]
    assert len(answer.json["degraded"]) == 2
    assert served.get("/healthz").status == 200


def test_readyz_tells_that_users_are_not_what_the_file_says(served: Served) -> None:
    users_in(served.path, [user("bob")])
    served.do(served.node.gate.reload)
    (served.path / "users.json").unlink()
    served.do(served.node.gate.reload)
    answer = served.get("/readyz")
    assert (answer.status, answer.json["problems"]) == (200, [])
    assert "users stay as they were" in answer.json["degraded"][0]
    users_in(served.path, [user("bob")])
    served.do(served.node.gate.reload)
    assert served.get("/readyz").json["degraded"] == []


def test_readyz_tells_of_a_full_disk(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: LocalFile, parts: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LocalFile, "append", full)
    answer = served.get("/readyz")
    assert answer.status == 503
    assert "No space left on device" in answer.json["problems"][0]
    monkeypatch.undo()
    assert served.get("/readyz").status == 200


def test_readyz_tells_of_a_read_only_disk(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: LocalDisk, path: str, *, create: bool = False) -> LocalFile:
        raise OSError(errno.EROFS, "Read-only file system", path)

    monkeypatch.setattr(LocalDisk, "open", refuse)
    assert "Read-only file system" in served.get("/readyz").json["problems"][0]


def test_readyz_tells_of_damage_and_so_does_the_topic(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        for number in range(50):
            served.publish("orders", f"message {number}")
    segment = max(tmp_path.glob("topics/1/0/*.arrows"), key=lambda path: path.stat().st_size)
    content = bytearray(segment.read_bytes())
    content[content.index(b"message 7")] ^= 0xFF
    segment.write_bytes(content)
    with Served(tmp_path) as served:
        found = served.get("topics/orders/messages?limit=1000").json["messages"]
        assert len(found) < 50
        assert "message 7" not in {message.get("body") for message in found}
        answer = served.get("/readyz")
        assert answer.status == 503
        assert answer.json["problems"][0].startswith("damaged: topic orders shard 0")
        assert served.get("topics/orders").json["shards"][0]["damaged"]
        assert served.get("/healthz").status == 200


def test_readyz_tells_of_topics_that_the_registry_does_not_know(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.publish("orders", "one")
    (tmp_path / "topics" / "9").mkdir()
    with Served(tmp_path) as served:
        answer = served.get("/readyz")
        assert answer.status == 503
        assert "lost/9 holds a directory without a label" in answer.json["problems"][0]
        (tmp_path / "lost" / "9").rmdir()
        assert served.get("/readyz").status == 200


def test_readyz_keeps_details_from_those_without_the_token(tmp_path: Path) -> None:
    with Served(tmp_path, token="secret") as served:
        served.do(served.node.stop)
        answer = served.get("/readyz")
        assert (answer.status, answer.json["problems"]) == (503, ["show who you are to see what is wrong"])
        answer = served.ask("GET", "/readyz", headers={"Authorization": "Bearer secret"})
        assert answer.json["problems"] == ["the node is stopping"]


def test_readyz_tells_which_topic_takes_nothing_after_syncs_that_failed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: LocalFile) -> None:
        raise OSError(errno.EIO, "Input/output error")

    served.publish("orders", "one")
    shard = served.node.topics["orders"].shards[0]
    monkeypatch.setattr(LocalFile, "sync", fail)
    told: list[BaseException | None] = []
    served.do(lambda: shard.sync(told.append))
    served.until(lambda: bool(told))
    assert isinstance(told[0], OSError)
    answer = served.get("/readyz")
    assert (answer.status, len(answer.json["problems"])) == (503, 1)
    assert answer.json["problems"][0].startswith("topic orders shard 0: ")
    assert "is read-only: its disk failed ([Errno 5] Input/output error)" in answer.json["problems"][0]
    refused = served.post("topics/orders/messages", raw=b'{"body": "two"}')
    assert (refused.status, refused.code) == (503, "disk_failed")
    assert served.node.ledger.total("disk_failed", "orders") == 1
    assert [row["body"] for row in served.get("topics/orders/messages").json["messages"]] == ["one"]
    monkeypatch.undo()
    served.until(lambda: not shard.read_only)
    assert served.get("/readyz").status == 200
    served.publish("orders", "two")
