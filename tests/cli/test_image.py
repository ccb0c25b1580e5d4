"""The image's recipe fits the program: it cannot be built where there is no registry of images, but read it can be."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.api.config import ApiConfig
from penstock.cli.table import load
from penstock.dialects import DIALECTS
from tests.cli.program import Node, environment, inside
from tests.pages.blocks import ROOT

RECIPE = (ROOT / "Dockerfile").read_text()


def steps(word: str) -> list[str]:
    """Return what stands behind an instruction, each time it is given."""
    joined = RECIPE.replace("\\\n", " ")
    return [line.removeprefix(word).strip() for line in joined.splitlines() if line.startswith(f"{word} ")]


def test_what_is_copied_is_there_and_not_ignored() -> None:
    let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [name for line in steps("COPY") if "--from" not in line for name in shlex.split(line)[:-1]]
    assert sorted(copied) == sorted(let_in)
    assert [name for name in copied if not (ROOT / name).exists()] == []
    locks = re.findall(r"/source/(requirements/\S+)", RECIPE)
    assert [name for name in locks if not (ROOT / name).is_file()] == []
    assert len(locks) == 2


def test_exposed_ports_are_those_of_the_listeners() -> None:
    config = load(os.devnull, {}, {}).config
    listeners = {point.port for dialect in DIALECTS for point in dialect.endpoints(config)}
    assert {int(port) for port in steps("EXPOSE")[0].split()} == {*listeners, config.of(ApiConfig).port}


def test_every_exposed_port_is_named() -> None:
    """The comment above them says in their order what they are."""
    (comment,) = re.findall(r"((?:^# .*\n)+)EXPOSE", RECIPE, re.MULTILINE)
    named = [int(port) for port in re.findall(r"\b\d{4}\b", comment)]
    assert named == [int(port) for port in steps("EXPOSE")[0].split()]


@pytest.mark.parametrize("with_tls", [False, True])
def test_container_is_healthy_while_its_node_is_up_whoever_may_come_in(tmp_path: Path, with_tls: bool) -> None:
    options, _, command = steps("HEALTHCHECK")[0].partition("CMD ")
    words = msgspec.json.decode(command, type=list[str])
    assert (words[0], words[-1]) == ("python", "/data/node.json")
    assert "--interval=30s" in options.split()
    ask = [sys.executable, *words[1:-1], str(tmp_path / "data" / "node.json")]
    more = []
    if with_tls:
        request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        files = ["-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=elsewhere.example"]
        subprocess.run([*request, *files], cwd=tmp_path, check=True, capture_output=True)
        more = [f"--set=tls_cert={tmp_path}/cert.pem", f"--set=tls_key={tmp_path}/key.pem"]
    variables = environment(http_proxy="http://127.0.0.1:9", https_proxy="http://127.0.0.1:9")
    with Node(tmp_path, "--set=callers.anonymous=off", *more) as node:
        assert node.call("status").code != 0
        done = subprocess.run(ask, env=variables, capture_output=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    done = subprocess.run(ask, env=variables, capture_output=True, timeout=60, check=False)
    assert (done.returncode, b"no node answers" in done.stderr) == (1, True)


def test_commands_and_settings_of_the_image_exist(tmp_path: Path) -> None:
    (command,), (entry,) = steps("CMD"), steps("ENTRYPOINT")
    words = [*msgspec.json.decode(entry, type=list[str]), *msgspec.json.decode(command, type=list[str])]
    assert words[0] == "penstock"
    assert inside(*words[1:], "--help", cwd=tmp_path).code == 0
    words = [word for line in steps("ENV") for word in shlex.split(line) if "PENSTOCK_" in word]
    settings: dict[str, Any] = dict(word.split("=", 1) for word in words)
    shown = inside("config", "show", "--json", cwd=tmp_path, **settings)
    assert (shown.code, shown.error) == (0, "")
    assert '"/data"' in shown.out
