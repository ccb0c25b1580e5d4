"""The programs that a benchmark runs: found, or built and installed on demand.

Owns where they come from. Invariant: a program that cannot be had raises `Missing` with the reason, so that a
row can report it; nothing is left out in silence.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import trust

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / "bench"
BUILD = BENCH / "build"
#: What comes from elsewhere as it is, outside the tree: tests and benchmarks of every checkout share it.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
#: Where the environment that runs this keeps its programs; not resolved, because .venv's python is a link.
SCRIPTS = Path(sys.executable).parent

#: What is built of NSQ: the daemons, and the tools that must work with Penstock as they are.
NSQ = ("nsqd", "nsqlookupd", "to_nsq", "nsq_tail", "nsq_to_file", "nsq_stat")

#: Building nsqd fetches and compiles it; a slow machine needs minutes.
BUILD_SECONDS_MAX = 900


class Missing(Exception):
    """A program cannot be had on this machine; the text says why."""


def nsqd() -> Path:
    """Return nsqd 1.3.0."""
    return nsq("nsqd")


def nsq(name: str) -> Path:
    """Return one of NSQ 1.3.0's programs, built with the others from the module in `peers-go` at the first call."""
    program = BUILD / "bin" / name
    if not program.exists():
        _need("go")
        # Built in a copy, because Go may complete the module's files and the checkout shall stay as it is.
        module = shutil.copytree(BENCH / "peers-go", BUILD / "peers-go", dirs_exist_ok=True)
        environment = {**os.environ, "GOFLAGS": "-mod=mod", "GOBIN": str(program.parent)}
        command = ["go", "install", *(f"github.com/nsqio/nsq/apps/{app}" for app in NSQ)]
        _call(command, "NSQ's programs could not be built", cwd=module, environment=environment)
    return program


def flight_reader() -> Path:
    """Return a reader of topics that stands on Arrow's own Go client, built at the first call and after a change."""
    source = ROOT / "tests" / "flight" / "reader-go"
    program = BUILD / "bin" / "flight-reader"
    changed = max(file.stat().st_mtime for file in source.iterdir())
    if not program.exists() or program.stat().st_mtime < changed:
        _need("go")
        module = shutil.copytree(source, BUILD / "reader-go", dirs_exist_ok=True)
        environment = {**os.environ, "GOFLAGS": "-mod=mod"}
        command = ["go", "build", "-o", str(program), "."]
        _call(command, "the Flight reader in Go could not be built", cwd=module, environment=environment)
    return program


def m3msg() -> Path:
    """Return M3's own producer and consumer as one program, built at the first call and after a change."""
    program = BUILD / "bin" / "m3msg"
    changed = max(file.stat().st_mtime for file in (BENCH / "peers-m3").iterdir())
    if not program.exists() or program.stat().st_mtime < changed:
        _need("go")
        module = shutil.copytree(BENCH / "peers-m3", BUILD / "peers-m3", dirs_exist_ok=True)
        environment = {**os.environ, "GOFLAGS": "-mod=mod"}
        command = ["go", "build", "-o", str(program), "."]
        _call(command, "M3's producer and consumer could not be built", cwd=module, environment=environment)
    return program


def redis() -> Path:
    """Return Debian's redis-server, installed if this user may."""
    _need("redis-server")
    return Path(shutil.which("redis-server") or "redis-server")


def nats() -> Path:
    """Return nats-server, installed beside this Python if it is not there."""
    return _installed("nats-server")


def uvicorn() -> Path:
    """Return uvicorn, which comes with Starlette, installed beside this Python if it is not there."""
    return _installed("uvicorn")


def _installed(name: str) -> Path:
    program = SCRIPTS / name
    if not program.exists():
        lock = ROOT / "requirements/bench.lock"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(lock)]
        _call(command, f"{name} could not be installed")
    return program


def elasticmq() -> Path:
    """Return the directory with ElasticMQ's jars."""
    return _jars("elasticmq")


def kafka() -> Path:
    """Return the directory with a Kafka broker's jars."""
    return _jars("kafka")


def kafka_connector() -> list[Path]:
    """Return the jars of Spark's Kafka connector."""
    return sorted(_jars("connector").glob("*.jar"))


def java() -> Path:
    """Return the Java of this machine, installed if this user may."""
    _need("java")
    return Path(shutil.which("java") or "java")


def place_of_jars(name: str) -> Path:
    """Return where the jars are, or would be, that the module of this name in `peers-java` needs."""
    digest = hashlib.sha256((BENCH / "peers-java" / name / "pom.xml").read_bytes()).hexdigest()
    return CACHE / f"{name}-{digest[:12]}"


def _jars(name: str) -> Path:
    """Return the jars of a module, fetched by Maven at the first call."""
    place = place_of_jars(name)
    if place.exists():
        return place
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            _need("mvn")
            module = shutil.copytree(BENCH / "peers-java" / name, CACHE / "modules" / name, dirs_exist_ok=True)
            # Elsewhere first, because a fetch that breaks off leaves some of them. -U: try again what failed.
            part = CACHE / f"{name}.part"
            shutil.rmtree(part, ignore_errors=True)
            command = ["mvn", "-q", "-B", "-U", "dependency:copy-dependencies", f"-DoutputDirectory={part}"]
            told = " ".join([os.environ.get("MAVEN_OPTS", ""), *trust.options(CACHE / "authorities.jks")]).strip()
            environment = {**os.environ, "MAVEN_OPTS": told}
            _call(command, f"{name}'s jars could not be fetched", cwd=module, environment=environment)
            part.rename(place)
    return place


def penstock() -> Path:
    """Return this project's program, installed beside this Python."""
    program = SCRIPTS / "penstock"
    if not program.exists():
        raise Missing(f"{program.name} is not installed beside {sys.executable}: run `make setup`")
    return program


def load() -> Path:
    """Return the load generator, compiled when its sources are newer."""
    program = BUILD / "load"
    sources = [*sorted((BENCH / "load").glob("*.[ch]")), ROOT / "examples" / "c" / "penstock_dory.h"]
    if not program.exists() or program.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        _need("gcc")
        BUILD.mkdir(parents=True, exist_ok=True)
        units = [str(source) for source in sources if source.suffix == ".c"]
        command = ["gcc", "-O2", "-Wall", "-Wextra", "-Wno-unused-result", "-o", str(program), *units, "-lpthread"]
        _call(command, "the load generator could not be compiled")
    return program


def _need(program: str) -> None:
    """Make sure that a program of Debian's is there; the project's own script installs it."""
    if shutil.which(program) is None:
        _call([str(ROOT / "scripts" / "need"), program], f"{program} could not be installed")


def _call(command: Sequence[str], failure: str, cwd: Path = ROOT, environment: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{failure}: {error}") from error
    if done.returncode:
        lines = f"{done.stdout}\n{done.stderr}".strip().splitlines() or ["no reason given"]
        # Maven's reason comes first, others' last.
        errors = [line.removeprefix("[ERROR] ") for line in lines if line.startswith("[ERROR] ")]
        raise Missing(f"{failure}: {(errors or lines[-1:])[0]}")
