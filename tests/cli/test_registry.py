from __future__ import annotations

import http.client
import os
import resource
from pathlib import Path

import pytest

from tests.cli.program import ANY_PORTS, SECONDS_MAX, Done, Node, inside, penstock


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data of a node that had three topics and was stopped."""
    with Node(tmp_path) as node:
        for name in ("a", "b", "c"):
            node.ok("pub", name, f"message of {name}")
        node.ok("subscription", "create", "a", "audit")
        assert node.end() == 0
    return tmp_path / "data"


def started(cwd: Path) -> Done:
    return penstock("up", "--data", "data", *ANY_PORTS, cwd=cwd)


def test_a_node_that_lost_its_registry_refuses_to_start_and_loses_nothing(tmp_path: Path, data: Path) -> None:
    (data / "registry").unlink()
    done = started(tmp_path)
    assert (done.code, done.error.count("\n")) == (1, 1), done
    assert "data/registry is missing, and data/topics holds 3 topics" in done.error
    assert "`penstock registry rebuild --data data`" in done.error
    assert sorted(os.listdir(data / "topics")) == ["1", "2", "3"]
    made = inside("registry", "rebuild", "--data-dir", "data", cwd=tmp_path)
    assert made.code == 0, made
    assert "3 topics added to data/registry" in made.out
    with Node(tmp_path) as node:
        assert node.ok("sub", "a", "audit").out == "message of a\n"
        assert node.ok("sub", "c", "new").out == "message of c\n"
        running = inside("registry", "rebuild", "--data", "data", cwd=tmp_path)
        assert "in use by another Penstock" in running.error
    healthy = inside("registry", "rebuild", "--data", "data", cwd=tmp_path)
    assert (healthy.code, "there is nothing to rebuild" in healthy.error) == (2, True)


def test_every_byte_of_a_registry_may_go_bad_and_no_topic_goes_with_it(tmp_path: Path, data: Path) -> None:
    good = (data / "registry").read_bytes()
    for at in {0, 5, 30, len(good) // 2, len(good) - 20, len(good) - 1}:
        bad = bytearray(good)
        bad[at] ^= 4
        (data / "registry").write_bytes(bad)
        done = inside("registry", "rebuild", "--data", "data", "--json", cwd=tmp_path)
        if done.code == 0:
            assert [topic["topic"] for topic in done.json["topics"]] == ["a", "b", "c"]
            assert Path(tmp_path, done.json["kept"]).read_bytes() == bytes(bad)
        else:  # a mark that says that the last change is good
            assert "there is nothing to rebuild" in done.error
    with Node(tmp_path) as node:
        assert node.ok("sub", "b", "new").out == "message of b\n"


def test_what_an_older_registry_does_not_know_is_set_aside_reported_and_taken_back(tmp_path: Path, data: Path) -> None:
    older = (data / "registry").read_bytes()
    with Node(tmp_path) as node:
        node.ok("pub", "young", "message of young")
        assert node.end() == 0
    (data / "registry").write_bytes(older)
    with Node(tmp_path) as node:
        ready = node.call("doctor", "--set", "data_dir=data", *ANY_PORTS)
        assert "lost topics" in ready.out
        assert "data/lost/4 holds topic 'young'" in ready.out
        assert "data/lost/4 holds topic 'young'" in node.errors()
        assert node.ok("topic", "list", "--json").out.count("young") == 0
        assert node.end() == 0
    assert inside("registry", "rebuild", "--data", "data", cwd=tmp_path).code == 0
    with Node(tmp_path) as node:
        assert node.ok("sub", "young", "new").out == "message of young\n"


def test_no_registry_is_made_where_a_member_of_a_cluster_has_its_data(tmp_path: Path, data: Path) -> None:
    (data / "registry").unlink()
    (data / "cluster.disk").write_text("0123456789abcdef")
    done = inside("registry", "rebuild", "--data", "data", cwd=tmp_path)
    assert done.code == 2
    assert "data is the disk of a cluster's node, and what the cluster remembers is in its etcd" in done.error
    assert not (data / "registry").exists()


def test_a_node_out_of_files_refuses_a_topic_and_takes_it_later(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        _, hard = resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE)
        connection = http.client.HTTPConnection("127.0.0.1", node.port("api.port"), timeout=SECONDS_MAX)
        assert asked(connection, "GET", "/api/v1/topics") == 200
        # What is open stays so, and nothing more is opened.
        resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (1, hard))
        assert asked(connection, "POST", "/api/v1/topics", b'{"name": "second"}') == 503
        resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (hard, hard))
        connection.close()
        assert node.ok("topic", "list", "--json").json == []
        node.ok("topic", "create", "second")
        node.ok("pub", "second", "two")
        assert node.ok("sub", "second", "new").out == "two\n"
        assert node.end() == 0
    assert not (tmp_path / "data" / "lost").exists()


def asked(connection: http.client.HTTPConnection, method: str, path: str, body: bytes = b"") -> int:
    connection.request(method, path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    return answer.status
