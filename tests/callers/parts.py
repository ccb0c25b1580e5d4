"""Users for a node, and ways to be one of them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

from penstock.callers.book import Book, Token, User
from penstock.callers.quota import NO_QUOTA, UserQuota
from penstock.callers.rights import Right, Rule
from penstock.callers.secret import digest, hashed

SECRET = "correct horse battery"
TOKEN = "token-of-bob-which-nobody-guesses"
#: Hashed once: it takes its time on purpose.
HASHED = hashed(SECRET.encode())


def user(
    name: str,
    *rules: tuple[Right, str],
    secret: str = HASHED,
    token: str = "",
    expires_ns: int = 0,
    quota: UserQuota = NO_QUOTA,
) -> User:
    """Return a user with SECRET."""
    tokens = (Token("laptop", digest(token.encode()), expires_ns),) if token else ()
    return User(name, tuple(Rule(*rule) for rule in rules), secret, tokens, quota=quota)


def users_in(path: Path, users: Sequence[User], anonymous: UserQuota = NO_QUOTA) -> None:
    """Put the file of users where a node with this data directory looks for it."""
    path.mkdir(parents=True, exist_ok=True)
    Book(users, anonymous).write(str(path / "users.json"))


def bearer(shown: str) -> dict[str, str]:
    """Return the header of somebody who shows this."""
    return {"Authorization": f"Bearer {shown}"}


def basic(name: str, secret: str) -> dict[str, str]:
    """Return the header of a user."""
    return {"Authorization": "Basic " + b64encode(f"{name}:{secret}".encode()).decode()}
