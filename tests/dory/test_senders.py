"""What sends: the Python sender, `to_dory`, and the C header, each to a real node."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.dialects.dory.config import TCP
from penstock.dory import Sender
from penstock.dory.sender import Transport
from penstock.dory.to_dory import main
from tests.dory.senders import Sockets, dory

PROJECT = Path(__file__).parents[2]
#: What a program that only sends may have of ours.
OWN = {"penstock", "penstock.dory", "penstock.dory.message", "penstock.dory.sender"}

PROGRAM = r"""
#include "penstock_dory.h"
#include <stdlib.h>
int main(int count, char **words) {
    struct dory_sender one, two, three;
    if (dory_open_datagram(&one, words[1]) || dory_open_stream(&two, words[2]) || dory_open_tcp(&three, atoi(words[3])))
        return 1;
    static char large[100000];
    if (dory_send(&one, "c", "k", 1, "datagram", 8)) return 2;
    if (dory_send_to(&two, 4294967295u, "c2", NULL, 0, "stream", 6)) return 3;
    if (dory_send(&three, "c3", NULL, 0, large, sizeof large)) return 4;
    if (dory_send(&one, "", NULL, 0, NULL, 0) != -1 || errno != EMSGSIZE) return 5;
    dory_close(&one), dory_close(&two), dory_close(&three);
    return count != 4;
}
"""


def place(node: Sockets, transport: str) -> str | int:
    places: dict[str, str | int] = {"datagram": node.datagram, "stream": node.stream, "tcp": node.served.ports[TCP]}
    return places[transport]


def send_to_nobody(sender: Sender) -> None:
    for _ in range(100):  # a connection learns of its end by what it sent before
        sender.send("t", b"nobody")


@pytest.mark.parametrize("transport", ["datagram", "stream", "tcp"])
def test_a_sender_sends_and_finds_the_node_again(tmp_path: Path, transport: Transport) -> None:
    with dory(tmp_path) as node, Sender(place(node, transport), transport) as sender:
        sender.send("t", b"first", b"k", partition_key=7, timestamp_ms=5)
        assert node.until_stored(1) == [(b"first", {"event_time": 5_000_000, "key": b"k", "route": 7})]
        sender.close()
        sender.send("t", b"x" * 50_000)
        assert len(node.until_stored(2)[1][0]) == 50_000
        node.served.stop()
        with pytest.raises(OSError):
            send_to_nobody(sender)


def test_a_program_that_sends_loads_nothing_else() -> None:
    code = "import sys, penstock.dory; print(*[name for name in sys.modules if name.split('.')[0] == 'penstock'])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    assert set(loaded.split()) == OWN
    code = (
        "import sys, penstock.dory; print('numpy' in sys.modules, 'pyarrow' in sys.modules, 'msgspec' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split() == ["False"] * 3


def test_to_dory_sends_what_its_options_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with dory(tmp_path) as node:
        assert main(["--socket_path", node.datagram, "--topic", "a", "--key", "k", "--value", "hello"]) == 0
        ((body, row),) = node.until_stored(1, "a")
        assert (body, row["key"]) == (b"hello", b"k")
        words = ["--stream-socket-path", node.stream, "--topic", "b", "--count", "3", "--seq", "--pad", "2"]
        assert main([*words, "--value", "x", "--print", "2", "--partition_key", "4294967295"]) == 0
        found = node.until_stored(3, "b")
        assert [body for body, _ in found] == [b"01 x", b"02 x", b"03 x"]
        assert found[0][1]["route"] == 4294967295
        assert capsys.readouterr().out == "2 messages written\n"
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"piped")))
        assert main(["--port", str(node.served.ports[TCP]), "--topic", "c", "--stdin"]) == 0
        assert node.until_stored(1, "c")[0][0] == b"piped"
        assert main(["--socket-path", node.datagram, "--topic", "a", "--bad"]) == 0
        node.until_thrown(malformed=1)
    assert main(["--socket-path", node.datagram, "--topic", "a"]) == 1
    assert "to_dory: " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--topic", "a"])


def test_the_header_sends_from_c(tmp_path: Path) -> None:
    source, program = tmp_path / "send.c", tmp_path / "send"
    source.write_text(PROGRAM)
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-I", str(PROJECT / "examples/c")]
    subprocess.run(["cc", *flags, str(source), "-o", str(program)], check=True)
    with dory(tmp_path / "data") as node:
        subprocess.run([str(program), node.datagram, node.stream, str(node.served.ports[TCP])], check=True)
        assert node.until_stored(1, "c")[0][1]["key"] == b"k"
        assert node.until_stored(1, "c2")[0][1]["route"] == 4294967295
        assert len(node.until_stored(1, "c3")[0][0]) == 100_000
