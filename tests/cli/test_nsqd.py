"""`nsqd` and `nsqlookupd`: upstream's command lines, and what they mean here."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import ssl
import subprocess
import urllib.request
from pathlib import Path

import pytest

from penstock.cli import goflags, lookupd, nsqd, nsqlookupd
from penstock.cli.table import TABLE, load
from penstock.config import Config, endpoints
from penstock.dialects.nsq.config import NsqConfig
from penstock.errors import ConfigError
from tests.nsq.lookup.programs import PATIENCE_S, Program, ours


def configured(*arguments: str) -> Config:
    warnings: list[str] = []
    return load(os.devnull, nsqd.chosen(goflags.parse(arguments, nsqd.FLAGS), warnings.append), {}).config


def warned(*arguments: str) -> list[str]:
    warnings: list[str] = []
    nsqd.chosen(goflags.parse(arguments, nsqd.FLAGS), warnings.append)
    return warnings


def refused(*arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        configured(*arguments)
    return str(caught.value)


def output(run: object, *arguments: str) -> tuple[int, str, str]:
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = run(list(arguments))  # type: ignore[operator]
    return code, out.getvalue(), errors.getvalue()


def test_the_version_looks_like_upstreams() -> None:
    # One word behind the slash, as Go's version is: gnsq takes the line apart.
    for flag in ("--version", "-version", "--version=true"):
        code, out, _ = output(nsqd.run, flag)
        assert (code, out) == (0, "nsqd v1.3.0 (built w/penstock-0.1.0)\n")
    assert output(nsqlookupd.run, "-version")[1].startswith("nsqlookupd v1.3.0 (built w/")


def test_help_lists_every_flag() -> None:
    for run, flags in ((nsqd.run, nsqd.FLAGS), (nsqlookupd.run, nsqlookupd.FLAGS)):
        code, out, _ = output(run, "-h")
        assert code == 0
        assert all(f"  --{name} " in out for name in flags)


@pytest.mark.parametrize(
    "form",
    [
        ("--max-msg-size=100", "--tcp-address=127.0.0.1:9"),
        ("-max-msg-size=100", "-tcp-address=127.0.0.1:9"),
        ("--max-msg-size", "100", "-tcp-address", "127.0.0.1:9"),
    ],
)
def test_one_dash_or_two_and_equals_or_space(form: tuple[str, ...]) -> None:
    config = configured(*form)
    assert (config.of(NsqConfig).max_msg_size, config.of(NsqConfig).tcp_port) == (100, 9)


def test_flags_become_settings() -> None:
    config = configured(
        "--tcp-address=127.0.0.1:1",
        "--http-address=127.0.0.1:2",
        "--https-address=127.0.0.1:3",
        "--lookupd-tcp-address=a:4160",
        "--lookupd-tcp-address=b:4160",
        "--broadcast-address=me",
        "--data-path=/d",
        "--max-msg-size=10485760",
        "--max-rdy-count=50",
        "--msg-timeout=1m0s",
        "--max-msg-timeout=5m",
        "--max-req-timeout=1h0m0s",
        "--max-heartbeat-interval=10s",
        "--max-channel-consumers=1",
        "--log-level=WARN",
        "--sync-every=1",
        "--max-bytes-per-file=104857600",
        "--statsd-address=127.0.0.1:8125",
        "--statsd-mem-stats=false",
        "--e2e-processing-latency-percentile=0.99,0.5",
        "--e2e-processing-latency-percentile=1.0",
    )
    nsq = config.of(NsqConfig)
    assert (nsq.tcp_port, nsq.http_port, nsq.https_port, nsq.address) == (1, 2, 3, "127.0.0.1")
    assert nsq.lookupd_tcp_addresses == ("a:4160", "b:4160")
    assert (nsq.broadcast_address, config.data_dir, nsq.max_rdy_count) == ("me", "/d", 50)
    assert (nsq.max_msg_size, nsq.max_body_size) == (10 << 20, 10 << 20)
    assert (nsq.msg_timeout_ns, nsq.max_msg_timeout_ns, nsq.max_req_timeout_ns) == (
        60 * 10**9,
        300 * 10**9,
        3600 * 10**9,
    )
    assert (nsq.max_heartbeat_interval_ns, nsq.heartbeat_interval_ns) == (10**10, 10**10)
    assert (nsq.max_channel_consumers, config.log.level) == (1, "warning")
    assert (nsq.statsd_address, nsq.statsd_mem_stats) == ("127.0.0.1:8125", False)
    assert nsq.e2e_processing_latency_percentiles == ("0.99", "0.5", "1.0")
    assert (config.topic.durability, config.topic.segment_bytes) == ("fsync", 100 << 20)


def test_only_nsqs_own_ports_are_opened() -> None:
    assert [endpoint.key for endpoint in endpoints(configured(), TABLE)] == ["nsq.tcp_port", "nsq.http_port"]


def test_a_flag_without_meaning_here_is_a_warning() -> None:
    assert warned("--mem-queue-size=10000") == [
        "--mem-queue-size has no effect: every message is in the log before it is answered"
    ]
    assert warned("--max-msg-size=5") == []
    assert len(warned("--worker-id=1", "--sync-every=2500")) == 2
    assert warned("--https-address=127.0.0.1:1") == ["--https-address has no effect without --tls-cert and --tls-key"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--max-msg-sise=1"], "there is no flag --max-msg-sise; did you mean --max-msg-size?"),
        (["--zzz"], "there is no flag --zzz; --help lists them all"),
        (["--max-msg-size"], "--max-msg-size needs a value: --max-msg-size=..."),
        (["--max-msg-size=many"], '"many" is not a number of bytes'),
        (["data"], '"data" is not understood; only flags are'),
        (["--"], '"--" is not understood'),
        (["--tcp-address=/run/nsqd.sock"], '--tcp-address "/run/nsqd.sock" is no address'),
        (["--tcp-address=a:1", "--http-address=b:2"], "--tcp-address and --http-address must name the same host"),
        (
            ["--tcp-address=:4150"],
            'nsq.address = "0.0.0.0" opens NSQ (nsq.tcp_port) beyond this machine without TLS and callers',
        ),
        (["--lookupd-tcp-address=x"], 'nsq.lookupd_tcp_addresses: "x" is no address; write HOST:PORT'),
        (["--tls-client-auth-policy=require"], "nsq.tls_required needs a certificate"),
        (["--tls-client-auth-policy=maybe"], "flag: nsq.tls_client_auth_policy"),
        (["--tls-min-version=tls1.4"], "flag: nsq.tls_min_version"),
        (["--tls-root-ca-file=none.pem"], 'nsq.tls_root_ca_file = "none.pem": no such file'),
        (["--tls-required"], "nsq.tls_required needs a certificate"),
        (["--config=none.cfg"], "--config none.cfg cannot be read"),
    ],
)
def test_what_cannot_be_had_is_one_clear_line(arguments: list[str], text: str) -> None:
    code, _, errors = output(nsqd.run, *arguments)
    assert code == 2
    assert errors.splitlines()[-1].startswith(f"nsqd: {text}")


def test_upgrades_and_the_auth_server_are_configured() -> None:
    config = configured("--snappy=false", "--deflate=false", "--max-deflate-level=3", "--auth-http-address=a:1")
    nsq = config.of(NsqConfig)
    assert (nsq.snappy, nsq.deflate, nsq.max_deflate_level, nsq.auth_http_addresses) == (False, False, 3, ("a:1",))
    assert nsqd.yes_or_no("tcp-https") == "true"


def test_a_switch_that_is_off_asks_for_nothing() -> None:
    assert configured("--tls-required=false").of(NsqConfig).tcp_port == 4150


def test_upstreams_configuration_file_is_read_and_flags_win(tmp_path: Path) -> None:
    file = tmp_path / "nsqd.cfg"
    file.write_text(
        'nsqlookupd_tcp_addresses = ["a:1", "b:2"]\nmax_msg_size = 7\nmax_rdy_count = 9\ntls_required = false\n'
    )
    given = goflags.from_file(str(file), nsqd.FLAGS) | goflags.parse(["--max-rdy-count=3"], nsqd.FLAGS)
    config = load(os.devnull, nsqd.chosen(given, lambda text: None), {}).config
    assert config.of(NsqConfig).lookupd_tcp_addresses == ("a:1", "b:2")
    assert (config.of(NsqConfig).max_msg_size, config.of(NsqConfig).max_rdy_count) == (7, 3)
    file.write_text("max_msg_sise = 1\n")
    with pytest.raises(ConfigError, match="there is no setting max_msg_sise; did you mean max_msg_size"):
        goflags.from_file(str(file), nsqd.FLAGS)


def test_nsqlookupds_flags_become_settings() -> None:
    given = goflags.parse(
        ["-tcp-address=127.0.0.1:4150", "-tombstone-lifetime=1s", "-inactive-producer-timeout=2s"], nsqlookupd.FLAGS
    )
    config = lookupd.load(os.devnull, nsqlookupd.chosen(given, lambda text: None))
    places = {endpoint.key: endpoint.place(endpoint.port) for endpoint in endpoints(config, TABLE)}
    assert places["nsq.lookup_tcp_port"] == "127.0.0.1:4150"
    nsq = config.of(NsqConfig)
    assert (nsq.tombstone_lifetime_ns, nsq.inactive_producer_timeout_ns) == (10**9, 2 * 10**9)
    assert "api.port" not in places


def test_a_taken_port_names_its_holder(tmp_path: Path) -> None:
    with Program(ours("nsqlookupd"), cwd=tmp_path) as running:
        code, _, errors = output(nsqlookupd.run, f"--tcp-address={running.tcp}")
        assert code == 2
        assert errors.startswith(f"nsqlookupd: port {running.port('TCP')} is taken by ")


def test_nsqd_serves_https_with_a_certificate(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    names = ["-subj", "/CN=localhost", "-days", "2", "-out", str(cert), "-keyout", str(key)]
    subprocess.run([*request, *names], check=True, capture_output=True, timeout=PATIENCE_S)
    flags = (f"--tls-cert={cert}", f"--tls-key={key}", "--https-address=127.0.0.1:0", f"--data-path={tmp_path / 'd'}")
    with Program(ours("nsqd"), *flags, cwd=tmp_path, ports=3) as node:
        context = ssl.create_default_context(cafile=str(cert))
        context.check_hostname = False
        with urllib.request.urlopen(f"https://127.0.0.1:{node.port('HTTPS')}/ping", context=context) as answer:
            assert answer.read() == b"OK"
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(PATIENCE_S) == 0


def test_two_nodes_run_beside_a_lookup_service(tmp_path: Path) -> None:
    with (
        Program(ours("nsqlookupd"), cwd=tmp_path),
        Program(ours("nsqd"), "--data-path=one", cwd=tmp_path) as one,
        Program(ours("nsqd"), "--data-path=two", cwd=tmp_path) as two,
    ):
        for node in (one, two):
            with socket.create_connection(("127.0.0.1", node.port("TCP")), PATIENCE_S) as connection:
                connection.sendall(b"  V2NOP\nASDF\n")
                assert b"E_INVALID" in connection.recv(100)
