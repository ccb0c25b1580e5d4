"""A process that is killed in the middle of appending loses nothing it had acknowledged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from bisect import bisect_left
from pathlib import Path

import pytest

from penstock.log.verify import verify
from tests.log.samples import opened, read_all

CHILD = """
import sys
from penstock.message import Rows
from tests.log.samples import opened

shard = opened(sys.argv[1], segment_bytes=200_000)
number = shard.end
while True:
    count = 1 + number % 37
    shard.append(Rows.of([b"row %d" % (number + row) for row in range(count)], "nsq"), number)
    number += count
    print(number, flush=True)
    if number % 5 == 0:
        shard.tick(number)
"""


@pytest.mark.parametrize("acknowledged", [1, 500, 20_000])
def test_acknowledged_rows_survive_kill(tmp_path: Path, acknowledged: int) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", ".", *sys.path])}
    begin = 0
    acked: list[int] = []
    for _ in range(2):
        seen = begin
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, env=environment
        ) as child:
            assert child.stdout is not None
            for line in child.stdout:
                seen = int(line)
                if seen >= begin + acknowledged:
                    break
            child.send_signal(signal.SIGKILL)
            for line in child.stdout:
                if line.endswith(b"\n"):
                    seen = int(line)
        acked += range(begin, seen)
        assert verify(str(tmp_path)).good
        shard = opened(tmp_path)
        assert shard.damaged == []
        assert shard.end >= seen
        rows = read_all(shard)
        offsets = [row[0] for row in rows]
        assert offsets == sorted(set(offsets))
        assert set(acked) <= set(offsets)
        if not shard.cut_bytes:
            assert offsets[-1] == shard.end - 1
            assert offsets[bisect_left(offsets, begin) :] == list(range(begin, shard.end))
        assert all(row[2] == b"row %d" % row[0] for row in rows)
        # A kill inside a write leaves a torn end, which is cut, and whose offsets are not given again.
        begin = shard.end
        shard.close()
