"""Fences that need more than the one node of the others run here, each from its page with what it needs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.dialects.sqs.config import SqsConfig
from tests.cli.program import ANY_PORTS, LISTENING, SECONDS_MAX, Running, environment, inside
from tests.dory.senders import dory
from tests.etcd.conftest import one
from tests.etcd.servers import Cluster
from tests.foreign.drivers import ENVIRONMENT, PYTHON
from tests.m3msg.receiver import Receiver
from tests.pages.blocks import ROOT, Block, blocks, commands
from tests.served import Served

__all__ = ["one"]


def fences(page: str, holds: str) -> list[Block]:
    """Return the fences of a page with these words in them, in their order."""
    found = [block for block in blocks() if block.page == page and holds in block.text and block.language != "toml"]
    assert found, f"{page} says nothing of {holds}"
    return found


def ran(*command: str, cwd: Path, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * SECONDS_MAX,
        check=False,
    )


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a reader who has `penstock` on the path."""
    program = tmp_path / "bin" / "penstock"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m penstock.cli "$@"\n')
    program.chmod(0o700)
    return {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}


def said(line: str, cwd: Path, shell: Mapping[str, str]) -> str:
    """Run a line of a page; it ends with the exit code that its comment says."""
    wanted = re.search(r"#.*exit code (\d)", line)
    done = ran("bash", "-c", line, cwd=cwd, variables=shell)
    assert done.returncode == (int(wanted[1]) if wanted else 0), f"{line}: {done.stderr}"
    return done.stdout


def test_users_rights_and_quotas_are_given_as_the_page_of_security_says(tmp_path: Path, shell: dict[str, str]) -> None:
    (users,) = fences("docs/security.md", "penstock user may")
    (quotas,) = fences("docs/security.md", "penstock user quota")
    *lines, up = users.text.splitlines()
    told = [said(line, tmp_path, shell) for line in lines]
    secret, token = told[0].split()[-1], told[2].split()[-1]
    words = shlex.split(up, comments=True)[1:]
    with Running(*words, *ANY_PORTS, "--ready-file", "ready", cwd=tmp_path) as node:
        node.line(LISTENING)
        url = re.search(rb'"url":"([^"]+)"', (tmp_path / "ready").read_bytes())
        assert url is not None
        for shown, topic, code in (
            ("", "orders.new", 1),
            (f"billing:{secret}", "orders.new", 0),
            (token, "payments", 1),
        ):
            done = inside("pub", topic, "hello", cwd=tmp_path, PENSTOCK_URL=url[1].decode(), PENSTOCK_TOKEN=shown)
            assert done.code == code, (shown, topic, done)
        for line in quotas.text.splitlines():
            shows = said(line, tmp_path, shell)
    assert "1000 messages/s, 10MiB/s, 20 connections, 20GiB stored" in shows


def test_boto3_does_what_the_page_of_queues_shows(tmp_path: Path) -> None:
    assert (ENVIRONMENT / ".made").exists(), "boto3 is not installed: run `make .venv/foreign/.made`"
    text = "\n".join(block.text for block in fences("docs/dialects/queues.md", "boto3.client("))
    text += '\nprint(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"][0]["Body"])'
    nothing = {
        "AWS_CONFIG_FILE": "/nowhere",
        "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with Served(tmp_path / "data", sqs=SqsConfig(port=0)) as served:
        there = text.replace("127.0.0.1:9324", f"127.0.0.1:{served.ports['sqs.port']}")
        done = ran(str(PYTHON), "-c", there, cwd=tmp_path, variables=nothing)
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    assert first.startswith("a shirt {'size': ")
    assert last == "a shirt"  # what was published reached the queue, by its filter


def test_the_sender_of_the_page_of_dory_sends(tmp_path: Path) -> None:
    (sends,) = fences("docs/dialects/dory.md", "Sender(")
    (shell,) = set(re.findall(r"`to_dory (--socket-path [^`]*)`", (ROOT / sends.page).read_text()))
    with dory(tmp_path) as node:
        for command in (["-c", sends.text], ["-m", "penstock.dory.to_dory", *shlex.split(shell)]):
            here = [word.replace("/run/dory/dory.socket", node.datagram) for word in command]
            done = ran(sys.executable, *here, cwd=tmp_path, variables={})
            assert done.returncode == 0, done.stderr
        assert [body for body, _ in node.until_stored(2, "greetings")] == [b"hello", b"hello"]


def test_the_producer_of_the_page_of_m3msg_reaches_the_service_of_its_file(tmp_path: Path) -> None:
    (sends,) = fences("docs/dialects/m3msg.md", "FileTopology(")
    (topology,) = [block for block in blocks() if block.page == sends.page and "[placements." in block.text]
    with Receiver() as receiver:
        (tmp_path / "m3.toml").write_text(topology.text.replace("10.0.0.7:7507", receiver.endpoint))
        done = ran(sys.executable, "-c", sends.text, cwd=tmp_path, variables={})
    assert done.returncode == 0, done.stderr
    assert "consumed" in done.stdout
    assert list(receiver.got) == [b"value"]


def test_topics_and_placements_of_m3_are_written_as_its_page_says(tmp_path: Path, one: Cluster) -> None:
    (block,) = fences("docs/dialects/m3msg.md", "penstock m3 placement add")
    endpoints = ", ".join(f'"{endpoint}"' for endpoint in one.endpoints)
    config = tmp_path / "penstock.toml"
    config.write_text(
        f'[etcd.zones.default]\nendpoints = [{endpoints}]\n[m3msg_relay]\nenvironment = "{tmp_path.name}"\n'
    )
    for command in commands(block):
        done = inside(*shlex.split(command.text)[1:], cwd=tmp_path, PENSTOCK_CONFIG=str(config))
        assert done.code == 0, f"{command.text}: {done.error}"
    assert "10.0.0.9:7507" in done.out


def test_a_rack_is_lost_as_the_page_of_timelines_shows(shell: dict[str, str]) -> None:
    (block,) = fences("docs/timeline.md", "examples/rack_loss.py")
    (command,) = commands(block)
    done = ran(sys.executable, *shlex.split(command.text)[1:], cwd=ROOT, variables=shell)
    assert done.returncode == 0, done.stderr
    found, shown = (dict(line.split(": ") for line in lines) for lines in (done.stdout.splitlines(), command.prints))
    assert list(found) == list(shown)
    for name in ("messages", "delivered", "early"):
        assert found[name] == shown[name]
