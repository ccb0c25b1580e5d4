"""The gate of one node: who somebody is, what it may do, and what becomes of those who may not.

Owns the book of users in force, the few secrets that were looked at lately (as keyed digests), the counts of refusals.
On the loop, apart from `known`, `checked` and `verified`, which any thread may call.
Invariant: a secret, right or wrong, is in no log, count, error or audit row.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import os
from base64 import b64decode
from binascii import Error as NotBase64
from collections import Counter
from collections.abc import Callable
from functools import partial
from threading import BoundedSemaphore, Lock
from typing import NamedTuple, NoReturn

from penstock.callers import secret as secrets
from penstock.callers.account import Accounts
from penstock.callers.book import ANONYMOUS_USER, Book, User, content_of
from penstock.callers.caller import Caller
from penstock.callers.identity import ANONYMOUS, BUSY, NODE_TOKEN, Identity
from penstock.callers.rights import ALL, USE, Action, Rule, is_kept, rule_for
from penstock.clock import SECOND, Clock, Timer
from penstock.config import Config, users_file
from penstock.disk import Disk
from penstock.errors import ConfigError, Refusal
from penstock.log.quota import Quota
from penstock.registry.answer import Answer

#: Secrets that were right, and secrets that were wrong, of which digests are kept.
LOOKED_AT_MAX = 1024
#: A secret is longer than any that somebody types, and shorter than any that would keep the hash busy.
SHOWN_BYTES_MAX = 1024
#: Secrets that wait for their hash, and those of them that come from one address: 50 ms each, one after the other.
CHECKS_MAX = 64
CHECKS_PER_ADDRESS_MAX = 8
#: How long a thread waits for its turn to hash.
TURN_S = 5.0

#: The file of users is looked at this often, and tokens that run out are.
WATCH_NS = SECOND
#: Refusals are logged this often at most.
LOG_NS = SECOND
#: Connections whose authentication the audit has; beyond it, it may have some twice.
SEEN_MAX = 4096

#: What the audit has of each time it is allowed, too.
_NOTED: frozenset[Action] = frozenset(("create", "change", "delete", "admin"))

_log = logging.getLogger("penstock.callers")


class Verdict(NamedTuple):
    """Why somebody may not: the code of the refusal, the reason it is counted under, and a sentence."""

    code: str
    reason: str
    text: str


class Act(NamedTuple):
    """Something for the audit."""

    act: str
    who: Caller | None
    topic: str = ""
    what: str = ""
    #: Why not, empty if it was allowed.
    refused: str = ""


class Gate:
    """Judges callers."""

    def __init__(self, config: Config, clock: Clock, disk: Disk, storage: Quota | None = None) -> None:
        """Take what bounds the bytes of all users together."""
        self._config = config
        self._token = config.token.encode()
        self._clock = clock
        self._disk = disk
        self._path = users_file(config)
        self._content = content_of(self._path)
        self.book = Book.of(self._content, self._path)
        #: What users have of their quotas.
        self.accounts = Accounts(storage)
        self.accounts.apply(self.book)
        #: Another one as soon as anything that was decided may be decided otherwise.
        self.version = 0
        #: By reason and listener.
        self.refusals: Counter[tuple[str, str]] = Counter()
        #: Told of everything that the audit is about.
        self.told: Callable[[Act], None] | None = None
        self._followed: set[Caller] = set()
        self._seen: dict[tuple[str, str, Identity], None] = {}
        self._key = os.urandom(32)
        #: Digest of user and secret -> the hash that it matched, or did not.
        self._right: dict[bytes, str] = {}
        self._wrong: dict[bytes, str] = {}
        self._checks: Counter[str] = Counter()
        self._checks_lock = Lock()
        self._turn = BoundedSemaphore(1)
        self._timer: Timer | None = None
        self._logged_ns = clock.monotonic() - LOG_NS
        self._unsaid = 0
        #: Why the users in force are not what their file says now, empty if they are.
        self.unread = ""

    # --- who it is ------------------------------------------------------------------------------------------------

    @property
    def takes_secrets(self) -> bool:
        """Whether there is anybody who could show something."""
        return bool(self._token or len(self.book) or self._config.callers.anonymous == "off")

    def identify(self, shown: bytes, address: str) -> Answer[Identity]:
        """Answer with who shows this, a token or `user:secret`; at once, unless a secret has to be hashed."""
        found = self.known(shown)
        if found is not None:
            return Answer.of(found)
        host = host_of(address)
        if not self._begin_check(host):
            return Answer.of(BUSY)
        answer: Answer[Identity] = Answer()

        def done(found: Identity | None, error: BaseException | None) -> None:
            self._end_check(host)
            if error is not None:
                _log.error("a secret could not be looked at: %s", type(error).__name__)
            answer.give(found if found is not None else BUSY)

        self._disk.submit("secret", partial(self.verified, shown), done)
        return answer

    def checked(self, shown: bytes, address: str) -> Identity:
        """Return who shows this, as `identify` does. Slow if a secret has to be hashed: for threads."""
        found = self.known(shown)
        if found is not None:
            return found
        host = host_of(address)
        if not self._begin_check(host):
            return BUSY
        try:
            return self.verified(shown)
        finally:
            self._end_check(host)

    def _begin_check(self, host: str) -> bool:
        """Count a secret that waits for its hash; False where too many do."""
        with self._checks_lock:
            if self._checks.total() >= CHECKS_MAX or self._checks[host] >= CHECKS_PER_ADDRESS_MAX:
                return False
            self._checks[host] += 1
        return True

    def _end_check(self, host: str) -> None:
        with self._checks_lock:
            self._checks[host] -= 1
            if not self._checks[host]:
                del self._checks[host]

    def known(self, shown: bytes) -> Identity | None:
        """Return who shows this as far as that is quickly told; None if a secret has to be hashed for it."""
        if len(shown) > SHOWN_BYTES_MAX:
            return _wrong(None, "it is too long")
        if self._token and hmac.compare_digest(shown, self._token):
            return NODE_TOKEN
        name, colon, rest = shown.partition(b":")
        found = self._by_token(rest if colon else shown)
        if found is not None and (not colon or found.user.encode() == name):
            return found
        if not colon:
            return _wrong(None, "no such token")
        user = self.book.users.get(name.decode("utf-8", "replace"))
        kept, key = _kept(user), self._digest(shown)
        if self._right.get(key) == kept and user is not None:
            return Identity(user.name, "secret", user.secret)
        return _wrong(user, "wrong secret") if self._wrong.get(key) == kept else None

    def verified(self, shown: bytes) -> Identity:
        """Return who shows this `user:secret`. Slow, one at a time: for threads."""
        name, _, rest = shown.partition(b":")
        if not self._turn.acquire(timeout=TURN_S):
            return BUSY
        try:
            user = self.book.users.get(name.decode("utf-8", "replace"))
            kept = _kept(user)
            is_right = secrets.matches(rest, kept) and user is not None and bool(user.secret)
            looked_at = self._right if is_right else self._wrong
            while len(looked_at) >= LOOKED_AT_MAX:
                looked_at.pop(next(iter(looked_at)), None)
            looked_at[self._digest(shown)] = kept
        finally:
            self._turn.release()
        return Identity(user.name, "secret", kept) if is_right and user is not None else _wrong(user, "wrong secret")

    def access_key(self, key_id: str) -> tuple[str, Identity] | None:
        """Return the secret of an access key, and who signs with it; None if nobody has it."""
        found = self.book.keys.get(key_id)
        if found is None:
            return None
        user, key = found
        return key.secret, Identity(user.name, "key", key.id, key.id)

    def certified(self, common_name: str) -> Identity:
        """Return whose certificate was shown and vouched for; where there are users, one of them must have its name."""
        if common_name in self.book.users:
            return Identity(common_name, "certificate")
        return Identity(common_name, "vouched") if common_name and not len(self.book) else ANONYMOUS

    def noted(self, caller: Caller) -> Caller:
        """Take note of what came of a caller's showing who it is, once for each connection; return the caller."""
        identity, key = caller.identity, (caller.address, caller.listener, caller.identity)
        if identity.how in ("wrong", "busy"):
            reason = "busy" if identity.how == "busy" else "wrong_secret"
            self._count(reason, caller, f"could not show who it is: {identity.note}")
            self._tell(Act("authenticate", caller, what=identity.note, refused=reason))
        elif identity.how != "nothing" and key not in self._seen:
            if len(self._seen) >= SEEN_MAX:
                self._seen.clear()
            self._seen[key] = None
            self._tell(Act("authenticate", caller, what=f"{identity.how} {identity.note}".rstrip()))
        return caller

    def is_noted(self, caller: Caller) -> bool:
        """Tell whether there is nothing more to note of how a caller showed who it is."""
        identity = caller.identity
        return identity.how == "nothing" or (caller.address, caller.listener, identity) in self._seen

    def _by_token(self, shown: bytes) -> Identity | None:
        found = self.book.tokens.get(secrets.digest(shown))
        if found is None:
            return None
        user, token = found
        if token.expires_ns and token.expires_ns <= self._clock.now():
            return _wrong(user, f"token {token.name} has expired")
        return Identity(user.name, "token", token.digest, token.name, token.expires_ns)

    def _digest(self, shown: bytes) -> bytes:
        return hmac.digest(self._key, shown, hashlib.sha256)

    # --- what it may ----------------------------------------------------------------------------------------------

    def allows_anonymous(self, caller: Caller) -> bool:
        """Tell whether somebody there may come without a word."""
        if self._config.callers.anonymous == "off" or (caller.asks_token and self._token):
            return False
        # Where the risk was taken and there is nobody whom one could be, everybody who gets here may do everything.
        open_to_all = self._config.insecure and not (self._token or len(self.book))
        return open_to_all or is_here(caller.address)

    def trouble(self, caller: Caller) -> Verdict | None:
        """Return what is wrong with somebody whatever it asks for, None if nothing is."""
        identity = caller.identity
        match identity.how:
            case "nothing":
                if self.allows_anonymous(caller):
                    return None
                return Verdict("unauthorized", "no_secret", "say who you are: show a token, or a user and its secret")
            case "busy":
                return Verdict("rate_limited", "busy", "too many secrets wait to be looked at; try again in a moment")
            case "wrong":
                return Verdict("unauthorized", "wrong_secret", "the token, or the user and its secret, is not right")
            case "node" | "server" | "peer":
                return None
            case "vouched":
                if not len(self.book):
                    return None
                return Verdict("unauthorized", "revoked", f"there is no user {identity.user}")
        user = self.book.users.get(identity.user)
        if user is None or (identity.how == "secret" and user.secret != identity.mark):
            return Verdict("unauthorized", "revoked", f"user {identity.user} was removed, or has another secret now")
        if identity.how == "key" and identity.mark not in self.book.keys:
            return Verdict("unauthorized", "revoked", f"access key {identity.mark} was taken back")
        if identity.how == "token":
            if identity.mark not in self.book.tokens:
                return Verdict("unauthorized", "revoked", f"token {identity.note} was taken back")
            if identity.expires_ns and identity.expires_ns <= self._clock.now():
                return Verdict("unauthorized", "expired", f"token {identity.note} has expired")
        return None

    def rules(self, caller: Caller) -> tuple[Rule, ...]:
        """Return the rights of somebody that may be here."""
        match caller.identity.how:
            case "nothing" | "node":
                return ALL
            case "server" | "vouched":
                return USE
            case "peer":
                return caller.identity.rules
        user = self.book.users.get(caller.identity.user)
        return user.rules if user is not None else ()

    def judge(self, caller: Caller, action: Action, topic: str) -> Verdict | None:
        """Return why somebody may not do something, None if it may. Everything that is asked is asked here."""
        trouble = self.trouble(caller)
        if trouble is not None:
            return trouble
        where = f"topic {topic}" if topic else "this node as a whole"
        if is_kept(action, topic):
            return Verdict("forbidden", "own_topic", f"{caller} may not {action} {where}, which is the node's own")
        if rule_for(self.rules(caller), action, topic) is None:
            return Verdict("forbidden", "no_right", f"{caller} may not {action} {where}")
        return None

    def granted(self, caller: Caller, action: Action, topic: str, what: str = "") -> None:
        """Take note of what was allowed, where that is worth a row of the audit."""
        if action in _NOTED:
            self._tell(Act(action, caller, topic, f"{caller.doing} {what}".strip()))

    def refuse(
        self, caller: Caller, verdict: Verdict, action: str = "enter", topic: str = "", what: str = ""
    ) -> NoReturn:
        """Count, log and say why not."""
        if verdict.reason not in ("wrong_secret", "busy"):  # which was counted when it was shown
            self._count(verdict.reason, caller, f"was refused: {verdict.text}")
        self._tell(Act(action, caller, topic, f"{caller.doing} {what}".strip(), verdict.reason))
        raise Refusal(verdict.code, verdict.text)

    def _count(self, reason: str, caller: Caller, text: str) -> None:
        self.refusals[reason, caller.listener] += 1
        now_ns = self._clock.monotonic()
        if now_ns - self._logged_ns < LOG_NS:  # whoever knocks a thousand times must not fill the disk with it
            self._unsaid += 1
            return
        more = f" (and {self._unsaid} refusals since this was last said)" if self._unsaid else ""
        self._logged_ns, self._unsaid = now_ns, 0
        _log.warning("%s on %s %s%s", caller, caller.listener, text, more)

    def _tell(self, act: Act) -> None:
        if self.told is not None:
            self.told(act)

    # --- how much it may ------------------------------------------------------------------------------------------

    def enter(self, caller: Caller) -> None:
        """Count a connection of somebody who may be here; refuse it where its user has too many."""
        caller.check_known()
        account = caller.account
        if not self.counts(caller) and account is not None:
            text = f"the quota of user {account.name} is {account.quota.connections} connections; close one"
            self.exceed(caller, "connections", Verdict("too_many_connections", "quota", text))

    def counts(self, caller: Caller) -> bool:
        """Tell whether a connection is counted, now if not before; False where its user has too many."""
        if caller.entered is not None:
            return True
        account = caller.account
        # Whoever came in by another node is connected there.
        if account is None or caller.identity.how == "peer":
            return True
        if account.is_crowded:
            return False
        account.connections += 1
        caller.entered = account
        return True

    def exceed(self, caller: Caller, what: str, verdict: Verdict, action: str = "enter", topic: str = "") -> NoReturn:
        """Refuse what is over somebody's quota."""
        if (account := caller.account) is not None:
            account.refused[what] += 1
        self.refuse(caller, verdict, action, topic)

    # --- changes --------------------------------------------------------------------------------------------------

    def follow(self, caller: Caller) -> None:
        """Call somebody's `on_change` from now on."""
        self._followed.add(caller)

    def leave(self, caller: Caller) -> None:
        """Do so no more, and count its connection no more."""
        self._followed.discard(caller)
        if caller.entered is not None:
            caller.entered.connections -= 1
            caller.entered = None

    def reload(self) -> None:
        """Take the file of users as it is now; one that cannot be read, or is gone, changes nothing."""
        try:
            content = content_of(self._path)
            if content is None and self._content is not None:  # without users, who has a certificate may do everything
                raise ConfigError(f"{self._path} is gone. Put it back, or start the node anew to have no users")
            book = Book.of(content, self._path) if content != self._content else None
        except ConfigError as error:
            unread = f"users stay as they were: {error}"
            if unread != self.unread:  # it is looked at every second
                _log.error(unread)
            self.unread = unread
            return
        self.unread = ""
        if book is None:
            return
        old, self.book, self._content = self.book, book, content
        self.accounts.apply(book)
        for what, user in _differences(old, book):
            _log.info("user %s %s", user, what)
            self._tell(Act("users", None, what=f"user {user} {what}"))
        self._changed(self._followed)

    def watch(self) -> None:
        """Look at the file of users now and then, and at tokens that run out."""
        self._timer = self._clock.call_at(self._clock.monotonic() + WATCH_NS, self._look)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self.reload()
        now_ns = self._clock.now()
        expired = {caller for caller in self._followed if 0 < caller.identity.expires_ns <= now_ns}
        if expired:
            self._followed -= expired
            self._changed(expired)
        self.watch()

    def _changed(self, callers: set[Caller]) -> None:
        self.version += 1
        for caller in list(callers):
            if caller.on_change is not None:
                caller.on_change()


def shown_in(authorization: bytes) -> bytes | None:
    """Return what a header `Authorization` shows, None if it is in no known form."""
    scheme, _, rest = authorization.strip().partition(b" ")
    match scheme.lower():
        case b"bearer":
            return rest.strip()
        case b"basic":
            try:
                return b64decode(rest.strip(), validate=True)
            except (NotBase64, ValueError):
                return None
    return None


def host_of(address: str) -> str:
    """Return the host in an address, as one of the listeners says it: 10.0.0.1:5, ::1:5, ipv6:%5B::1%5D:5."""
    host = address.removeprefix("ipv4:").removeprefix("ipv6:").rpartition(":")[0]
    return host.replace("%5B", "").replace("%5D", "").strip("[]")


def is_here(address: str) -> bool:
    """Tell whether an address is of this machine, and of no other."""
    if address == "unix" or address.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host_of(address)).is_loopback
    except ValueError:
        return False


def _kept(user: User | None) -> str:
    """Return the hash that a secret is held against; somebody's for a user who is not there, or has none."""
    return (user.secret if user is not None else "") or secrets.NOBODY


def _wrong(user: User | None, why: str) -> Identity:
    """Return what became of something that convinces nobody; a name that no user has may be a part of a secret."""
    return Identity("", "wrong", note=f"{why} (user {user.name})" if user is not None else why)


def _differences(old: Book, new: Book) -> list[tuple[str, str]]:
    found = [("was removed", name) for name in old.users if name not in new.users]
    if old.anonymous != new.anonymous:
        found.append(("has another quota", ANONYMOUS_USER))
    found += [("was added", name) for name in new.users if name not in old.users]
    return found + [("was changed", name) for name, user in new.users.items() if old.users.get(name, user) != user]
