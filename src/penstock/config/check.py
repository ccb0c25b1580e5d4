"""What is well formed and still cannot work, or is not safe: a configuration is refused before anything starts.

Owns what holds for the node and for everybody who listens, and the sentences that their own checks share.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
import socket
from collections.abc import Mapping, Sequence
from typing import Protocol

from penstock.config.keys import keys_of
from penstock.config.part import Endpoint, Part, endpoints
from penstock.config.routing import check_routing
from penstock.config.tree import Config, Section
from penstock.errors import ConfigError, hint

#: Part of the names of Kafka's topics, in which a dot ends it; a node's is part of names of topics, too.
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
#: etcd gives no shorter leases.
_LEASE_NS_MIN = 2_000_000_000

LABELS_MAX = 10
_LABEL_NAME = re.compile("[a-zA-Z_][a-zA-Z0-9_]*")

#: What samples of `/metrics` say of themselves; a constant label of the same name would hide it.
OWN_LABELS = frozenset(
    {
        "brokers", "cluster", "code", "codec", "command", "consumer", "dialect", "direction", "event", "feed", "filter",
        "kind", "le", "listener", "name", "node", "op", "part", "partner", "pipeline", "quantile", "query", "reason",
        "route", "service", "shard", "state", "subscription", "target", "topic", "traffic_type", "type", "user",
        "version", "window",
    }
)  # fmt: skip


def check(config: Config, parts: Sequence[Part]) -> None:
    """Refuse what is well formed and still cannot work, or is not safe."""
    if not config.data_dir:
        raise ConfigError("data_dir is empty; name the directory that shall hold the data")
    check_certificate(config.tls_cert, config.tls_key)
    if config.tls_client_ca and not os.access(config.tls_client_ca, os.R_OK):
        raise ConfigError(f'tls_client_ca = "{config.tls_client_ca}": no such file, or it cannot be read')
    check_registry(config)
    check_cluster(config)
    check_routing(config)
    check_labels(config.metrics.labels)
    try:
        shlex.split(config.pipeline.setup)
    except ValueError as error:
        raise ConfigError(f"pipeline.setup cannot be read as a command: {error}") from None
    for part in parts:
        part.check(config)
    found = endpoints(config, parts)
    _check_endpoints(found)
    if not config.insecure:
        for endpoint in exposed(found):
            raise ConfigError(_too_open(endpoint))


def check_certificate(cert: str, key: str, section: str = "") -> None:
    """Refuse a certificate without its key, and files that are not there; `section` is the beginning of their names."""
    if bool(cert) != bool(key):
        missing = "tls_key" if cert else "tls_cert"
        raise ConfigError(f"{section}{missing} is not set; TLS needs both tls_cert and tls_key, or neither")
    for name, path in (("tls_cert", cert), ("tls_key", key)):
        if path and not os.access(path, os.R_OK):
            raise ConfigError(f'{section}{name} = "{path}": no such file, or it cannot be read')


class Client(Protocol):
    """A section that says how the node comes to another system."""

    @property
    def tls(self) -> bool:
        """Whether that speaks TLS."""

    @property
    def tls_ca(self) -> str:
        """Who vouches for it."""

    @property
    def tls_cert(self) -> str:
        """The certificate that is shown to it."""

    @property
    def tls_key(self) -> str:
        """The key of that."""

    @property
    def user(self) -> str:
        """Who the node is there."""

    @property
    def password_file(self) -> str:
        """Where its password is, if that is in a file."""


def check_client(client: Client, password: str, section: str, *, sasl: bool | None = None) -> None:
    """Refuse certificates that are not whole or not used, and a user without a password (or its file).

    With `sasl` (Kafka), also a user that is not shown, or none where one is to be.
    """
    check_certificate(client.tls_cert, client.tls_key, section)
    for name, path in (("tls_ca", client.tls_ca), ("password_file", client.password_file)):
        if path and not os.access(path, os.R_OK):
            raise ConfigError(f'{section}{name} = "{path}": no such file, or it cannot be read')
    if (client.tls_ca or client.tls_cert) and not client.tls:
        raise ConfigError(f"{section}tls is false, and it has certificates; set tls = true, or leave them out")
    if bool(client.user) != bool(password):
        missing = "password_file" if client.user else "user"
        raise ConfigError(f"{section}{missing} is not set; a user and its password go together")
    if sasl is not None and sasl != bool(client.user):
        raise ConfigError(f"{section}sasl and user go together: set both, or neither")


def check_registry(config: Config) -> None:
    """Refuse a registry, or an etcd cluster, that cannot be reached as it is written."""
    if config.registry.kind == "etcd" and config.registry.zone not in config.etcd.zones:
        wanted, names = config.registry.zone, list(config.etcd.zones)
        raise ConfigError(f'registry.zone = "{wanted}": there is no [etcd.zones.{wanted}]; {hint(wanted, names)}')
    if not config.registry.prefix.strip("/"):
        raise ConfigError("registry.prefix is empty; all keys in etcd start with it, like penstock/blue")
    for name, zone in config.etcd.zones.items():
        section = f"etcd.zones.{name}."
        if not zone.endpoints:
            raise ConfigError(f'{section}endpoints is empty; name its members, like ["127.0.0.1:2379"]')
        for endpoint in zone.endpoints:
            if "://" in endpoint:
                raise ConfigError(f'{section}endpoints: "{endpoint}": write HOST:PORT, and tls = true for https')
            try:
                host_and_port(endpoint)
            except ConfigError as error:
                raise ConfigError(f"{section}endpoints: {error}") from None
        check_client(zone, zone.password or zone.password_file, section)


def check_cluster(config: Config) -> None:
    """Refuse a cluster that could not come to be, and what only a cluster has."""
    cluster = config.cluster
    if not cluster.name:
        if config.topic.log == "kafka":
            raise ConfigError(
                'topic.log = "kafka": this node is alone, and only a cluster keeps logs there; set cluster.name, or '
                'topic.log = "local"'
            )
        return
    if not _CLUSTER_NAME.fullmatch(cluster.name):
        raise ConfigError(
            f'cluster.name = "{cluster.name}" is no name for Kafka\'s topics; it has 1 to 64 letters, digits, - and _'
        )
    if config.registry.kind != "etcd":
        raise ConfigError(
            f'cluster.name = "{cluster.name}": nodes agree by etcd, and this one keeps its registry for itself; set '
            'registry.kind = "etcd" and [etcd.zones.default] endpoints, or leave cluster.name out'
        )
    if not _NODE_NAME.fullmatch(node := cluster.node or socket.gethostname()):
        where = "cluster.node" if cluster.node else "the machine's name"
        raise ConfigError(f'{where}, "{node}", names no node; set cluster.node: 1 to 128 letters, digits, ., - and _')
    if cluster.lease_ns < _LEASE_NS_MIN:
        raise ConfigError("cluster.lease is below 2s, and etcd gives no shorter leases; raise it")
    _check_peers(config)
    _check_shared_log(config)


def _check_peers(config: Config) -> None:
    cluster = config.cluster
    if cluster.advertise:
        try:
            host_and_port(cluster.advertise)
        except ConfigError as error:
            raise ConfigError(f"cluster.advertise: {error}") from None
    elif cluster.address in ("", "0.0.0.0", "::"):
        raise ConfigError(
            f'cluster.address = "{cluster.address}" is no address that other nodes can reach; tell them another: '
            "cluster.advertise = HOST:PORT"
        )
    check_certificate(cluster.tls_cert, cluster.tls_key, "cluster.")
    if cluster.tls_cert and not cluster.tls_ca:
        raise ConfigError("cluster.tls_ca is not set; nodes show each other certificates, and it says whose count")
    for name, path in (("tls_ca", cluster.tls_ca), ("secret_file", cluster.secret_file)):
        if path and not os.access(path, os.R_OK):
            raise ConfigError(f'cluster.{name} = "{path}": no such file, or it cannot be read')
    if cluster.tls_ca and not cluster.tls_cert:
        raise ConfigError("cluster.tls_ca is set without cluster.tls_cert and tls_key; set them, or leave it out")
    if not (cluster.secret_file or cluster.tls_cert):
        raise ConfigError(
            "cluster.secret_file is not set; nodes trust each other, and show that they may by the secret in it, or by "
            "certificates (cluster.tls_cert, tls_key and tls_ca)"
        )


def _check_shared_log(config: Config) -> None:
    kafka = config.shared_log
    if not kafka.brokers:
        raise ConfigError('shared_log.brokers is empty; name some of Kafka\'s, like ["127.0.0.1:9092"]')
    for broker in kafka.brokers:
        try:
            host_and_port(broker)
        except ConfigError as error:
            raise ConfigError(f"shared_log.brokers: {error}") from None
    check_client(kafka, kafka.password_file, "shared_log.", sasl=bool(kafka.sasl))


def peer_endpoints(config: Config) -> list[Endpoint]:
    """Return where other nodes of a cluster reach this one."""
    cluster = config.cluster
    if not cluster.name:
        return []
    return [
        Endpoint(
            "cluster.port",
            "tcp",
            "other nodes",
            cluster.address,
            config.listen_port(cluster.port),
            tls=bool(cluster.tls_cert),
            asks=bool(cluster.secret_file or cluster.tls_ca),
            mend="set cluster.secret_file, and cluster.tls_cert, cluster.tls_key and cluster.tls_ca",
        )
    ]


def check_order(low: Section, low_name: str, high: Section, high_name: str) -> None:
    """Refuse one value that is above another; names are dotted, the last part is a field of its section."""
    (low_key, least), (high_key, most) = _value(low, low_name), _value(high, high_name)
    if least > most:
        raise ConfigError(f"{low_key} is above {high_key}; lower it, or raise {high_name}")


def host_and_port(text: str) -> tuple[str, int]:
    """Return the two parts of "host:port"."""
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise ConfigError(f'"{text}" is no address; write HOST:PORT, like 127.0.0.1:4160')
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(address: str) -> bool:
    """Tell whether only this machine can reach an address; a host name other than localhost counts as reachable."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def exposed(found: Sequence[Endpoint]) -> list[Endpoint]:
    """Return the listeners that others reach and that lack TLS, or do not ask who comes."""
    beyond = [endpoint for endpoint in found if not endpoint.is_path and not is_loopback(endpoint.address)]
    return [endpoint for endpoint in beyond if lacks(endpoint) and not endpoint.only_points]


def users_file(config: Config) -> str:
    """Return where the users of a node are kept."""
    return config.callers.users or os.path.join(config.data_dir, "users.json")


def has_callers(config: Config) -> bool:
    """Tell whether those who come from elsewhere must show who they are, by something that there is to show."""
    return bool(config.token) or config.callers.anonymous == "off" or os.path.exists(users_file(config))


def lacks(endpoint: Endpoint) -> str:
    """Return what a listener lacks of what keeps strangers out; empty if nothing."""
    return " and ".join(name for name, has in (("TLS", endpoint.tls), ("callers", endpoint.asks)) if not has)


def _too_open(endpoint: Endpoint) -> str:
    mend = f"{endpoint.mend}, or " if endpoint.mend else ""
    return (
        f'{endpoint.address_key} = "{endpoint.address}" opens {endpoint.purpose} ({endpoint.key}) beyond this machine '
        f"without {lacks(endpoint)}; {mend}listen on 127.0.0.1, or accept that everybody who reaches it "
        "can read or use it: --insecure (insecure = true)"
    )


def _value(section: Section, name: str) -> tuple[str, int]:
    prefix = name.rpartition(".")[0] + "."
    key = next(key for key in keys_of(type(section), prefix) if key.name == name)
    value: int = getattr(section, key.field.removeprefix(prefix))
    return f"{name} = {key.text(value)}", value


def _check_endpoints(found: Sequence[Endpoint]) -> None:
    holders: dict[object, str] = {}
    for endpoint in found:
        name, port = endpoint.key, endpoint.port
        if port > 65535:
            raise ConfigError(f"{name} with port_offset is {port}, beyond 65535; choose a smaller port_offset")
        where = endpoint.address if endpoint.is_path else port
        if where and (other := holders.setdefault(where, name)) != name:
            what = "path" if endpoint.is_path else "port"
            raise ConfigError(f"{name} and {other} are both {where}; give one of them another {what}")


def check_labels(labels: Mapping[str, str]) -> None:
    """Refuse labels that Prometheus would not take, or that samples have themselves."""
    if len(labels) > LABELS_MAX:
        raise ConfigError(f"metrics.labels has {len(labels)} labels; at most {LABELS_MAX} are added to every sample")
    for name in labels:
        if not _LABEL_NAME.fullmatch(name):
            raise ConfigError(
                f'metrics.labels: "{name}" is no name of a label; it has letters, digits and _, no digit first'
            )
        if name.startswith("__"):
            raise ConfigError(
                f'metrics.labels: "{name}" begins with __, which Prometheus keeps for itself; choose another'
            )
        if name in OWN_LABELS:
            raise ConfigError(f'metrics.labels: "{name}" is a label that samples have themselves; choose another name')
