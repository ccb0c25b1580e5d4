"""Secrets, as they are kept: salted and hashed so that the file of users tells none of them.

A user's secret may be one that people remember, so it is hashed by scrypt, which takes 50 ms and 16 MiB on purpose: off
the loop. A token is 32 random bytes, which nobody guesses, so SHA-256 will do. The secret of an access key alone is
kept as it is: its signatures can be checked only by somebody who could make them.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from base64 import b32encode, b64decode, b64encode

#: What OWASP asks for where memory is not plenty, and OpenSSL allows without more.
COST, BLOCKS, LANES = 1 << 14, 8, 1
SALT_BYTES = 16
HASH_BYTES = 32

#: A secret that people choose has at least this many characters.
SECRET_CHARACTERS_MIN = 12


def made() -> str:
    """Return a new secret, or token; it has no colon, which stands between a user and its secret."""
    return secrets.token_urlsafe(32)


def key_id() -> str:
    """Return a new name for an access key, as long as Amazon's."""
    return "PK" + b32encode(os.urandom(12)).decode("ascii").rstrip("=")[:18]


def hashed(secret: bytes) -> str:
    """Return what is kept of a secret. Slow."""
    salt = os.urandom(SALT_BYTES)
    found = hashlib.scrypt(secret, salt=salt, n=COST, r=BLOCKS, p=LANES, dklen=HASH_BYTES)
    return _text(salt, found)


def matches(secret: bytes, kept: str) -> bool:
    """Tell whether this is the secret of which that was kept. Slow, and as slow for a wrong one."""
    _, cost, blocks, lanes, salt, wanted = kept.split("$")
    found = hashlib.scrypt(
        secret, salt=b64decode(salt), n=int(cost), r=int(blocks), p=int(lanes), dklen=len(b64decode(wanted))
    )
    return hmac.compare_digest(found, b64decode(wanted))


def digest(token: bytes) -> str:
    """Return what is kept of a token."""
    return hashlib.sha256(token).hexdigest()


def _text(salt: bytes, found: bytes) -> str:
    return f"scrypt${COST}${BLOCKS}${LANES}${b64encode(salt).decode()}${b64encode(found).decode()}"


#: What the secret of a user who does not exist is compared with, so that it takes as long.
NOBODY = _text(bytes(SALT_BYTES), bytes(HASH_BYTES))
