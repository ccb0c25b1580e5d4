"""Whom Java trusts: what `SSL_CERT_FILE` tells every other program of a machine, as a key store.

pip, npm, Go and curl look at that file, where a network has certificates of its own; Java looks only at its own store.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import struct
from pathlib import Path

#: Java's oldest form of a store; one of certificates only needs no secret, and this is what readers take without any.
MAGIC, VERSION, CERTIFICATE = 0xFEEDFEED, 2, 2
PASSWORD = "changeit"
SALT = b"Mighty Aphrodite"


def options(place: Path) -> list[str]:
    """Return what Java is to be told, after a store was written to a place; nothing where its own will do."""
    file = os.environ.get("SSL_CERT_FILE", "")
    if not os.path.isfile(file):
        return []
    place.write_bytes(store(file))
    return [
        f"-Djavax.net.ssl.trustStore={place}",
        "-Djavax.net.ssl.trustStoreType=JKS",
        f"-Djavax.net.ssl.trustStorePassword={PASSWORD}",
    ]


def store(file: str) -> bytes:
    """Return the authorities of a file of PEM as Java's store."""
    found = ssl.create_default_context(cafile=file).get_ca_certs(binary_form=True)
    parts = [struct.pack(">III", MAGIC, VERSION, len(found))]
    for number, certificate in enumerate(found):
        parts += [struct.pack(">I", CERTIFICATE), _text(f"authority {number}"), bytes(8), _text("X.509")]
        parts += [struct.pack(">I", len(certificate)), certificate]
    content = b"".join(parts)
    return content + hashlib.sha1(PASSWORD.encode("utf-16-be") + SALT + content, usedforsecurity=False).digest()


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")
