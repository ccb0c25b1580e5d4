"""Certificates and keys that cannot be used are refused by name, whoever asks for them."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from penstock.config import Config
from penstock.errors import ConfigError
from penstock.http.listener import tls_of
from penstock.wire.tls import ask_clients, client_context, server_context


def test_a_node_without_a_certificate_serves_none() -> None:
    assert tls_of(Config()) is None


@pytest.mark.parametrize("text", ["", "no certificate", None])
def test_files_that_are_no_certificate_are_a_mistake_in_the_configuration(tmp_path: Path, text: str | None) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    if text is not None:
        certificate.write_text(text)
        key.write_text(text)
    says = f'certificate "{certificate}" with key "{key}" cannot be used: '
    with pytest.raises(ConfigError, match=says):
        tls_of(Config(tls_cert=str(certificate), tls_key=str(key)))
    with pytest.raises(ConfigError, match=says):
        server_context(str(certificate), str(key))
    with pytest.raises(ConfigError, match=says):
        client_context("", str(certificate), str(key))
    with pytest.raises(ConfigError, match=f'here.ca = "{certificate}" cannot be used: '):
        ask_clients(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), str(certificate), "here.ca")
