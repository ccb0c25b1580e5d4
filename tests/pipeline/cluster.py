"""A real Spark standalone master with two workers, and a Connect server, as processes on this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Self

import pyspark

ROOT = Path(__file__).parents[2]
HOME = Path(pyspark.__file__).parent
PATIENCE_S = 180.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
        self._port = free_port()
        self.master = f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        try:
            kind = "org.apache.spark.deploy"
            words = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0"]
            self._start("master", str(HOME / "bin" / "spark-class"), f"{kind}.master.Master", *words)
            self._reachable(self._port)
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
        port = free_port()
        conf = {
            "spark.connect.grpc.binding.port": str(port),
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
        self._reachable(port)
        return f"sc://127.0.0.1:{port}"

    def _start(self, name: str, *words: str, **more: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYSPARK"))}
        environment.pop("PYTHONPATH", None)
        environment |= {
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOG_DIR": str(self._path),
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

    def _reachable(self, port: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if self._processes[-1].poll() is not None:
                break
            try:
                with socket.create_connection(("127.0.0.1", port), 1) as made:
                    # A port of the ephemeral range may be connected to itself while nobody listens.
                    if made.getsockname() != made.getpeername():
                        return
            except OSError:
                time.sleep(0.2)
        logs = "".join(path.read_text(errors="replace")[-2000:] for path in self._path.glob("*.log"))
        raise AssertionError(f"nobody listens on port {port}: {logs}")


def _told(process: subprocess.Popen[bytes], number: int) -> bool:
    """Send a signal to a program and its parents up to us: Spark's scripts stay between; False if all have ended."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True
