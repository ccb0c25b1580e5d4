from __future__ import annotations

import base64
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import SECOND
from penstock.config import DiscardsConfig, LogConfig
from penstock.discards import REASONS, Discards
from penstock.disk import LocalDisk
from penstock.errors import ConfigError
from penstock.observe.discard_log import CODES, DiscardLog, discard_log
from penstock.observe.logging import reopen, set_up
from tests.fakes import START_NS, FakeClock
from tests.served import Served

NOW = START_NS // 1_000_000


def kept(path: Path, **config: Any) -> tuple[Discards, DiscardLog, FakeClock]:
    clock = FakeClock()
    discards = Discards(clock)
    log = DiscardLog(LocalDisk(), clock, DiscardsConfig(log=str(path / "discards"), **config))
    discards.listeners.append(log.write)
    return discards, log, clock


def test_each_message_is_a_line_with_its_reason_time_and_content(tmp_path: Path) -> None:
    discards, log, _ = kept(tmp_path, log_message_bytes=4)
    discards.add("error_ack", "orders", [5, 7], [b"k", None], [b"hello world", b""])
    discards.add_duplicates("orders", [9], [None], [b"x"])
    discards.add_raw("malformed", [b"\x00\x01"])
    discards.add_raw("unsupported_version", [b"v"], -1)
    discards.add_raw("unsupported_api_key", [b"k"], 300)
    discards.add("bad_topic", "100%\n\udcff", [1], [None], [b"x"])
    log.close()
    assert (tmp_path / "discards").read_bytes().splitlines() == [
        b"now: %d ts: 5 event: DISC info: KAFKA_ERROR_ACK topic: 6[orders] key: 4[aw==] msg: 8[aGVsbA==]" % NOW,
        b"now: %d ts: 7 event: DISC info: KAFKA_ERROR_ACK topic: 6[orders] key: 0[] msg: 0[]" % NOW,
        b"now: %d ts: 9 event: DUP info: NONE topic: 6[orders] key: 0[] msg: 4[eA==]" % NOW,
        b"now: %d ts: %d event: DISC info: MALFORMED topic: 0[] key: 0[] msg: 4[AAE=]" % (NOW, NOW),
        b"now: %d ts: %d event: DISC info: VERSION(-1) topic: 0[] key: 0[] msg: 4[dg==]" % (NOW, NOW),
        b"now: %d ts: %d event: DISC info: API_KEY(300) topic: 0[] key: 0[] msg: 4[aw==]" % (NOW, NOW),
        b"now: %d ts: 1 event: DISC info: BAD_TOPIC topic: 6[100%%\\x0a\xff] key: 0[] msg: 4[eA==]" % NOW,
    ]


def test_every_reason_has_a_code() -> None:
    assert set(CODES) == set(REASONS)


def test_a_full_file_is_set_aside_and_the_oldest_go(tmp_path: Path) -> None:
    discards, log, clock = kept(tmp_path, log_file_bytes=1000, log_archive_bytes=2000, log_message_bytes=0)
    for number in range(60):
        discards.add("error_ack", "t", [number], [None], [b"x" * 60])
        clock.advance(SECOND)
    log.close()
    archives = sorted(tmp_path.glob("discards.*"), key=lambda path: int(path.suffix[1:]))
    assert len(archives) == 2
    assert all(0 < path.stat().st_size <= 1000 for path in [*archives, tmp_path / "discards"])
    text = "".join(path.read_text() for path in [*archives, tmp_path / "discards"])
    numbers = [int(found) for found in re.findall(r"ts: (\d+)", text)]
    assert numbers == list(range(numbers[0], 60))
    assert numbers[0] > 0


def test_files_of_one_batch_are_cut_at_the_limit_and_a_larger_message_stands_alone(tmp_path: Path) -> None:
    discards, log, _ = kept(tmp_path, log_file_bytes=500, log_message_bytes=0)
    bodies = [b"a" * 100] * 5 + [b"b" * 3000]
    discards.add("error_ack", "t", list(range(6)), [None] * 6, bodies)
    log.close()
    assert (tmp_path / "discards").read_bytes().count(b"\n") == 1
    assert base64.b64encode(bodies[-1]) in (tmp_path / "discards").read_bytes()
    archives = list(tmp_path.glob("discards.*"))
    assert len(archives) == 3
    assert all(path.stat().st_size <= 500 for path in archives)


def test_a_log_that_cannot_be_written_is_said_once_and_disturbs_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    discards, log, _ = kept(tmp_path, log_file_bytes=100)
    discards.add("error_ack", "t", [1], [None], [b"x"])
    (tmp_path / "discards").unlink()
    discards.add("error_ack", "t", [2], [None], [b"x" * 100])
    discards.add("error_ack", "t", [3], [None], [b"x" * 100])
    log.close()
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        f"discard log {tmp_path}/discards cannot be written"
    ]
    assert discards.total() == 3


def test_a_path_that_cannot_be_used_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no absolute path"):
        discard_log(LocalDisk(), FakeClock(), DiscardsConfig(log="here"))
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        discard_log(LocalDisk(), FakeClock(), DiscardsConfig(log=f"{tmp_path}/none/discards"))


def test_the_nodes_own_log_tells_of_a_reason_every_thirty_seconds(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    discards = Discards(clock, warns=True)
    for _ in range(3):
        discards.add("error_ack", "orders", [1, 2])
    clock.advance(30 * SECOND)
    discards.add("error_ack", "orders", [1])
    discards.add_raw("malformed", [b"x"])
    assert [record.message for record in caplog.records] == [
        "thrown away: 2 of topic orders, error_ack",
        "thrown away: 1 of topic orders, error_ack (and 4 since this was last said)",
        "thrown away: 1, malformed",
    ]


def test_a_node_keeps_the_file_that_is_configured(tmp_path: Path) -> None:
    config = DiscardsConfig(log=str(tmp_path / "discards"), sample_bytes=2)
    with Served(tmp_path / "data", discards=config) as served:
        served.do(lambda: served.node.discards.add_raw("malformed", [b"abc"]))
    assert b"MALFORMED" in (tmp_path / "discards").read_bytes()


def test_the_log_goes_on_in_a_new_file_once_the_old_one_was_renamed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    handler = set_up(LogConfig(file=str(path)))
    try:
        logging.getLogger("penstock.test").warning("one")
        path.rename(tmp_path / "old")
        reopen()
        assert path.exists()
        logging.getLogger("penstock.test").warning("two")
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
    assert "one" in (tmp_path / "old").read_text()
    assert "two" in path.read_text()
    with pytest.raises(ConfigError, match=r"log\.file"):
        set_up(LogConfig(file=f"{tmp_path}/none/log"))
