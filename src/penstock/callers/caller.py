"""Somebody who asks for something, over one connection or in one request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.callers.account import Account
from penstock.callers.identity import ANONYMOUS, Identity
from penstock.callers.rights import OWN, Action

if TYPE_CHECKING:
    from penstock.callers.gate import Gate

#: What a caller remembers; beyond it, it begins anew.
GRANTS_MAX = 1024


class Caller:
    """Who (as far as it showed that), from where, over which listener."""

    __slots__ = (
        "_gate",
        "_granted",
        "_known_version",
        "_version",
        "address",
        "asks_token",
        "doing",
        "entered",
        "identity",
        "listener",
        "on_change",
    )

    def __init__(
        self, gate: Gate, address: str, listener: str, identity: Identity = ANONYMOUS, *, asks_token: bool = False
    ) -> None:
        """Take the gate that judges; with `asks_token` the node's token must be shown from here, too."""
        self._gate = gate
        self.address = address
        self.listener = listener
        self.identity = identity
        self.asks_token = asks_token
        #: What it asks for now, in its own words: for the audit.
        self.doing = ""
        #: Told that what it may do is another thing now; whoever sets it says so to the gate by `follow`.
        self.on_change: Callable[[], None] | None = None
        #: Whose connections it is counted among.
        self.entered: Account | None = None
        self._granted: set[tuple[Action, str]] = set()
        self._version = gate.version
        #: At which version of the gate it was last found to be known.
        self._known_version = -1

    @property
    def name(self) -> str:
        """The user it is, empty for one that did not say."""
        return self.identity.user

    @property
    def voice(self) -> str:
        """Whose word it is: all that a user says is one word, and what comes from one machine without a name."""
        return f"user {self.name}" if self.name else self.address.rpartition(":")[0]

    def __str__(self) -> str:
        """Return it as people name it."""
        return f"{self.name} at {self.address}" if self.name else self.address

    def showing(self, identity: Identity) -> Caller:
        """Return the same one, having shown who it is."""
        return Caller(self._gate, self.address, self.listener, identity, asks_token=self.asks_token)

    @property
    def is_known(self) -> bool:
        """Whether it may be here at all; that is remembered until users change, unless it ends by itself."""
        gate = self._gate
        if self._known_version == gate.version and not self.identity.expires_ns:
            return True
        if gate.trouble(self) is not None:
            return False
        self._known_version = gate.version
        return True

    def check_known(self) -> None:
        """Refuse somebody who must say who it is, and did not."""
        if not self.is_known and (trouble := self._gate.trouble(self)) is not None:
            self._gate.refuse(self, trouble)

    def enter(self) -> None:
        """Be known, and one connection of its user's until the gate is told that it leaves; else it is refused."""
        self._gate.enter(self)

    @property
    def account(self) -> Account | None:
        """Whose quota it uses, None for the node's own token."""
        return self._gate.accounts.of(self.identity)

    @property
    def meter(self) -> Account | None:
        """Whose rate counts what it publishes, None if that is not bounded."""
        if not self._gate.accounts.metered:
            return None
        account = self.account
        return account if account is not None and account.quota.is_metered else None

    def check(self, action: Action, topic: str, what: str = "") -> None:
        """Refuse what it may not do; `what` names, for the audit, what exactly is done there."""
        verdict = None if self.may(action, topic) else self._gate.judge(self, action, topic)
        if verdict is not None:
            self._gate.refuse(self, verdict, action, topic, what)
        self._gate.granted(self, action, topic, what)

    def check_not_own(self, topic: str) -> None:
        """Refuse what would change what the node's own topics hold: other settings, copies of messages."""
        if topic.startswith(OWN):
            self.check("delete", topic)

    def may(self, action: Action, topic: str) -> bool:
        """Tell whether it may do something; what it may is remembered until users change."""
        granted = self._granted
        if self._version == self._gate.version and (action, topic) in granted:
            return True
        if self._version != self._gate.version or len(granted) >= GRANTS_MAX:
            granted.clear()
            self._version = self._gate.version
        if self._gate.judge(self, action, topic) is not None:
            return False
        granted.add((action, topic))
        return True
