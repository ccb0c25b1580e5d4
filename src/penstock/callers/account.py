"""What users have of their quotas at this moment.

Owns the token buckets and the counts, on the loop; time is passed in. Knows nothing of connections, topics or files:
whoever has them says so here.
Invariant: over time nobody publishes more than its rate. A batch is taken whole or not at all, so one that is larger
than a second's worth is taken and paid for by what comes after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from penstock.callers.book import ANONYMOUS_USER, Book
from penstock.callers.identity import Identity
from penstock.callers.quota import NO_QUOTA, UserQuota
from penstock.clock import MILLISECOND, SECOND
from penstock.errors import Refusal
from penstock.log.quota import Quota
from penstock.units.quantity import format_duration, format_size

#: Who was quiet may publish this much of its rate at once.
BURST_NS = SECOND
#: Whoever is over its rate is slowed by so much at a time, and refused once it is further ahead than that. Not
#: longer than the least heartbeat that clients can ask for, so that nobody is taken for dead while it is not read.
SLOW_NS = SECOND


class Account:
    """One user's."""

    __slots__ = (
        "_bytes_max",
        "_bytes_ns",
        "_messages_max",
        "_messages_ns",
        "connections",
        "making",
        "name",
        "quota",
        "refused",
        "slowed_ns",
        "stored",
    )

    def __init__(self, name: str, stored: Quota) -> None:
        self.name = name
        self.quota = NO_QUOTA
        self.connections = 0
        #: Topics that are being made for it.
        self.making = 0
        #: What its topics hold.
        self.stored = stored
        #: By what was used up: messages where it was a rate, else how often somebody was refused.
        self.refused: Counter[str] = Counter()
        self.slowed_ns = 0
        #: When what was published would have come at its rate.
        self._messages_ns = self._bytes_ns = 0
        self._messages_max = self._bytes_max = 0

    def configure(self, quota: UserQuota) -> None:
        """Take another quota from now on."""
        if quota != self.quota:
            self.quota = quota
            self.stored.bytes_max = quota.stored_bytes
            self._messages_max, self._bytes_max = quota.messages_per_second, quota.bytes_per_second
            self._messages_ns = self._bytes_ns = 0  # the debts of another rate

    def take(self, count: int, size_bytes: int, now_ns: int, slow_ns: int = SLOW_NS, *, is_begun: bool = False) -> int:
        """Let a batch in and return for how long its publisher is to wait, or refuse it. Budget: 0.5 us.

        With `slow_ns` 0 somebody that must not wait is refused instead. What `is_begun` is not refused any more.
        """
        messages_ns, bytes_ns, burst_ns = self._messages_ns, self._bytes_ns, now_ns + BURST_NS
        ahead_ns = (messages_ns if messages_ns > bytes_ns else bytes_ns) - burst_ns
        if ahead_ns > slow_ns and not is_begun:
            raise self._too_fast(count, ahead_ns)
        over_ns = 0
        if self._messages_max:
            messages_ns = (messages_ns if messages_ns > now_ns else now_ns) + count * SECOND // self._messages_max
            self._messages_ns = messages_ns
            over_ns = messages_ns - burst_ns
        if self._bytes_max:
            bytes_ns = (bytes_ns if bytes_ns > now_ns else now_ns) + size_bytes * SECOND // self._bytes_max
            self._bytes_ns = bytes_ns
            if bytes_ns - burst_ns > over_ns:
                over_ns = bytes_ns - burst_ns
        if over_ns <= 0 or not slow_ns:
            return 0
        wait_ns = min(over_ns, slow_ns)
        self.slowed_ns += wait_ns
        return wait_ns

    def _too_fast(self, count: int, retry_ns: int) -> Refusal:
        quota, retry_ns = self.quota, _whole(retry_ns)
        by_messages = self._messages_ns >= self._bytes_ns
        self.refused["messages" if by_messages else "bytes"] += count
        rate = f"{quota.messages_per_second} messages" if by_messages else format_size(quota.bytes_per_second)
        text = f"the quota of user {self.name} is {rate} a second; try again in {format_duration(retry_ns)}"
        return Refusal("rate_limited", text, retry_ns)

    @property
    def is_crowded(self) -> bool:
        """Whether it may have no more connections."""
        return 0 < self.quota.connections <= self.connections


class Accounts:
    """Everybody's."""

    def __init__(self, storage: Quota | None = None) -> None:
        """Take what bounds the bytes of all together."""
        self._storage = storage
        self._accounts: dict[str, Account] = {}
        self._book = Book()
        #: Somebody's rate is bounded.
        self.metered = False

    def __iter__(self) -> Iterator[Account]:
        """Yield those with a quota, anonymous first."""
        names = [ANONYMOUS_USER, *self._book.users]
        return (account for name in names if (account := self.named(name)).quota != NO_QUOTA)

    def apply(self, book: Book) -> None:
        """Take the quotas of a book from now on."""
        for name in (*book.users, ANONYMOUS_USER):  # before threads look for them
            self.named(name)
        self._book = book
        for account in self._accounts.values():
            account.configure(book.quota(account.name))
        self.metered = any(account.quota.is_metered for account in self._accounts.values())

    def named(self, name: str) -> Account:
        """Return somebody's, whether it is among the users or was once."""
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = Account(name, Quota(within=self._storage))
            account.configure(self._book.quota(name))
        return account

    def of(self, identity: Identity) -> Account | None:
        """Return whose quota somebody uses, None for whoever has the node's token.

        Everybody who is none of the users shares one, whatever others say of its name.
        """
        if identity.how == "node" or (identity.how == "peer" and identity.mark == "node"):
            return None
        return self.named(identity.user if identity.user in self._book.users else ANONYMOUS_USER)


def _whole(duration_ns: int) -> int:
    """Return a duration for people, rounded up."""
    return -(-duration_ns // MILLISECOND) * MILLISECOND
