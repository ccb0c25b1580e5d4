"""The image's recipe fits the program: it cannot be built where there is no registry of images, but read it can be."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

import msgspec

from penstock.api.config import ApiConfig
from penstock.cli.table import load
from penstock.dialects import DIALECTS
from tests.cli.program import inside
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


def test_commands_and_settings_of_the_image_exist(tmp_path: Path) -> None:
    (command,), (entry,) = steps("CMD"), steps("ENTRYPOINT")
    words = [*msgspec.json.decode(entry, type=list[str]), *msgspec.json.decode(command, type=list[str])]
    health = msgspec.json.decode(steps("HEALTHCHECK")[0].partition("CMD ")[2], type=list[str])
    for called in (words, health):
        assert called[0] == "penstock"
        assert inside(*called[1:], "--help", cwd=tmp_path).code == 0
    words = [word for line in steps("ENV") for word in shlex.split(line) if "PENSTOCK_" in word]
    settings: dict[str, Any] = dict(word.split("=", 1) for word in words)
    shown = inside("config", "show", "--json", cwd=tmp_path, **settings)
    assert (shown.code, shown.error) == (0, "")
    assert '"/data"' in shown.out
