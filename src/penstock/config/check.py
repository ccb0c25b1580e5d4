"""What is well formed and still cannot work, or is not safe: a configuration is refused before anything starts.

Knows the values only, not who serves them.
"""

from __future__ import annotations

import ipaddress
import os

from penstock.config.keys import KEYS, value_of
from penstock.config.tree import Config
from penstock.errors import ConfigError


def check(config: Config) -> None:
    """Refuse what is well formed and still cannot work, or is not safe."""
    if not config.data_dir:
        raise ConfigError("data_dir is empty; name the directory that shall hold the data")
    if bool(config.tls_cert) != bool(config.tls_key):
        missing = "tls_key" if config.tls_cert else "tls_cert"
        raise ConfigError(f"{missing} is not set; TLS needs both tls_cert and tls_key, or neither")
    for name in ("tls_cert", "tls_key"):
        path = getattr(config, name)
        if path and not os.access(path, os.R_OK):
            raise ConfigError(f'{name} = "{path}": no such file, or it cannot be read')
    for low, high in (
        ("nsq.msg_timeout", "nsq.max_msg_timeout"),
        ("nsq.heartbeat_interval", "nsq.max_heartbeat_interval"),
        ("nsq.max_msg_size", "nsq.max_body_size"),
        ("nsq.max_body_size", "node.memory_input_bytes"),
    ):
        _check_order(config, low, high)
    _check_listeners(config)


def is_loopback(address: str) -> bool:
    """Tell whether only this machine can reach an address; a host name other than localhost counts as reachable."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


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
