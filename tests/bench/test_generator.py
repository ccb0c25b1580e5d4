"""The load generator counts what its partner counts, and says so when there is none."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bench import generator, measure
from bench.ports import free_port
from penstock.config import NsqConfig
from tests.served import Served

PUB_BYTES = len("PUB bench\n0000") + 100


def test_publisher_counts_every_reply_of_its_partner() -> None:
    port = free_port()
    sink = generator.started("sink", port=port, unit=PUB_BYTES)
    seen = generator.load("pub", port=port, count=10_000, patience=5)
    generator.finished(sink)
    assert seen.messages == 10_000


def test_consumer_finishes_every_message_of_its_partner() -> None:
    port = free_port()
    source = generator.started("source", port=port, count=10_000)
    seen = generator.load("sub", port=port, count=10_000, patience=5)
    assert generator.finished(source).messages == seen.messages == 10_000
    assert seen.redelivered == 0


def test_publisher_over_http_counts_what_the_node_stored_and_no_refusal(tmp_path: Path) -> None:
    nsq = NsqConfig(tcp_port=0, http_port=0, max_msg_size=100)
    with Served(tmp_path, nsq=nsq) as served:
        place: dict[str, str | float] = {"dialect": "http", "port": served.nsq.port, "topic": "t"}
        assert generator.load("wait", **place, connections=4, count=1000).messages == 1000
        assert served.do(lambda: served.node.topics["t"].published) == 1000
        with pytest.raises(generator.LoadFailed, match=r"the server answered HTTP/1\.1 413"):
            generator.load("wait", **place, count=1, size=101)


def test_a_partner_that_is_not_there_is_an_error() -> None:
    with pytest.raises(generator.LoadFailed, match="no connection to port"):
        generator.load("pub", port=free_port(), count=1)


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(generator.LoadFailed, match="unknown key speed"):
        generator.load("pub", port=1, speed=9)


def test_cpu_time_of_a_process_is_what_it_says_itself() -> None:
    before_ns = time.process_time_ns()
    measured_ns = measure.cpu_ns(os.getpid())
    assert before_ns <= measured_ns <= time.process_time_ns() + 1_000_000
