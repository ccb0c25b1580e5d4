"""Configurations that are well formed and still must not start."""

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


@pytest.mark.parametrize("section", ["api", "nsq"])
@pytest.mark.parametrize("address", ["0.0.0.0", "::", "", "10.1.2.3", "broker.example"])
def test_beyond_loopback_needs_a_token(section: str, address: str) -> None:
    message = refused(**{f"{section}__address": address})
    assert message == (
        f'{section}.address = "{address}" listens beyond this machine without a token; '
        "set token (or PENSTOCK_TOKEN), or listen on 127.0.0.1"
    )


def test_beyond_loopback_a_token_is_not_enough_without_tls() -> None:
    assert "without TLS; set tls_cert and tls_key, or insecure = true" in refused(nsq__address="0.0.0.0", token="x")


def test_beyond_loopback_insecure_is_not_enough_without_a_token() -> None:
    assert "without a token" in refused(nsq__address="0.0.0.0", insecure=True)


def test_beyond_loopback_with_token_and_either_tls_or_insecure(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.touch()
    key.touch()
    assert loaded(nsq__address="0.0.0.0", token="x", insecure=True).insecure
    assert loaded(nsq__address="0.0.0.0", token="x", tls_cert=str(cert), tls_key=str(key)).tls_key == str(key)


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
    assert "node.memory_input_bytes" in refused(node__memory_input_bytes="1MiB")


def test_ports_are_moved_by_the_offset_but_for_any_free_one() -> None:
    config = loaded(port_offset=1000, nsq__http_port=0)
    assert {each.key: (each.address, each.port) for each in endpoints(config, TABLE)} == {
        "api.port": ("127.0.0.1", 8070),
        "flight.port": ("127.0.0.1", 8071),
        "nsq.tcp_port": ("127.0.0.1", 5150),
        "nsq.http_port": ("127.0.0.1", 0),
        "nsq.lookup_tcp_port": ("127.0.0.1", 5160),
        "nsq.lookup_http_port": ("127.0.0.1", 5161),
    }


def test_an_offset_may_not_push_a_port_out_of_range() -> None:
    assert refused(port_offset=60000) == (
        "api.port with port_offset is 67070, beyond 65535; choose a smaller port_offset"
    )


def test_two_listeners_may_not_share_a_port() -> None:
    assert refused(api__port=4150) == "nsq.tcp_port and api.port are both 4150; give one of them another port"


def test_a_data_directory_must_be_named() -> None:
    assert "data_dir is empty" in refused(data_dir="")
