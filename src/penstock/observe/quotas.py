"""What users have of their quotas, as metrics. Only those with a quota are told apart, and only so many of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from penstock.callers.account import Account
from penstock.clock import SECOND
from penstock.observe.exposition import Exposition, Labels

#: Users that have a name here; the others are one.
USERS_MAX = 256
OTHERS = "other users"

#: What may be used up.
REASONS = ("messages", "bytes", "connections", "topics", "stored")


def describe(out: Exposition, accounts: Iterable[Account], owned: Counter[str]) -> None:
    """Add what those with a quota use of it, and how often that was not enough."""
    found = list(accounts)
    if not found:
        return
    used: Counter[tuple[str, str]] = Counter()
    refused: Counter[tuple[str, str]] = Counter()
    slowed: Counter[str] = Counter()
    bounds: dict[tuple[str, str], int] = {}
    for at, account in enumerate(found):
        name = account.name if at < USERS_MAX else OTHERS
        quota = account.quota
        used[name, "connections"] += account.connections
        used[name, "topics"] += owned[account.name]
        used[name, "stored"] += max(account.stored.used, 0)
        slowed[name] += account.slowed_ns
        for reason in REASONS:
            refused[name, reason] += account.refused[reason]
        if at < USERS_MAX:
            amounts = (
                quota.messages_per_second,
                quota.bytes_per_second,
                quota.connections,
                quota.topics,
                quota.stored_bytes,
            )
            bounds |= {(name, reason): amount for reason, amount in zip(REASONS, amounts, strict=True) if amount}
    text = "Bounds of users: messages and bytes a second, connections, topics and stored bytes."
    out.family("penstock_user_quota", "gauge", text, [(_labels(*key), value) for key, value in bounds.items()])
    text = "What users with a quota have: connections, topics they made, bytes stored in these."
    out.family("penstock_user_used", "gauge", text, [(_labels(*key), value) for key, value in used.items()])
    text = "What was refused for a quota: messages over a rate, else how often somebody was refused."
    told = [(_labels(*key), value) for key, value in refused.items()]
    out.family("penstock_user_refused_total", "counter", text, told)
    text = "For how long publishers over their rate were made to wait."
    waits: list[tuple[Labels, float]] = [({"user": name}, ns / SECOND) for name, ns in slowed.items()]
    out.family("penstock_user_slowed_seconds_total", "counter", text, waits)


def _labels(user: str, reason: str) -> Labels:
    return {"user": user, "reason": reason}
