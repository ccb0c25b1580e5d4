"""A real Spark standalone master with two workers, and a Connect server, as processes on this machine."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import pyspark

from penstock.pipeline import launch

ROOT = Path(__file__).parents[2]
HOME = Path(pyspark.__file__).parent
#: How long a program of Spark's, or one that uses the cluster, may take; it takes a minute beside other tests.
PATIENCE_S = 240.0
#: How long the processes have to write their stacks into their logs.
DUMP_S = 3.0
#: Of each log a failure shows so much.
TAIL = 3000
#: A thread of Java's that is at work for somebody, and not just one of a pool.
AT_WORK = re.compile(
    r"at org\.apache\.spark\.(sql|api\.python|executor\.Executor\$TaskRunner|scheduler\.DAGScheduler\.)"
)

#: Java compiles less: nothing here runs for long, and two cores are shared with other tests.
JAVA = " ".join(launch.QUICK)
# Workers say every so often where they are, and none is left without memory by one that has not gone yet.
SMALL = {
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": JAVA,
    "spark.executor.extraJavaOptions": JAVA,
    "spark.python.worker.tracebackDumpIntervalSeconds": "60",
}


def bare_python(path: Path) -> Path:
    """Make a Python that has PySpark and pyarrow, and of Penstock nothing."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
    (site,) = path.glob("lib/python*/site-packages")
    # A directory named in such a file is searched, but what is installed in it by such files is not.
    (site / "others.pth").write_text(str(HOME.parent))
    return path / "bin" / "python"


def packed(path: Path) -> Path:
    """Pack the package as one would for --py-files."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("penstock", "pyspark_penstock"):
            for file in sorted((ROOT / "src" / name).rglob("*.py")):
                archive.write(file, file.relative_to(ROOT / "src"))
    return path


class Cluster:
    """A master, two workers of one core each, and on demand a Connect server."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master: str

    def __enter__(self) -> Self:
        try:
            kind = "org.apache.spark.deploy"
            words = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
            self._start("master", str(HOME / "bin" / "spark-class"), f"{kind}.master.Master", *words)
            self.master = self._said("master", r"Starting Spark master at (spark://\S+)")
            for number in (1, 2):
                words = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g"]
                words += ["--work-dir", str(self._path / f"work-{number}"), self.master]
                self._start(f"worker-{number}", str(HOME / "bin" / "spark-class"), f"{kind}.worker.Worker", *words)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            _told(process, signal.SIGTERM)
        deadline = time.monotonic() + 20
        for process in self._processes:
            while _told(process, 0) and time.monotonic() < deadline:
                process.poll()
                time.sleep(0.05)
            _told(process, signal.SIGKILL)
            process.wait()

    def connect_server(self, python: str) -> str:
        """Start a Connect server on the cluster; return its address."""
        conf = {
            **SMALL,
            "spark.connect.grpc.binding.port": "0",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.python.filterPushdown.enabled": "true",
            "spark.sql.warehouse.dir": str(self._path / "warehouse"),
        }
        words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        script = str(HOME / "sbin" / "start-connect-server.sh")
        environment = {"SPARK_NO_DAEMONIZE": "1", "PYSPARK_PYTHON": python}
        self._start("connect", script, "--master", self.master, *words, **environment)
        return "sc://" + self._said("connect", r"Spark Connect server started at: (\S+)")

    def ran(self, words: Sequence[str], environment: Mapping[str, str], place: Path | None = None) -> str:
        """Run a program that uses the cluster; return what it printed. A failure tells what all of them said."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYSPARK"))}
        inherited.pop("PYTHONPATH", None)
        inherited |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONFAULTHANDLER": "1"}
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as said:
            child = subprocess.Popen(
                words, stdout=out, stderr=said, cwd=place, env={**inherited, **environment}, start_new_session=True
            )
            try:
                how = f"ended with {child.wait(PATIENCE_S)}"
            except subprocess.TimeoutExpired:
                how = f"took longer than {PATIENCE_S:g} s\n--- this process\n{self._dumped(child)}"
            finally:
                _told(child, signal.SIGKILL)
                child.wait()
            out.seek(0)
            said.seek(0)
            if child.returncode == 0:
                return out.read()
            texts = f"--- its output\n{_tail(out.read())}\n--- its errors\n{_tail(said.read())}"
            raise AssertionError(f"{' '.join(words[:3])} {how}\n{texts}\n{self.logs()}")

    def logs(self) -> str:
        """Return the ends of all logs, and where the threads are of those that were told to say so."""
        places = sorted([*self._path.glob("*.log"), *self._path.glob("work-*/*/*/std*")])
        return "\n".join(
            f"--- {path.relative_to(self._path)}\n{_tail(path.read_text(errors='replace'))}" for path in places
        )

    def _dumped(self, child: subprocess.Popen[bytes]) -> str:
        """Have a program and all of the cluster write down where their threads are; return where those here are."""
        for process in (child, *self._processes):
            for number in _javas(process.pid):
                os.kill(number, signal.SIGQUIT)
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file)
            time.sleep(DUMP_S)
            child.send_signal(signal.SIGABRT)  # Python says where it is, and ends
            time.sleep(DUMP_S)
            file.seek(0)
            return file.read()

    def _start(self, name: str, *words: str, **more: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYSPARK"))}
        environment.pop("PYTHONPATH", None)
        environment |= {
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOG_DIR": str(self._path),
            "SPARK_PID_DIR": str(self._path),
            "SPARK_DAEMON_JAVA_OPTS": JAVA,
            "SPARK_LAUNCHER_OPTS": JAVA,
            **more,
        }
        with open(self._path / f"{name}.log", "wb") as log:
            self._processes.append(
                subprocess.Popen(
                    words,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    cwd=self._path,
                    start_new_session=True,
                )
            )

    def _said(self, name: str, pattern: str) -> str:
        """Wait until a log has a line; return the word in it. Ports are told so: a free one may be taken meanwhile."""
        deadline = time.monotonic() + PATIENCE_S
        log = self._path / f"{name}.log"
        while time.monotonic() < deadline and self._processes[-1].poll() is None:
            found = re.search(pattern, log.read_text(errors="replace"))
            if found is not None:
                return found[1]
            time.sleep(0.1)
        raise AssertionError(f"the {name} did not start:\n{self.logs()}")


def _javas(group: int) -> Iterator[int]:
    """Return the Java processes of a group: Spark's scripts stay between, and would die of what Java answers."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue  # it has ended
        if name == "java" and int(rest.split()[2]) == group:
            yield int(path.parent.name)


def _tail(text: str) -> str:
    """Return the end of a log, and of a dump in it the threads that are at work."""
    before, _, dump = text.partition("Full thread dump")
    threads = [thread for thread in dump.split("\n\n") if AT_WORK.search(thread)]
    return "\n\n".join([before[-TAIL:], *threads])


def _told(process: subprocess.Popen[bytes], number: int) -> bool:
    """Send a signal to a program and its parents up to us: Spark's scripts stay between; False if all have ended."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True
