"""Certificates for a test run, made with the openssl program: one authority, one server, one client."""

from __future__ import annotations

import ssl
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple


class Certificates(NamedTuple):
    """The files; each certificate is signed by the authority and lies beside its key."""

    authority: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path

    def server_context(self, *, ask: bool = False) -> ssl.SSLContext:
        """Return a server's context, which may ask clients for a certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server, self.server_key)
        if ask:
            context.load_verify_locations(self.authority)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self, *, shown: bool = False) -> ssl.SSLContext:
        """Return a client's context, which checks the server and may show a certificate."""
        context = ssl.create_default_context(cafile=str(self.authority))
        if shown:
            context.load_cert_chain(self.client, self.client_key)
        return context


@cache
def certificates() -> Certificates:
    """Make the certificates once per run."""
    folder = Path(mkdtemp(prefix="penstock-certificates-"))
    authority, key = folder / "authority.pem", folder / "authority.key"
    made = {name: (folder / f"{name}.pem", folder / f"{name}.key") for name in ("localhost", "someone")}
    _openssl("req", "-x509", *_new(key, "authority"), "-out", str(authority))
    for name, (certificate, own_key) in made.items():
        _openssl(
            *("req", "-x509", *_new(own_key, name), "-out", str(certificate)),
            *("-CA", str(authority), "-CAkey", str(key), "-addext", f"subjectAltName=DNS:{name}"),
            *("-addext", "basicConstraints=critical,CA:FALSE"),
        )
    return Certificates(authority, *made["localhost"], *made["someone"])


def _new(key: Path, name: str) -> list[str]:
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    return [*curve, "-keyout", str(key), "-subj", f"/O=Penstock tests/CN={name}", "-days", "2"]


def _openssl(*words: str) -> None:
    done = subprocess.run(["openssl", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
