"""`penstock doctor`: whether this machine can run a node well, one line per finding, each with what to do.

Looks at the machine and at a node that may be running on it; changes nothing but a probe file that it removes.
"""

from __future__ import annotations

import os
import platform
import resource
import stat
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from penstock.cli.client import target
from penstock.cli.command import Json
from penstock.cli.config import File, Settings, flags
from penstock.cli.failure import OK, REFUSED, Failure
from penstock.cli.ports import Holder, holder
from penstock.cli.printer import Printer, size
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.config import Config, Endpoint, Loaded

#: "The clock is not synchronised", the value adjtimex(2) returns then.
TIME_ERROR = 5
#: struct timex is 208 bytes on 64-bit Linux; a first field of 0 means: change nothing, which needs no rights.
TIMEX_BYTES = 208
#: A node makes offsets, manifests and indexes ahead of the data; below this it would soon refuse publishes.
FREE_BYTES_MIN = 256 << 20
FREE_BYTES_LOW = 2 << 30
#: One file per connection, three per shard; nsqd installations commonly have a few thousand clients.
OPEN_FILES_LOW = 4096
#: Group commit makes one sync serve many publishers, but each waits for one.
SYNC_SLOW_NS = 20_000_000
SYNC_COUNT = 64
#: A Kafka that does not answer for so long is away.
KAFKA_NS = 5_000_000_000
#: The first release of this program is younger than this (2026-01-01).
CLOCK_LEAST_S = 1_767_225_600
PACKAGES = (
    "penstock",
    "pyarrow",
    "numpy",
    "uvloop",
    "msgspec",
    "fastcrc",
    "httptools",
    "grpcio",
    "protobuf",
    "typer",
    "rich",
)
#: File systems that forget everything with the machine, or cannot promise what a log needs.
VOLATILE = ("tmpfs", "ramfs")
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs")

RUNNING = "a node is running"

Verdict = Literal["OK", "WARN", "FAIL"]
COLOURS: dict[Verdict, str] = {"OK": "32", "WARN": "33", "FAIL": "31;1"}


class Finding(NamedTuple):
    """One line of the doctor's."""

    verdict: Verdict
    what: str
    found: str
    todo: str = ""


class Readiness(msgspec.Struct):
    """What a node says about itself."""

    problems: list[str]
    degraded: list[str] = []


def doctor(file: File = None, settings: Settings = None, json: Json = False) -> int:
    """Look over this machine: configuration, ports, disk, clock, sync speed, limits, versions."""
    found = list(examine(file, flags(settings)))
    out = Printer(json=json)
    document = [finding._asdict() for finding in found]
    if json:
        out.document(document)
    else:
        _show(out, found)
    return REFUSED if any(finding.verdict == "FAIL" for finding in found) else OK


def examine(file: str | None, chosen: dict[str, object]) -> Iterator[Finding]:
    """Yield every finding, from the cheapest to the dearest."""
    from penstock.cli.table import load

    yield versions()
    try:
        loaded = load(file, chosen)
    except ConfigError as error:
        yield Finding("FAIL", "configuration", str(error), "correct it; `penstock config show` lists every setting")
        return
    config = loaded.config
    yield Finding("OK", "configuration", "can be used")
    yield user()
    yield open_files()
    yield clock()
    found = list(ports(config))
    yield from found
    if any(RUNNING in finding.found for finding in found):
        yield node(loaded)
    for zone, holds in zones(config).items():
        yield from etcd(config, zone, " and ".join(holds))
    if config.cluster.name:
        yield kafka(config)
    yield from directory(config.data_dir)
    yield readers(config.data_dir, config.data_mode == "group")


def versions() -> Finding:
    """Look at Python and the packages a node runs on."""
    from importlib.metadata import PackageNotFoundError, version

    found, missing = [], []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            missing.append(package)
    text = f"Python {platform.python_version()}, {', '.join(found)}"
    # The program itself may be run from its sources.
    if missing and missing != ["penstock"]:
        return Finding("FAIL", "versions", f"{text}; missing: {', '.join(missing)}", "run `make setup`")
    return Finding("OK", "versions", text)


def user() -> Finding:
    """Look at whom a node would run as."""
    if os.geteuid() == 0:
        return Finding("WARN", "user", "root", "run nodes as a user of their own, as deploy/penstock.service does")
    return Finding("OK", "user", f"number {os.geteuid()}")


def open_files() -> Finding:
    """Look at how many files and connections a node may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} now, {'no limit' if hard == resource.RLIM_INFINITY else hard} once a node raises it"
    if hard != resource.RLIM_INFINITY and hard < OPEN_FILES_LOW:
        return Finding("WARN", "open files", text, f"raise the hard limit to {OPEN_FILES_LOW} or more (ulimit -Hn)")
    return Finding("OK", "open files", text)


def clock() -> Finding:
    """Look at the wall clock, which due times and retention follow."""
    now_s = time.time()
    text = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(now_s))
    if now_s < CLOCK_LEAST_S:
        return Finding("FAIL", "clock", f"{text} is in the past", "set the clock before a node stamps messages with it")
    synchronised = kernel_says_synchronised()
    if synchronised is False:
        todo = "run chrony or systemd-timesyncd, unless the host of this machine does"
        return Finding("WARN", "clock", f"{text}, and the kernel knows of no time server", todo)
    return Finding("OK", "clock", f"{text}{', synchronised' if synchronised else ''}")


def kernel_says_synchronised() -> bool | None:
    """Tell whether a time server keeps this clock, None where the kernel cannot be asked."""
    import ctypes  # costs more than the rest of this package's imports together

    if platform.system() != "Linux" or ctypes.sizeof(ctypes.c_long) != 8:
        return None
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    # Room to spare, in case a C library's struct is larger.
    state = adjtimex(ctypes.create_string_buffer(2 * TIMEX_BYTES))
    return None if state < 0 else bool(state != TIME_ERROR)


def ports(config: Config) -> Iterator[Finding]:
    """Look at every listener: free, ours, or somebody else's."""
    from penstock.cli.table import TABLE
    from penstock.config import endpoints

    for endpoint in endpoints(config, TABLE):
        key, address, port = endpoint.key, endpoint.address, endpoint.port
        if endpoint.is_path:
            yield path(endpoint)
            continue
        what = f"port {port}"
        if not port:
            yield Finding("OK", key, "any free port")
            continue
        other = holder(port)
        if other is None and _can_bind(address, port):
            yield Finding("OK", what, f"free for {key}")
        elif other is not None and other.name == "penstock":
            yield Finding("OK", what, f"held by {other}: {RUNNING}")
        else:
            yield Finding("FAIL", what, f"{key} is taken by {other or 'another process'}", _way_out(config, other))


def path(endpoint: Endpoint) -> Finding:
    """Look at a listener in the file system."""
    directory = os.path.dirname(os.path.abspath(endpoint.address))
    what = f"socket {endpoint.address}"
    if not os.access(directory, os.W_OK | os.X_OK):
        return Finding("FAIL", what, f"{directory} cannot be written to", f"set {endpoint.key} to another place")
    if os.path.exists(endpoint.address) and not stat.S_ISSOCK(os.stat(endpoint.address).st_mode):
        return Finding("FAIL", what, "a file is there already", f"remove it, or set {endpoint.key} to another place")
    return Finding("OK", what, f"can be made for {endpoint.key}")


def node(loaded: Loaded) -> Finding:
    """Ask the running node how it is."""
    try:
        client = target(loaded)
    except Failure as failure:
        return Finding("WARN", "node", "was not asked", str(failure))
    try:
        answer = client.get("readyz", accept=(503,))
        said = answer.read(Readiness)
    except Failure as failure:
        return Finding("WARN", "node", str(failure), "look at its log")
    finally:
        client.close()
    if said.problems:
        return Finding("FAIL", "node", "; ".join(said.problems), "`penstock log verify` says more about damage")
    if said.degraded:
        return Finding("WARN", "node", "; ".join(said.degraded), "docs/operations.md says what each of them means")
    return Finding("OK", "node", f"ready at {client.url}")


def zones(config: Config) -> dict[str, list[str]]:
    """Return the zones of etcd that are in use, and what each holds."""
    from penstock.cli.table import TABLE

    found: dict[str, list[str]] = {}
    if config.registry.kind == "etcd":
        found.setdefault(config.registry.zone, []).append(config.registry.prefix)
    if config.routing.key:
        found.setdefault(config.routing.zone, []).append("the routing policy")
    for dialect in TABLE:
        for zone, what in dialect.zones(config):
            found.setdefault(zone, []).append(what)
    return found


def etcd(config: Config, zone: str, holds: str) -> Iterator[Finding]:
    """Ask every member of an etcd how it is."""
    import asyncio

    from penstock.registry.etcd.client import Client, Health

    async def asked() -> list[Health]:
        client = Client(zone, config.etcd.zones[zone])
        try:
            return await client.health()
        finally:
            await client.close()

    healths = asyncio.run(asked())
    well = sum(not health.problem for health in healths)
    for health in healths:
        what = f"etcd {health.endpoint}"
        if not health.problem:
            leads = ", leads" if health.is_leader else ""
            yield Finding("OK", what, f"version {health.version}{leads}, holds {holds}")
        elif 2 * well > len(healths):
            yield Finding("WARN", what, health.problem, "the others do without it; start it again")
        else:
            yield Finding("FAIL", what, health.problem, f"start it, or correct [etcd.zones.{zone}]")


def kafka(config: Config) -> Finding:
    """Ask the Kafka that holds the logs of the cluster what it has of it."""
    from penstock.log.kafka.librdkafka import KafkaStore

    brokers = ", ".join(config.shared_log.brokers)
    patience_ns = min(config.shared_log.patience_ns, KAFKA_NS)
    store = KafkaStore(msgspec.structs.replace(config.shared_log, patience_ns=patience_ns), config.cluster.name)
    try:
        topics = sum(name.endswith(".log") for name in store.topics())
        few = store.few()
    except OSError as error:
        return Finding("FAIL", f"kafka {brokers}", str(error), "start it, or correct [shared_log]")
    finally:
        store.close()
    if few:
        name, copies = next(iter(few.items()))
        found = f"{len(few)} topics of cluster {config.cluster.name} have too few copies, {name} has {copies}"
        way = "give them more (kafka-reassign-partitions), or set shared_log.replication to what is enough"
        return Finding("WARN", f"kafka {brokers}", found, way)
    return Finding("OK", f"kafka {brokers}", f"answers, holds {topics} logs of cluster {config.cluster.name}")


def directory(path: str) -> Iterator[Finding]:
    """Look at the place the data is kept: rights, kind, space, and how long a sync takes."""
    place = _nearest(path)
    shown = path if place == os.path.abspath(path) else f"{path} (to be made in {place})"
    if not os.path.isdir(place):
        yield Finding("FAIL", "data directory", f"{place} is no directory", "name another with --set data_dir=PATH")
        return
    if not os.access(place, os.W_OK | os.X_OK):
        todo = "make it writable for this user, or name another with --set data_dir=PATH"
        yield Finding("FAIL", "data directory", f"{shown} cannot be written to", todo)
        return
    yield _file_system(shown, place)
    yield from _lost(path)
    yield _space(place)
    yield sync_speed(place)


def readers(path: str, group: bool) -> Finding:
    """Look at who may read what is kept; what earlier versions made was open to everybody."""
    if not os.path.isdir(path):
        return Finding("OK", "readers", f"{path} will be made for its user{' and group' if group else ''} only")
    mode = os.stat(path).st_mode & 0o777
    text = f"mode {mode:04o}"
    if mode & 0o007:
        todo = f"chmod -R {'o-rwx' if group else 'go-rwx'} {path}"
        return Finding("WARN", "readers", f"{text}: every user of this machine gets into {path}", todo)
    if mode & 0o070 and not group:
        todo = f"chmod -R go-rwx {path}, or set data_mode=group if that is meant"
        return Finding("WARN", "readers", f"{text}: its group gets into {path}", todo)
    return Finding("OK", "readers", f"{text}: {'its user and group' if mode & 0o070 else 'its user'} only")


def _lost(path: str) -> Iterator[Finding]:
    """Look for topics that the registry does not know, and that a node set aside."""
    from penstock.log.reader import ReadOnlyDisk
    from penstock.rescue.directories import Directories

    for problem in Directories(ReadOnlyDisk(), path).problems():
        found, _, todo = problem.partition(". ")
        yield Finding("WARN", "lost topics", found, todo)


def sync_speed(place: str) -> Finding:
    """Measure what an fsync topic waits for: small appends, each followed by fdatasync."""
    probe = os.path.join(place, f".penstock-doctor-{os.getpid()}")
    try:
        taken_ns = sorted(_sync_times(probe))
    except OSError as error:
        return Finding("FAIL", "sync speed", f"{place}: {error.strerror}", "free space, or name another data directory")
    finally:
        if os.path.exists(probe):
            os.unlink(probe)
    p50_ns, p99_ns = taken_ns[len(taken_ns) // 2], taken_ns[len(taken_ns) * 99 // 100]
    text = f"fdatasync p50 {p50_ns / 1e6:.2f} ms, p99 {p99_ns / 1e6:.2f} ms"
    if p99_ns > SYNC_SLOW_NS:
        todo = "put fsync topics on a faster disk, or publish to them in batches"
        return Finding("WARN", "sync speed", text, todo)
    return Finding("OK", "sync speed", f"{text}: about {1e9 / max(p50_ns, 1):,.0f} group syncs a second")


def _sync_times(probe: str) -> Iterator[int]:
    fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for _ in range(SYNC_COUNT):
            os.write(fd, b"\0" * 4096)
            before_ns = time.perf_counter_ns()
            os.fdatasync(fd)
            yield time.perf_counter_ns() - before_ns
    finally:
        os.close(fd)


def _file_system(shown: str, place: str) -> Finding:
    kind = _kind_of(place)
    text = f"{shown} can be written to" + (f", on {kind}" if kind else "")
    if kind in VOLATILE:
        return Finding("WARN", "data directory", text, "everything there is gone after a restart of the machine")
    if kind in REMOTE:
        return Finding("WARN", "data directory", text, "use a local disk: locks and syncs are not what they seem there")
    return Finding("OK", "data directory", text)


def _space(place: str) -> Finding:
    disk = os.statvfs(place)
    free = disk.f_bavail * disk.f_frsize
    text = f"{size(free)} free of {size(disk.f_blocks * disk.f_frsize)}"
    if free < FREE_BYTES_MIN:
        return Finding("FAIL", "disk space", text, "free some: a full disk refuses publishes")
    if free < FREE_BYTES_LOW:
        return Finding("WARN", "disk space", text, "watch it, or lower topic.retention_bytes")
    return Finding("OK", "disk space", text)


def _kind_of(place: str) -> str:
    """Return the file system's kind, that of the longest mount point that holds the place."""
    best, kind = "", ""
    try:
        with open("/proc/self/mounts", encoding="utf-8") as file:
            mounts = [line.split()[1:3] for line in file]
    except OSError:
        return ""
    for point, name in mounts:
        point = point.replace("\\040", " ")
        if len(point) >= len(best) and os.path.commonpath([place, point]) == point:
            best, kind = point, name
    return kind


def _nearest(path: str) -> str:
    """Return the path, or the first directory above it that exists."""
    place = os.path.abspath(path)
    while not os.path.exists(place):
        place = os.path.dirname(place)
    return place


def _can_bind(address: str, port: int) -> bool:
    import socket

    try:
        family, kind, protocol, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError:
        return False
    return True


def _way_out(config: Config, other: Holder | None) -> str:
    stop = f"stop {other.name}" if other else "stop it"
    return f"{stop}, or start with --port-offset {config.port_offset + 1000}"


def _show(out: Printer, found: list[Finding]) -> None:
    width = max(len(finding.what) for finding in found)
    for finding in found:
        verdict = f"{finding.verdict:<4}"
        if out.terminal:
            verdict = f"\x1b[{COLOURS[finding.verdict]}m{verdict}\x1b[0m"
        todo = f" -> {finding.todo}" if finding.todo else ""
        out.line(f"{verdict}  {finding.what:<{width}}  {finding.found}{todo}")
