"""The five commands of docs/security.md that open a node to a network, run as they stand there."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import shlex
import socket
import ssl
import subprocess
import sys
from pathlib import Path

from tests.cli.program import PORTS, SECONDS_MAX, Running, environment, inside

PAGE = Path(__file__).parents[2] / "docs/security.md"


def commands() -> list[str]:
    """Return the lines of the page's first block of commands."""
    found = re.search(r"five commands\n\n<!-- [^\n]+ -->\n```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1].splitlines()


def publish(context: ssl.SSLContext, port: int, user: str, topic: str) -> int:
    connection = http.client.HTTPSConnection("localhost", port, timeout=SECONDS_MAX, context=context)
    headers = {"Authorization": "Basic " + base64.b64encode(user.encode()).decode()} if user else {}
    connection.request("POST", f"/pub?topic={topic}", b"hello", headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_five_commands_open_a_node_to_a_network(tmp_path: Path) -> None:
    certificate, ops, shop, up, curl = commands()
    program = tmp_path / "bin" / "penstock"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m penstock.cli "$@"\n')
    program.chmod(0o700)
    path = {"PATH": f"{program.parent}:{os.environ['PATH']}"}

    def run(line: str) -> str:
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=tmp_path,
            env=environment(**path),
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(certificate)
    run(ops)
    (secret,) = re.findall(r"\S{20,}", run(shop))
    ports = [f"--set={key}=0" for key in (*PORTS, "nsq.https_port")]
    words = shlex.split(up)[1:]
    with Running(*words, *ports, "--ready-file", "ready", cwd=tmp_path) as node:
        node.line(b"Stop with Ctrl-C.")
        assert "insecure" not in node.errors()
        found = json.loads((tmp_path / "ready").read_text())["ports"]
        context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        topic = curl.rpartition("topic=")[2].rstrip('"')
        assert publish(context, found["nsq.https_port"], f"shop:{secret}", topic) == 200
        assert publish(context, found["nsq.https_port"], f"shop:{secret}", "payments") == 403
        assert publish(context, found["nsq.https_port"], f"shop:{secret}x", topic) == 401
        assert publish(context, found["nsq.https_port"], "", topic) == 401
        plain = http.client.HTTPConnection("localhost", found["nsq.http_port"], timeout=SECONDS_MAX)
        plain.request("POST", f"/pub?topic={topic}", b"hello")
        assert plain.getresponse().status == 403
        plain.close()
        with socket.create_connection(("localhost", found["nsq.tcp_port"]), SECONDS_MAX) as sock:
            sock.sendall(b"  V2PUB orders.new\n\x00\x00\x00\x01x")
            assert b"E_INVALID" in sock.recv(1000)  # TLS comes first


def test_each_setting_of_the_five_commands_is_needed(tmp_path: Path) -> None:
    words = shlex.split(commands()[3])[1:]
    settings = [f"--set={each}" for each in words if "=" in each]
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).touch()
    (tmp_path / "penstock-data").mkdir()
    (tmp_path / "penstock-data" / "users.json").write_text("{}")
    assert inside("config", "check", *settings, cwd=tmp_path).code == 0
    for gone in settings:
        if gone.partition("=")[2].startswith(("tls_", "nsq.tls", "nsq.lookup")):
            done = inside("config", "check", *(each for each in settings if each != gone), cwd=tmp_path)
            assert done.code == 2, gone
            assert "; " in done.error
