"""The directory of a pipeline: one owner at a time, and an identity that lasts as long as its checkpoint."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.client.wire import PipelineReport, QueryReport
from penstock.errors import ConfigError, PenstockError
from penstock.pipeline.run.home import Home, homes

HOLDER = """
import sys, time
from penstock.pipeline.run.home import Home
with Home(sys.argv[1], "shop").owned():
    print("mine", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(str(tmp_path / "shop"), "shop")


def held_elsewhere(home: Home) -> subprocess.Popen[str]:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, home.path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "mine\n"
    return holder


def test_two_pipelines_never_share_checkpoints(home: Home) -> None:
    with held_elsewhere(home) as holder:
        assert home.owner() == holder.pid
        with (
            pytest.raises(ConfigError, match=rf"pipeline shop \(pid {holder.pid}\) runs on .*stop it with"),
            home.owned(),
        ):
            pass
        holder.kill()
    assert home.owner() is None
    with home.owned():  # what was killed leaves nothing that is in the way
        assert home.owner() == os.getpid()


def test_another_pipeline_does_not_take_over_checkpoints(home: Home) -> None:
    with home.owned():
        pass
    with pytest.raises(ConfigError, match="belongs to pipeline shop"), Home(home.path, "other").owned():
        pass


def test_a_stop_is_waited_for(home: Home) -> None:
    with held_elsewhere(home) as holder:
        assert home.stop(10) == holder.pid
        assert holder.wait() == -signal.SIGTERM
    with pytest.raises(PenstockError, match="does not run"):
        home.stop(0)


def test_an_identity_lasts_until_the_checkpoint_is_removed(home: Home) -> None:
    first = home.identity("q", [["rollup", {"policies": ("1m:40d",)}]])
    assert home.identity("q", [["rollup", {"policies": ["1m:40d"]}]]) == first
    shutil.rmtree(os.path.dirname(home.checkpoint("q")))
    assert home.identity("q", []) != first


def test_steps_with_state_may_not_change_under_a_checkpoint(home: Home) -> None:
    home.identity("q", [["rollup", {"policies": ["1m:40d"]}]])
    with pytest.raises(ConfigError, match=r"not what they were when .*remove .* to begin anew"):
        home.identity("q", [["rollup", {"policies": ["10s:2d"]}]])


def test_what_was_said_is_read_back(home: Home) -> None:
    assert home.told() is None
    report = PipelineReport(
        name="shop", pid=1, host="h", state="running", started_ms=5, queries=[QueryReport(name="q", rows_total=7)]
    )
    home.tell(report)
    assert home.told() == report


def test_only_what_ran_is_listed(home: Home, tmp_path: Path) -> None:
    (tmp_path / "something").mkdir()
    assert homes(str(tmp_path / "nowhere")) == []
    with home.owned():
        assert [each.name for each in homes(str(tmp_path))] == ["shop"]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match="cannot be used for checkpoints"),
        Home(str(tmp_path / "file/x"), "x").owned(),
    ):
        pass
