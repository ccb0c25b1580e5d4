"""A node that stops while its Kafka takes everything and answers nothing."""

from __future__ import annotations

import asyncio
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.clock import LoopClock
from penstock.dory import Sender
from penstock.kafka.exchange import Api
from tests.cli.program import Node
from tests.kafka.broker import ByteBroker, Session
from tests.kafka.brokers import wait_for
from tests.kafka.test_out import figures

DELAY_S = 1.5


@contextmanager
def silent() -> Iterator[ByteBroker]:
    """Run a broker that answers to everything but messages."""
    loop = asyncio.new_event_loop()
    broker = ByteBroker(0, "t", LoopClock(loop), "127.0.0.1")
    broker.faults[Api.PRODUCE].extend([lambda answer: b""] * 100)
    server = loop.run_until_complete(loop.create_server(lambda: Session(broker), broker.host, 0))
    broker.port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield broker
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        loop.close()


def test_dory_case_32_a_node_ends_in_time_and_tells_of_what_was_not_acked(tmp_path: Path) -> None:
    with silent() as broker, tempfile.TemporaryDirectory(prefix="dory-") as directory:
        (tmp_path / "penstock.toml").write_text(f"""
            [topic]
            durability = "memory"
            [dory]
            unix_datagram_path = "{directory}/socket"
            http = false
            [discards]
            log = "{tmp_path}/discards"
            [kafka_relay]
            topics = ["*"]
            brokers = ["127.0.0.1:{broker.port}"]
            shutdown_max_delay = "{DELAY_S}s"
        """)
        with Node(tmp_path, "--config=penstock.toml") as node:
            with Sender(f"{directory}/socket") as sender:
                sender.send("t", b"never acked")
            wait_for(lambda: figures(node)["sent_total"] == 1, "the broker to be sent to")
            start = time.monotonic()
            assert node.end() == 0
            assert DELAY_S <= time.monotonic() - start < DELAY_S + 10
    lines = (tmp_path / "discards").read_text().splitlines()
    said = [re.sub(r"^now: \d+ ts: \d+ ", "", line) for line in lines]
    content = "topic: 1[t] key: 0[] msg: 16[bmV2ZXIgYWNrZWQ=]"
    assert said == [f"event: DUP info: NONE {content}", f"event: DISC info: SERVER_SHUTDOWN {content}"]
