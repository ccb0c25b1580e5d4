"""Users over HTTP: what each may, what of its quota it has, and how often that was not enough. No secrets."""

from __future__ import annotations

from collections import Counter

import msgspec

from penstock.api.endpoint import PREFIX, Call, Endpoint
from penstock.callers.book import ANONYMOUS_USER
from penstock.callers.quota import UserQuota
from penstock.clock import SECOND


class Quotas(msgspec.Struct):
    """Bounds on a user; 0 is none."""

    messages_per_second: int
    bytes_per_second: int
    connections: int
    topics: int
    stored_bytes: int


class Usage(msgspec.Struct):
    """What a user has now; where a listener shows no connections, streams are counted as such."""

    connections: int
    topics: int
    stored_bytes: int


class UserInfo(msgspec.Struct):
    """One user. `refused` counts from the start of the process: messages over a rate, else how often it was refused."""

    name: str
    rights: list[str]
    quota: Quotas
    used: Usage
    refused: dict[str, int]
    #: For how long its publishers were made to wait, all together.
    slowed_seconds: float


class UserList(msgspec.Struct):
    """All users; those who are none share `anonymous`, which is the first."""

    users: list[UserInfo]


async def list_users(call: Call[None, None]) -> UserList:
    """Show all users."""
    gate = call.node.gate
    owned = Counter(topic.record.owner for topic in call.node.topics.values())
    found = []
    for name in (ANONYMOUS_USER, *gate.book.users):
        account = gate.accounts.named(name)
        user = gate.book.users.get(name)
        found.append(
            UserInfo(
                name,
                list(map(str, user.rules)) if user is not None else [],
                _quotas(account.quota),
                Usage(account.connections, owned[name], max(account.stored.used, 0)),
                dict(account.refused),
                account.slowed_ns / SECOND,
            )
        )
    return UserList(found)


def _quotas(quota: UserQuota) -> Quotas:
    return Quotas(**{name: getattr(quota, name) for name in Quotas.__struct_fields__})


ENDPOINTS = (
    Endpoint(
        "GET",
        f"{PREFIX}/users",
        list_users,
        "Show users, their rights and quotas, and what they use of these",
        UserList,
        query=None,
        on_node="admin",
    ),
)
