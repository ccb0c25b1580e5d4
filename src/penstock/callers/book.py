"""The users of a node and the file they are kept in: names, rights, quotas, hashed secrets, tokens.

Owns the file, which its user alone may read, replaced in one step. A book is a value: a change makes another.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from penstock.callers.quota import NO_QUOTA, UserQuota
from penstock.callers.rights import Rule
from penstock.disk import LocalDisk, replace_file
from penstock.errors import ConfigError

FORMAT = 1

#: Beyond it the file is no file of users.
FILE_BYTES_MAX = 16 << 20

#: Nobody's name: whoever is none of the users has what belongs to it.
ANONYMOUS_USER = "anonymous"

#: As in a certificate or an e-mail address; a colon stands between a user and its secret.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}").fullmatch


class Token(msgspec.Struct, frozen=True):
    """One token of a user, under a name that tells people what it is for."""

    name: str
    digest: str
    #: 0 = never.
    expires_ns: int = 0


class AccessKey(msgspec.Struct, frozen=True):
    """A key of a user that signs requests; the secret is kept as it is, because whoever checks must sign as well."""

    id: str
    secret: str

    def __repr__(self) -> str:
        """Return what may stand in a log."""
        return f"AccessKey({self.id!r})"


class User(msgspec.Struct, frozen=True, omit_defaults=True):
    """Somebody who may do something."""

    name: str
    rules: tuple[Rule, ...] = ()
    #: Hashed; empty = none, tokens and certificates only.
    secret: str = ""
    tokens: tuple[Token, ...] = ()
    #: For signatures (AWS's Version 4).
    keys: tuple[AccessKey, ...] = ()
    quota: UserQuota = NO_QUOTA

    def __repr__(self) -> str:
        """Return what may stand in a log."""
        return f"User({self.name!r}, {self.rules!r})"


class _File(msgspec.Struct, omit_defaults=True):
    format: int
    users: list[User]
    #: The quota of those who are none of them.
    anonymous: UserQuota = NO_QUOTA


class Book:
    """All users, by name."""

    def __init__(self, users: Iterable[User] = (), anonymous: UserQuota = NO_QUOTA) -> None:
        self.users: Mapping[str, User] = {user.name: user for user in users}
        self.anonymous = anonymous
        #: The user and token of each digest.
        self.tokens = {token.digest: (user, token) for user in self.users.values() for token in user.tokens}
        #: The user and secret of each access key.
        self.keys = {key.id: (user, key) for user in self.users.values() for key in user.keys}

    def __iter__(self) -> Iterator[User]:
        return iter(self.users.values())

    def __len__(self) -> int:
        return len(self.users)

    def user(self, name: str) -> User:
        """Return a user that must be there."""
        user = self.users.get(name)
        if user is None:
            known = ", ".join(self.users) or "nobody yet; `penstock user add` makes one"
            raise ConfigError(f"there is no user {name}; there is {known}")
        return user

    def having(self, user: User) -> Book:
        """Return the book with a user added, or changed."""
        return Book({**self.users, user.name: user}.values(), self.anonymous)

    def lacking(self, name: str) -> Book:
        """Return the book without a user."""
        self.user(name)
        return Book((user for user in self if user.name != name), self.anonymous)

    def quota(self, name: str) -> UserQuota:
        """Return the quota of a user; of one that is not there, none."""
        if name == ANONYMOUS_USER:
            return self.anonymous
        user = self.users.get(name)
        return user.quota if user is not None else NO_QUOTA

    def with_quota(self, name: str, quota: UserQuota) -> Book:
        """Return the book with another quota of a user that must be there, or of those who are none."""
        if name == ANONYMOUS_USER:
            return Book(self, quota)
        return self.having(msgspec.structs.replace(self.user(name), quota=quota))

    @classmethod
    def of(cls, content: bytes | None, path: str) -> Book:
        """Return what a file says, nobody without one; ConfigError if it cannot be read as users."""
        if content is None:
            return cls()
        if not content:  # what is left of a write that failed: to read it as nobody would let everybody in
            raise ConfigError(f"{path} is empty. Put the right one there, or remove it if there are to be no users")
        try:
            found = msgspec.json.decode(content, type=_File)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is no file of users: {error}. Put the right one there, or move it") from None
        if found.format != FORMAT:
            raise ConfigError(f"{path} is of format {found.format}, this version reads {FORMAT}")
        for user in found.users:
            if _NAME(user.name) is None:
                raise ConfigError(f"{path} has a user {user.name!r}, which is no name for one")
        return cls(found.users, found.anonymous)

    def content(self) -> bytes:
        """Return the file of it."""
        return msgspec.json.format(msgspec.json.encode(_File(FORMAT, list(self), self.anonymous))) + b"\n"

    def write(self, path: str) -> None:
        """Put the file in place, for this user's eyes only; blocking."""
        try:
            replace_file(LocalDisk(), os.path.abspath(path), self.content())
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error


def content_of(path: str) -> bytes | None:
    """Return what is in the file of users, None where there is no file."""
    try:
        with open(path, "rb") as file:
            return file.read(FILE_BYTES_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error


def check_name(name: str) -> None:
    """Refuse a name that could not be sent."""
    if name == ANONYMOUS_USER:
        raise ConfigError(f"{name!r} is no name for a user: it stands for those who show nothing")
    if _NAME(name) is None:
        raise ConfigError(f"{name!r} is no name for a user; write letters, digits and . _ @ + -, at most 64")
