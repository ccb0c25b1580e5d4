"""The key that signs envelopes and the certificate that vouches for it; made once, and kept in the data directory.

Whoever verifies a message fetches the certificate from the node, under a name that only this one has. The key never
leaves the file, which its user alone may read.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from penstock.dialects.sqs.sns.seals import CERTIFICATES
from penstock.disk import LocalDisk, replace_file
from penstock.errors import Refusal

FILE = "sns.pem"
#: As Amazon's keys.
KEY_BITS = 2048
#: Messages may be kept for long, and nobody renews it.
VALID_DAYS = 36_500

#: What SignatureVersion says.
_HASHES: dict[str, Callable[[], hashes.HashAlgorithm]] = {"1": hashes.SHA1, "2": hashes.SHA256}


class Signer:
    """Signs; blocking, for an executor."""

    def __init__(self, key: rsa.RSAPrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self.pem = certificate.public_bytes(serialization.Encoding.PEM)
        #: Where it is served.
        self.path = f"{CERTIFICATES}{sha256(self.pem).hexdigest()[:32]}.pem"

    @classmethod
    def of(cls, data_dir: str, now_ns: int) -> Signer:
        """Return the signer of a data directory, made now if it has none."""
        path = os.path.join(os.path.abspath(data_dir), FILE)
        try:
            with open(path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            content = _made(now_ns)
            replace_file(LocalDisk(), path, content)
        try:
            key = serialization.load_pem_private_key(content, None)
            certificate = x509.load_pem_x509_certificate(content)
        except (ValueError, TypeError) as error:
            raise _unreadable(path, str(error)) from None
        if not isinstance(key, rsa.RSAPrivateKey) or certificate.public_key() != key.public_key():
            raise _unreadable(path, "they do not belong together")
        return cls(key, certificate)

    def signatures(self, texts: Sequence[str], version: str) -> list[str]:
        """Return the signature of each text, in base64."""
        algorithm, scheme = _HASHES[version](), padding.PKCS1v15()
        return [b64encode(self._key.sign(text.encode(), scheme, algorithm)).decode("ascii") for text in texts]


def _unreadable(path: str, why: str) -> Refusal:
    return Refusal(
        "unavailable",
        f"{path} holds no key and certificate ({why}), so nothing can be signed. Put the right one there, or remove "
        "it: then a new one is made",
    )


def _made(now_ns: int) -> bytes:
    key = rsa.generate_private_key(65537, KEY_BITS)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Penstock SNS")])
    start = datetime.fromtimestamp(now_ns // 1_000_000_000, UTC) - timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=VALID_DAYS))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)
