"""Real etcd servers on free ports: one member, or three, that can be killed, paused and started again."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from bench.ports import free_ports
from penstock.config import ZoneConfig
from tests.signals import stand_still

#: Longer than anything here takes on a slow machine.
PATIENCE_S = 60.0


def wait_for(holds: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.02)


class Etcd:
    """One member."""

    def __init__(
        self, name: str, folder: Path, ports: tuple[int, int], flags: Sequence[str], tls: bool, host: str = "127.0.0.1"
    ) -> None:
        self.name = name
        self.host = host
        self.port, self.peer_port = ports
        self.folder = folder
        self._flags = flags
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"localhost:{self.port}" if self._tls else f"{self.host}:{self.port}"

    def start(self) -> None:
        """Start it, or start it again with the data it has."""
        client, peer = f"http{'s' * self._tls}://{self.host}:{self.port}", f"http://{self.host}:{self.peer_port}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen(
            [
                *("etcd", "--name", self.name, "--data-dir", str(self.folder / "data"), "--logger", "zap"),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--heartbeat-interval", "50", "--election-timeout", "500", *self._flags),
            ],
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "ETCD_UNSUPPORTED_ARCH": os.uname().machine},
        )

    @property
    def is_started(self) -> bool:
        return self._process is not None

    def answers(self) -> bool:
        """Tell whether somebody listens, and for a server without certificates also whether it is well."""
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()[-2000:]
        try:
            if self._tls:
                socket.create_connection((self.host, self.port), 1).close()
                return True
            connection = http.client.HTTPConnection(self.host, self.port, timeout=2)
            try:
                connection.request("GET", "/health")
                return b'"true"' in connection.getresponse().read()
            finally:
                connection.close()
        except (OSError, http.client.HTTPException, ssl.SSLError):
            return False

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def pause(self) -> None:
        """Stop it, and wait until it stands."""
        if self._process is not None:
            stand_still(self._process)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)


class Cluster:
    """One member or several, started and well."""

    def __init__(
        self,
        folder: Path,
        count: int = 1,
        flags: Sequence[str] = (),
        *,
        tls: bool = False,
        host: str = "127.0.0.1",
    ) -> None:
        ports = free_ports(2 * count)
        names = [f"n{number}" for number in range(count)]
        peers = ",".join(f"{name}=http://{host}:{port}" for name, port in zip(names, ports[count:], strict=True))
        flags = ["--initial-cluster", peers, "--initial-cluster-token", folder.name, *flags]
        self.members = [
            Etcd(name, folder / name, pair, flags, tls, host)
            for name, pair in zip(names, zip(ports[:count], ports[count:], strict=True), strict=True)
        ]
        for member in self.members:
            member.start()
        self.wait()

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.endpoint for member in self.members)

    def zone(self) -> ZoneConfig:
        return ZoneConfig(endpoints=self.endpoints)

    def wait(self) -> None:
        """Wait until every member that was not killed is well, and knows who leads."""
        for member in self.members:
            if member.is_started:
                wait_for(member.answers, f"etcd {member.name}")

    def ctl(self, *words: str, stdin: bytes = b"") -> str:
        """Run etcdctl, an etcd client that shares no code with ours."""
        done = subprocess.run(
            ["etcdctl", "--endpoints", ",".join(self.endpoints), *words],
            input=stdin,
            capture_output=True,
            check=False,
            env={**os.environ, "ETCDCTL_API": "3"},
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def heal(self) -> None:
        """Let all members run again."""
        for member in self.members:
            member.resume()
            if not member.is_started:
                member.start()
        self.wait()

    def close(self) -> None:
        for member in self.members:
            member.resume()
            member.kill()
