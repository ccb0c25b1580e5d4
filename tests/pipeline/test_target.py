"""The options of a write: what may be said, and what each mistake is told."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from penstock.client.connection import Unreachable
from penstock.errors import ConfigError
from penstock.pipeline.target import parsed, running

URL = {"url": "grpc://there:7071"}


def test_options_name_a_node_a_topic_and_a_transaction(tmp_path: Path) -> None:
    roots = tmp_path / "roots.pem"
    roots.write_text("pem")
    target = parsed(
        {**URL, "TOKEN": "secret", "tlsroots": str(roots), "topic": "t", "txnAppId": "app", "txnVersion": "7"}
    )
    assert not target.keep_shards
    assert parsed({**URL, "keepShards": "true"}).keep_shards
    assert target.node() == ("grpc://there:7071", "secret", b"pem")
    assert (target.topic, target.transaction) == ("t", ("app", 7))


def test_sparks_own_options_are_let_through() -> None:
    assert parsed({**URL, "checkpointLocation": "/c", "queryName": "q"}).topic is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "Set option url, as grpc://host:7071, or option path"),
        ({**URL, "path": "/d"}, "which node"),
        ({**URL, "topics": "t"}, "no option topics; did you mean topic?"),
        ({**URL, "txnAppID2": "t"}, "did you mean txnAppId?"),
        ({**URL, "subscribe": "t"}, "option subscribe is for reading; did you mean topic?"),
        ({**URL, "startingoffsets": "t"}, "option startingOffsets is for reading; for writing there are path, url"),
        (
            {**URL, "kafka.bootstrap.servers": "x"},
            "there is no option kafka.bootstrap.servers; that is Kafka's: set option url",
        ),
        ({"url": "http://there"}, "option url: 'http://there' is no address of a node"),
        ({**URL, "tlsRoots": "/nowhere/roots"}, "option tlsRoots is /nowhere/roots, which cannot be read"),
        ({**URL, "topic": ""}, "option topic is '': the name of one topic"),
        ({**URL, "topic": "t" * 1025}, "of 1 to 1024 bytes"),
        ({**URL, "keepShards": "yes"}, "option keepShards is 'yes': true or false"),
        ({**URL, "repeats": "some"}, "option repeats is 'some': same or any"),
        ({**URL, "txnAppId": "a"}, "option txnAppId needs option txnVersion"),
        ({**URL, "txnVersion": "1"}, "option txnVersion needs option txnAppId"),
        ({**URL, "txnAppId": "a", "txnVersion": "-1"}, "option txnVersion is '-1': a whole number, 0 or more"),
        ({**URL, "txnAppId": "", "txnVersion": "1"}, "option txnAppId has 0 characters"),
    ],
)
def test_mistake_names_the_option_and_the_way_out(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as told:
        parsed(options)
    assert text in str(told.value)


def test_data_directory_leads_to_its_node(tmp_path: Path) -> None:
    target = parsed({"path": f"file://{tmp_path}", "token": "secret"})
    with pytest.raises(Unreachable, match=r"option path: no node runs on .*; start one with penstock up --data"):
        target.node()
    said = {"pid": os.getpid(), "flight": "grpc://127.0.0.1:9"}
    (tmp_path / "node.json").write_text(json.dumps(said))
    assert target.node() == ("grpc://127.0.0.1:9", "secret", b"")
    (tmp_path / "node.json").write_text(json.dumps({**said, "flight": "grpc://127.0.0.1:10"}))
    assert target.node().url == "grpc://127.0.0.1:10"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"pid": "x", "flight": "y"}', '{"pid": 1, "flight": null}'])
def test_file_of_a_node_that_says_nothing_is_no_node(tmp_path: Path, content: str) -> None:
    (tmp_path / "node.json").write_text(content)
    assert running(str(tmp_path)) is None


def test_node_that_was_killed_is_no_node(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    (tmp_path / "node.json").write_text(json.dumps({"pid": child, "flight": "grpc://127.0.0.1:9"}))
    assert running(str(tmp_path)) is None
