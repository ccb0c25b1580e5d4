"""What Java is told to trust where a machine's other programs are told by `SSL_CERT_FILE`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench import trust


def test_java_finds_every_authority_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "store"
    file = tmp_path / "own.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=own", "-keyout", "/dev/null"]
    subprocess.run([*make, "-out", str(file)], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    assert trust.options(place)[0] == f"-Djavax.net.ssl.trustStore={place}"
    command = ["keytool", "-list", "-v", "-keystore", str(place), "-storetype", "JKS", "-storepass", trust.PASSWORD]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "contains 1 entry" in shown
    assert "Owner: CN=own" in shown


def test_without_such_a_file_java_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    assert trust.options(tmp_path / "store") == []
