"""A network of the nodes' own, on one machine: each node is in a namespace, and can be cut off from any of the others.

Packets between two that are cut off vanish, as behind a switch that died: nobody is told, connections stay as they are.
What nobody else is in, etcd, Kafka and the clients, shares the machine's own namespace under addresses of its own.
Needs root, and `ip`.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Sequence

#: Nobody has this one, so what is sent there is lost.
NOBODY = "02:00:00:00:00:01"


def is_possible() -> bool:
    """Tell whether this process may make networks."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"penstock-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        _ip("netns", "delete", name)
    return made


class Network:
    """Addresses for etcd, Kafka and so many nodes, around one bridge."""

    def __init__(self, count: int) -> None:
        self._bridge = f"pk{os.getpid()}"
        self._count = 0
        taken = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=True).stdout
        free = [f"10.231.{number}" for number in range(256) if f" 10.231.{number}." not in taken]
        prefix = random.choice(free)
        self.etcd, self.kafka = f"{prefix}.2", f"{prefix}.3"
        self.nodes = [f"{prefix}.{11 + number}" for number in range(count)]
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
            for address in (f"{prefix}.1/24", self.etcd, self.kafka):
                _ip("address", "add", address, "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            for number in range(count):
                self._count = number + 1
                self._join(number)
        except BaseException:
            self.close()
            raise

    def _join(self, number: int) -> None:
        space, port = self._space(number), f"{self._bridge}n{number}"
        _ip("netns", "add", space)
        _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", port, "master", self._bridge, "up")
        _ip("-n", space, "address", "add", f"{self.nodes[number]}/24", "dev", "eth0")
        for each in ("lo", "eth0"):
            _ip("-n", space, "link", "set", each, "up")
        # Before it is looked whether a packet is for this machine, it can be asked where it is from.
        _ip("-n", space, "rule", "add", "pref", "10", "lookup", "local")
        _ip("-n", space, "rule", "delete", "pref", "0")

    def inside(self, number: int) -> list[str]:
        """Return what to put before a command that shall run where a node is."""
        return ["ip", "netns", "exec", self._space(number)]

    def cut(self, number: int, others: Sequence[str], *, only_hears_nothing: bool = False) -> None:
        """Lose all packets between a node and some others; or those that come to it alone."""
        space = self._space(number)
        for other in others:
            _ip("-n", space, "rule", "add", "pref", "5", "from", other, "blackhole")
            if not only_hears_nothing:
                _ip("-n", space, "neighbour", "replace", other, "lladdr", NOBODY, "dev", "eth0", "nud", "permanent")

    def mend(self, number: int) -> None:
        """Let all packets through again."""
        space = self._space(number)
        while _ip("-n", space, "rule", "list", "pref", "5").strip():
            _ip("-n", space, "rule", "delete", "pref", "5")
        _ip("-n", space, "neighbour", "flush", "dev", "eth0", "nud", "permanent")

    def close(self) -> None:
        """Leave nothing of it."""
        for number in range(self._count):
            for words in (["link", "delete", f"{self._bridge}n{number}"], ["netns", "delete", self._space(number)]):
                subprocess.run(["ip", *words], capture_output=True, check=False)
        subprocess.run(["ip", "link", "delete", self._bridge], capture_output=True, check=False)

    def _space(self, number: int) -> str:
        return f"penstock-{os.getpid()}-{number}"


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}"
    return done.stdout
