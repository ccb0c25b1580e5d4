"""`nsqd`: a Penstock node under the name and flags of upstream's daemon, for scripts and tools that start one.

Owns what each of nsqd's flags means here. Opens NSQ's own ports only: no lookup service and no admin API, so several
can run on one machine. Settings without a flag come from PENSTOCK_* variables; no penstock.toml is read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock import __version__
from penstock.cli import goflags
from penstock.cli.goflags import Flag, Given

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.dialect import Bound

#: What clients and tools take this for.
VERSION = "1.3.0"

_STORED = "every message is in the log before it is answered"
_NOT_YET = "Penstock does not offer it yet"

LOG_LEVELS = {"warn": "warning", "fatal": "error"}


def log_level(text: str) -> str:
    """Return our name of upstream's log level."""
    return LOG_LEVELS.get(text.lower(), text.lower())


def yes_or_no(text: str) -> str:
    """Return whether TLS is asked for; upstream's third word asks for it too, and leaves plain HTTP open."""
    return "true" if text == "tcp-https" else text


def policy(text: str) -> str:
    """Return whether clients must show certificates; upstream's word for no is none at all."""
    return text or "none"


#: What upstream would also speak, and nobody should any more.
OLD_TLS = ("ssl3.0", "tls1.0", "tls1.1")


def tls_version(text: str) -> str:
    """Return the oldest version that is spoken, which is never older than TLS 1.2."""
    return "tls1.2" if text in OLD_TLS else text


#: The flags every daemon of upstream's has.
SHARED: dict[str, Flag] = {
    "version": Flag("print the version", switch=True),
    "help": Flag("print this list", switch=True),
    "h": Flag("print this list", switch=True),
    "config": Flag("file with these settings, as upstream writes it"),
    "log-level": Flag("debug, info, warn, error or fatal", "log.level", convert=log_level),
    "log-prefix": Flag("text before each line of the log", idle="lines begin with time and level"),
    "verbose": Flag("more log", switch=True, idle="use --log-level"),
}

FLAGS: dict[str, Flag] = {
    **SHARED,
    "tcp-address": Flag("HOST:PORT for TCP clients (127.0.0.1:4150)"),
    "http-address": Flag("HOST:PORT for HTTP clients (127.0.0.1:4151)"),
    "https-address": Flag("HOST:PORT for HTTPS clients (127.0.0.1:4152)"),
    "lookupd-tcp-address": Flag(
        "HOST:PORT of a lookup service, may be repeated",
        "nsq.lookupd_tcp_addresses",
        repeats=True,
        in_file="nsqlookupd_tcp_addresses",
    ),
    "broadcast-address": Flag("address that lookup services hand out", "nsq.broadcast_address"),
    "broadcast-tcp-port": Flag("TCP port that lookup services hand out", refused=_NOT_YET),
    "broadcast-http-port": Flag("HTTP port that lookup services hand out", refused=_NOT_YET),
    "data-path": Flag("directory for the data (./penstock-data)", "data_dir"),
    "tls-cert": Flag("certificate file", "tls_cert"),
    "tls-key": Flag("key file", "tls_key"),
    "tls-required": Flag("TLS only: true, false or tcp-https", "nsq.tls_required", switch=True, convert=yes_or_no),
    "tls-client-auth-policy": Flag(
        "ask clients for certificates: require or require-verify", "nsq.tls_client_auth_policy", convert=policy
    ),
    "tls-root-ca-file": Flag("who signs clients' certificates", "nsq.tls_root_ca_file"),
    "tls-min-version": Flag("oldest TLS version: tls1.2 or tls1.3", "nsq.tls_min_version", convert=tls_version),
    "auth-http-address": Flag(
        "auth server, may be repeated", "nsq.auth_http_addresses", repeats=True, in_file="auth_http_addresses"
    ),
    "max-msg-size": Flag("bytes of a message", "nsq.max_msg_size"),
    "max-body-size": Flag("bytes of a command's body", "nsq.max_body_size"),
    "max-rdy-count": Flag("RDY of a client", "nsq.max_rdy_count"),
    "max-channel-consumers": Flag("consumers of a channel, 0 for no limit", "nsq.max_channel_consumers"),
    "msg-timeout": Flag("time before a message is delivered again", "nsq.msg_timeout"),
    "max-msg-timeout": Flag("longest such time a client may ask for", "nsq.max_msg_timeout"),
    "max-req-timeout": Flag("longest delay of a requeue", "nsq.max_req_timeout"),
    "max-heartbeat-interval": Flag("longest a client may ask for", "nsq.max_heartbeat_interval"),
    "max-output-buffer-size": Flag("most a client may ask for", "nsq.max_output_buffer_size"),
    "max-output-buffer-timeout": Flag("longest a client may ask for", "nsq.max_output_buffer_timeout"),
    "min-output-buffer-timeout": Flag("shortest a client may ask for", idle="it is 25 ms"),
    "output-buffer-timeout": Flag(
        "time between writes to a client", idle="frames leave in the turn they are made unless a client asks otherwise"
    ),
    "mem-queue-size": Flag("messages in memory", idle=_STORED),
    "max-bytes-per-file": Flag("bytes of a file of the log", "topic.segment_bytes"),
    "sync-every": Flag("messages between two syncs; 1 answers publishers after the sync"),
    "sync-timeout": Flag("time between two syncs", idle=_STORED),
    "node-id": Flag("part of message ids", idle="ids are places in the log", in_file="id"),
    "worker-id": Flag("part of message ids", idle="ids are places in the log"),
    "http-client-connect-timeout": Flag("of requests to others", idle="it is 5 s"),
    "http-client-request-timeout": Flag("of requests to others", idle="it is 5 s"),
    "queue-scan-worker-pool-max": Flag("timeout scanners", idle="nothing is scanned for timeouts"),
    "queue-scan-selection-count": Flag("channels a scan looks at", idle="nothing is scanned for timeouts"),
    "statsd-address": Flag("HOST:PORT of a StatsD server", "nsq.statsd_address"),
    "statsd-interval": Flag("time between pushes", "nsq.statsd_interval"),
    "statsd-mem-stats": Flag("push memory figures too", "nsq.statsd_mem_stats", switch=True),
    "statsd-prefix": Flag("before each name, %s for this host", "nsq.statsd_prefix"),
    "statsd-udp-packet-size": Flag("bytes of a packet", "nsq.statsd_udp_packet_size"),
    "statsd-exclude-ephemeral": Flag("leave out ephemeral names", "nsq.statsd_exclude_ephemeral", switch=True),
    "e2e-processing-latency-percentile": Flag(
        "percentiles to keep, may be repeated",
        "nsq.e2e_processing_latency_percentiles",
        repeats=True,
        in_file="e2e_processing_latency_percentiles",
    ),
    "e2e-processing-latency-window-time": Flag("how far back", "nsq.e2e_processing_latency_window_time"),
    "deflate": Flag("offer deflate", "nsq.deflate", switch=True),
    "max-deflate-level": Flag("highest level a client may ask for", "nsq.max_deflate_level"),
    "snappy": Flag("offer snappy", "nsq.snappy", switch=True),
}

#: The ports that nsqd opens, by flag; the last only with a certificate.
PORTS = {"tcp-address": "nsq.tcp_port", "http-address": "nsq.http_port", "https-address": "nsq.https_port"}


def main() -> None:
    """Run the program and end with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Carry out one command line and return its exit code."""
    from penstock.cli.daemon import run as serve

    return program("nsqd", arguments, FLAGS, chosen, lambda config: serve(config, None, shower("nsqd")))


def chosen(given: Given, warn: Callable[[str], None]) -> dict[str, object]:
    """Return the settings that a command line of nsqd's asks for, by dotted name."""
    settings = goflags.settings(given, FLAGS, warn)
    dialects = ("api", "flight", "sqs", "dynamiq", "m3msg", "timeline")
    settings |= dict.fromkeys((*(f"{name}.enabled" for name in dialects), "nsq.lookup"), False)
    settings |= {"data_dir": settings.get("data_dir") or "./penstock-data"}
    settings |= ports(given, PORTS)
    if given.get("https-address", [""])[-1] and not settings.get("tls_cert"):
        warn("--https-address has no effect without --tls-cert and --tls-key")
    if given.get("tls-required", [""])[-1] == "tcp-https":
        settings["nsq.plain_http"] = True
    asked = given.get("tls-client-auth-policy", [""])[-1]
    if asked:  # as upstream has it: who asks for certificates asks for TLS
        settings["nsq.tls_required"] = True
    if asked == "require":
        warn("--tls-client-auth-policy=require is taken for require-verify: a certificate must be signed to count")
    if given.get("tls-min-version", [""])[-1] in OLD_TLS:
        warn("--tls-min-version: TLS 1.2 is the oldest that is spoken")
    if "sync-every" in given:
        if given["sync-every"][-1] == "1":
            settings["topic.durability"] = "fsync"
        else:
            warn(f"--sync-every has no effect unless it is 1: {_STORED}")
    # Upstream has no order among these, so a limit that is given moves the others that it would contradict.
    if "max-msg-size" in given:
        most = _int(given["max-msg-size"][-1])
        settings["node.message_bytes"] = str(max(most, 1 << 20))
        if "max-body-size" not in given:
            settings["nsq.max_body_size"] = str(max(most, 5 << 20))
    if "max-heartbeat-interval" in given:
        from penstock.config import format_duration, parse_duration

        most_ns = parse_duration(given["max-heartbeat-interval"][-1])
        settings["nsq.heartbeat_interval"] = format_duration(min(most_ns, parse_duration("30s")))
    return settings


def ports(given: Given, keys: Mapping[str, str]) -> dict[str, object]:
    """Return the settings of address and ports, by dotted name."""
    places = {name: goflags.address(name, given[name][-1]) for name in keys if given.get(name, [""])[-1]}
    found: dict[str, object] = {keys[name]: port for name, (_, port) in places.items()}
    host = goflags.one_host({name: host for name, (host, _) in places.items()})
    return found if host is None else found | {"nsq.address": host}


def program(
    name: str,
    arguments: list[str],
    flags: goflags.Flags,
    chosen: Callable[[Given, Callable[[str], None]], dict[str, object]],
    serve: Callable[[Config], None],
    load: Callable[[str, dict[str, object]], Config] | None = None,
) -> int:
    """Run one of upstream's daemons and return its exit code; `load` where it listens elsewhere than a node."""
    from penstock.cli import table
    from penstock.cli.failure import OK, REFUSED, USAGE
    from penstock.errors import ConfigError, PenstockError

    try:
        given = goflags.parse(arguments, flags)
        if goflags.is_on(given, "version"):
            print(version(name))
            return OK
        if goflags.is_on(given, "help") or goflags.is_on(given, "h"):
            print(goflags.usage(name, flags))
            return OK
        if given.get("config", [""])[-1]:
            given = goflags.from_file(given["config"][-1], flags) | given
        settings = chosen(given, goflags.warner(name))
        serve(load(os.devnull, settings) if load is not None else table.load(os.devnull, settings).config)
    except ConfigError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return USAGE
    except PenstockError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return REFUSED
    return OK


def version(name: str) -> str:
    """Return the line that tools parse."""
    return f"{name} v{VERSION} (built w/penstock-{__version__})"


#: What upstream calls each port in the lines it writes.
NAMES = {
    "nsq.tcp_port": "TCP",
    "nsq.http_port": "HTTP",
    "nsq.https_port": "HTTPS",
    "nsq.lookup_tcp_port": "TCP",
    "nsq.lookup_http_port": "HTTP",
}


def shower(name: str) -> Callable[[Config, Sequence[Bound]], None]:
    """Return what says on standard error where a daemon listens, in upstream's words."""

    def show(config: Config, bound: Sequence[Bound]) -> None:
        lines = [version(name)]
        for each in bound:
            _, _, place = each.place.rpartition("/")
            lines.append(f"{NAMES[each.endpoint.key]}: listening on {place}")
        sys.stderr.write("".join(f"[{name}] INFO: {line}\n" for line in lines))
        sys.stderr.flush()

    return show


def _int(text: str) -> int:
    from penstock.errors import ConfigError

    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ConfigError(f'"{text}" is not a number of bytes')
    return int(text)
