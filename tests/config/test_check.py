"""Configurations that are well formed and still must not start."""

import re
from pathlib import Path

import pytest

from penstock.cli.table import TABLE, load
from penstock.config import Config, endpoints, is_loopback
from penstock.errors import ConfigError


def loaded(**flags: object) -> Config:
    return load(flags={name.replace("__", "."): value for name, value in flags.items()}, environment={}).config


def refused(**flags: object) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(**flags)
    return str(caught.value)


def certificate(tmp_path: Path) -> dict[str, object]:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.touch()
    key.touch()
    return {"tls_cert": str(cert), "tls_key": str(key)}


@pytest.mark.parametrize(("section", "what"), [("api", "admin API (api.port)"), ("nsq", "NSQ (nsq.tcp_port)")])
@pytest.mark.parametrize("address", ["0.0.0.0", "::", "", "10.1.2.3", "broker.example"])
def test_beyond_loopback_needs_tls_and_callers(section: str, what: str, address: str) -> None:
    message = refused(**{f"{section}__address": address})
    assert message.startswith(
        f'{section}.address = "{address}" opens {what} beyond this machine without TLS and callers'
    )
    assert "; set " in message
    assert message.endswith("--insecure (insecure = true)")


def test_a_token_of_the_node_is_asked_for_everywhere_and_replaces_no_tls(tmp_path: Path) -> None:
    both = {**certificate(tmp_path), "token": "x"}
    assert loaded(api__address="0.0.0.0", flight__address="0.0.0.0", **both).token == "x"
    assert "without TLS; set tls_cert" in refused(nsq__address="0.0.0.0", **both)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "opens NSQ (nsq.tcp_port) beyond this machine without TLS and callers"),
        ({"nsq__tls_required": True}, "opens NSQ (nsq.tcp_port) beyond this machine without callers"),
        ({"nsq__auth_http_addresses": "auth:80"}, "opens NSQ (nsq.tcp_port) beyond this machine without TLS"),
        (
            {"nsq__tls_required": True, "nsq__auth_http_addresses": "auth:80"},
            "opens NSQ HTTPS (nsq.https_port) beyond this machine without callers",
        ),
        (
            {"nsq__tls_required": True, "nsq__tls_client_auth_policy": "require", "nsq__plain_http": True},
            "opens NSQ HTTP (nsq.http_port) beyond this machine without TLS and callers",
        ),
        (
            {"nsq__tls_required": True, "nsq__tls_client_auth_policy": "require"},
            "opens NSQ lookup (nsq.lookup_tcp_port) beyond this machine without TLS and callers; its protocol has",
        ),
    ],
)
def test_every_listener_of_nsq_is_looked_at(tmp_path: Path, settings: dict[str, object], said: str) -> None:
    assert said in refused(nsq__address="0.0.0.0", **certificate(tmp_path), **settings)


def test_nsq_may_be_opened_with_certificates_on_both_sides(tmp_path: Path) -> None:
    safe = {"nsq__tls_required": True, "nsq__tls_client_auth_policy": "require", "nsq__lookup": False}
    assert loaded(nsq__address="0.0.0.0", **certificate(tmp_path), **safe).insecure is False


def test_the_risk_can_be_taken_by_saying_so() -> None:
    assert loaded(nsq__address="0.0.0.0", api__address="0.0.0.0", insecure=True).insecure


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_loopback_needs_neither(address: str) -> None:
    assert is_loopback(address)
    assert loaded(api__address=address).token == ""


def test_tls_needs_both_files_and_they_must_be_readable(tmp_path: Path) -> None:
    cert = tmp_path / "cert.pem"
    cert.touch()
    assert refused(tls_cert=str(cert)).startswith("tls_key is not set")
    assert refused(tls_key=str(cert)).startswith("tls_cert is not set")
    assert "no such file" in refused(tls_cert=str(cert), tls_key=str(tmp_path / "none"))


def test_limits_must_agree_with_each_other() -> None:
    assert refused(nsq__msg_timeout="20m") == (
        "nsq.msg_timeout = 20m is above nsq.max_msg_timeout = 15m; lower it, or raise nsq.max_msg_timeout"
    )
    assert "nsq.max_body_size" in refused(nsq__max_msg_size="6MiB", node__message_bytes="6MiB")
    assert refused(nsq__max_msg_size="2MiB").endswith("lower it, or raise node.message_bytes")
    assert "nsq.max_heartbeat_interval" in refused(nsq__heartbeat_interval="5m")
    assert "memory.input_bytes" in refused(memory__input_bytes="1MiB")
    assert "memory.body_bytes" in refused(memory__body_bytes="1MiB")


def test_ports_are_moved_by_the_offset_but_for_any_free_one() -> None:
    config = loaded(port_offset=1000, nsq__http_port=0)
    assert {each.key: (each.address, each.port) for each in endpoints(config, TABLE)} == {
        "api.port": ("127.0.0.1", 8070),
        "flight.port": ("127.0.0.1", 8071),
        "dynamiq.port": ("127.0.0.1", 9081),
        "m3msg.port": ("127.0.0.1", 8507),
        "nsq.tcp_port": ("127.0.0.1", 5150),
        "nsq.http_port": ("127.0.0.1", 0),
        "nsq.lookup_tcp_port": ("127.0.0.1", 5160),
        "nsq.lookup_http_port": ("127.0.0.1", 5161),
        "sqs.port": ("127.0.0.1", 10324),
        "timeline.port": ("127.0.0.1", 10000),
    }


def test_an_offset_may_not_push_a_port_out_of_range() -> None:
    assert refused(port_offset=60000) == (
        "api.port with port_offset is 67070, beyond 65535; choose a smaller port_offset"
    )


def test_two_listeners_may_not_share_a_port() -> None:
    assert refused(api__port=4150) == "nsq.tcp_port and api.port are both 4150; give one of them another port"


def test_a_data_directory_must_be_named() -> None:
    assert "data_dir is empty" in refused(data_dir="")


@pytest.mark.parametrize("label", ["topic", "__x"])
def test_labels_of_metrics_that_cannot_be_are_refused(label: str) -> None:
    assert f'metrics.labels: "{label}"' in refused(metrics__labels=f'{{"{label}": "x"}}')


def test_labels_of_metrics_are_read() -> None:
    assert loaded(metrics__labels='{"stage": "prod"}').metrics.labels == {"stage": "prod"}


CLUSTER: dict[str, object] = {
    "cluster__name": "blue",
    "registry__kind": "etcd",
    "cluster__node": "n1",
    "cluster__secret_file": __file__,
}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"registry__kind": "embedded"}, 'set registry.kind = "etcd" and [etcd.zones.default] endpoints'),
        ({"cluster__name": "a.b"}, 'cluster.name = "a.b" is no name for Kafka\'s topics; it has 1 to 64 letters'),
        ({"cluster__name": "ö"}, 'cluster.name = "ö" is no name'),
        ({"cluster__name": "x" * 65}, "1 to 64 letters"),
        ({"cluster__node": "n/1"}, 'cluster.node, "n/1", names no node'),
        ({"cluster__lease": "1s"}, "cluster.lease is below 2s"),
        ({"cluster__advertise": "n1"}, 'cluster.advertise: "n1" is no address'),
        (
            {"cluster__address": "0.0.0.0"},
            "other nodes can reach; tell them another: cluster.advertise",
        ),
        ({"cluster__secret_file": "/no/such"}, 'cluster.secret_file = "/no/such": no such file'),
        ({"cluster__secret_file": ""}, "cluster.secret_file is not set; nodes trust each other"),
        ({"cluster__tls_ca": "/dev/null"}, "cluster.tls_ca is set without cluster.tls_cert"),
        ({"cluster__port": 4150}, "are both 4150"),
        ({"shared_log__brokers": ""}, "shared_log.brokers is empty"),
        ({"shared_log__brokers": "kafka"}, 'shared_log.brokers: "kafka" is no address'),
        ({"shared_log__tls_ca": "/dev/null"}, "shared_log.tls is false, and it has certificates"),
        ({"shared_log__sasl": "PLAIN"}, "shared_log.sasl and user go together"),
        ({"shared_log__user": "me"}, "shared_log.password_file is not set"),
    ],
)
def test_a_cluster_that_could_not_come_to_be_is_refused(settings: dict[str, object], said: str) -> None:
    assert said in refused(**{**CLUSTER, **settings})


def test_a_log_on_kafka_is_for_clusters() -> None:
    assert "set cluster.name" in refused(topic__log="kafka")
    assert loaded(topic__log="kafka", **CLUSTER).topic.log == "kafka"


def test_other_nodes_are_let_in_from_elsewhere_only_by_certificates(tmp_path: Path) -> None:
    beyond = {**CLUSTER, "cluster__address": "10.1.2.3"}
    assert refused(**beyond).startswith(
        'cluster.address = "10.1.2.3" opens other nodes (cluster.port) beyond this machine without TLS; set '
        "cluster.secret_file, and cluster.tls_cert, cluster.tls_key and cluster.tls_ca, or"
    )
    files = {f"cluster__{name}": path for name, path in certificate(tmp_path).items()}
    assert "cluster.tls_ca is not set" in refused(**beyond, **files)
    whole = {**beyond, **files, "cluster__tls_ca": files["cluster__tls_cert"]}
    assert loaded(**{**whole, "cluster__secret_file": ""}).cluster.address == "10.1.2.3"
    assert loaded(**beyond, insecure=True).insecure


def test_the_nodes_of_the_compose_file_could_start(tmp_path: Path) -> None:
    """As the file has them: settings that all share, and a line of each node's own."""
    text = (Path(__file__).parents[2] / "deploy/cluster/compose.yaml").read_text()
    shared = dict(re.findall(r"^  (PENSTOCK_\w+): (.+)$", text, re.MULTILINE))
    own = [dict(re.findall(r"(PENSTOCK_\w+): (\w+)", line)) for line in text.splitlines() if "environment: {" in line]
    secret = tmp_path / "secret"
    secret.write_text("x")
    names, ports = [], []
    for settings in own:
        environment = {**shared, **settings, "PENSTOCK_CLUSTER_SECRET_FILE": str(secret)}
        config = load(flags={"data_dir": "/data"}, environment=environment).config
        names.append((config.cluster.name, config.cluster.node, config.topic.log))
        ports += [endpoint.port for endpoint in endpoints(config, TABLE)]
    assert names == [("blue", name, "kafka") for name in ("n1", "n2", "n3")]
    assert len(ports) == len(set(ports))
    assert not {2379, 2380, 9092, 9093} & set(ports)
