"""What is well formed and still cannot work, or is not safe: a configuration is refused before anything starts.

Knows the values only, not who serves them.
"""

from __future__ import annotations

import ipaddress
import os
import shlex

from penstock.config.keys import KEYS, value_of
from penstock.config.tree import Config
from penstock.errors import ConfigError


def check(config: Config) -> None:
    """Refuse what is well formed and still cannot work, or is not safe."""
    if not config.data_dir:
        raise ConfigError("data_dir is empty; name the directory that shall hold the data")
    for section in ("", "nsq."):
        _check_certificate(config, section)
    if config.nsq.tls_required and not (config.nsq.tls_cert or config.tls_cert):
        raise ConfigError("nsq.tls_required needs a certificate; set tls_cert and tls_key")
    if config.nsq.tls_client_auth_policy != "none" and not config.nsq.tls_required:
        raise ConfigError("nsq.tls_client_auth_policy needs nsq.tls_required = true; clients could go without TLS else")
    if config.nsq.tls_root_ca_file and not os.access(config.nsq.tls_root_ca_file, os.R_OK):
        raise ConfigError(f'nsq.tls_root_ca_file = "{config.nsq.tls_root_ca_file}": no such file, or it cannot be read')
    if config.pipeline.file not in ("", "off") and not config.flight.enabled:
        raise ConfigError("pipeline.file needs flight.enabled = true, a pipeline writes over Flight; or set it to off")
    try:
        shlex.split(config.pipeline.setup)
    except ValueError as error:
        raise ConfigError(f"pipeline.setup cannot be read as a command: {error}") from None
    for low, high in (
        ("nsq.msg_timeout", "nsq.max_msg_timeout"),
        ("nsq.heartbeat_interval", "nsq.max_heartbeat_interval"),
        ("nsq.max_msg_size", "nsq.max_body_size"),
        ("nsq.max_body_size", "node.memory_input_bytes"),
    ):
        _check_order(config, low, high)
    for text in config.nsq.lookupd_tcp_addresses:
        try:
            host_and_port(text)
        except ConfigError as error:
            raise ConfigError(f"nsq.lookupd_tcp_addresses: {error}") from None
    if config.nsq.statsd_address:
        try:
            host_and_port(config.nsq.statsd_address)
        except ConfigError as error:
            raise ConfigError(f"nsq.statsd_address: {error}") from None
    for text in config.nsq.e2e_processing_latency_percentiles:
        quantile(text)
    _check_listeners(config)


def host_and_port(text: str) -> tuple[str, int]:
    """Return the two parts of "host:port"."""
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise ConfigError(f'"{text}" is no address; write HOST:PORT, like 127.0.0.1:4160')
    return host.removeprefix("[").removesuffix("]"), int(port)


def quantile(text: str) -> float:
    """Return a percentile written as a part of one."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise ConfigError(f'nsq.e2e_processing_latency_percentiles: "{text}" is not between 0 and 1; write 0.99')
    return value


def is_loopback(address: str) -> bool:
    """Tell whether only this machine can reach an address; a host name other than localhost counts as reachable."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _check_certificate(config: Config, section: str) -> None:
    cert, key = (str(value_of(config, section + name)) for name in ("tls_cert", "tls_key"))
    if bool(cert) != bool(key):
        missing = "tls_key" if cert else "tls_cert"
        raise ConfigError(f"{section}{missing} is not set; TLS needs both tls_cert and tls_key, or neither")
    for name, path in (("tls_cert", cert), ("tls_key", key)):
        if path and not os.access(path, os.R_OK):
            raise ConfigError(f'{section}{name} = "{path}": no such file, or it cannot be read')


def _check_order(config: Config, low: str, high: str) -> None:
    least, most = value_of(config, low), value_of(config, high)
    if isinstance(least, int) and isinstance(most, int) and least > most:
        raise ConfigError(
            f"{low} = {KEYS[low].text(least)} is above {high} = {KEYS[high].text(most)}; lower it, or raise {high}"
        )


def _check_listeners(config: Config) -> None:
    holder: dict[int, str] = {}
    for name, (address, port) in config.listeners().items():
        if port > 65535:
            raise ConfigError(f"{name} with port_offset is {port}, beyond 65535; choose a smaller port_offset")
        if port and (other := holder.setdefault(port, name)) != name:
            raise ConfigError(f"{name} and {other} are both {port}; give one of them another port")
        key = name.partition(".")[0] + ".address"
        if is_loopback(address):
            continue
        if not config.token:
            raise ConfigError(
                f'{key} = "{address}" listens beyond this machine without a token; set token '
                f"(or {KEYS['token'].environment}), or listen on 127.0.0.1"
            )
        if not config.tls_cert and not config.insecure:
            raise ConfigError(
                f'{key} = "{address}" listens beyond this machine without TLS; set tls_cert and tls_key, '
                f"or insecure = true if the network is trusted"
            )
