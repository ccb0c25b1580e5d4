"""What a caller showed of itself, and what came of looking at it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from penstock.callers.rights import Rule

#: `node` is the node's own token; `server` an auth server that was asked; `vouched` a certificate on a node without
#: users, where whoever signed it says who comes; `peer` is somebody whom another node of the cluster let in; `wrong`
#: convinced nobody, and for `busy` nobody had the time to look.
How = Literal["nothing", "secret", "token", "key", "certificate", "vouched", "node", "server", "peer", "wrong", "busy"]


class Identity(NamedTuple):
    """Who somebody is, by what; it holds as long as what it was shown by is still in the book of users."""

    user: str = ""
    how: How = "nothing"
    #: What is kept of what was shown: another secret, or a token taken back, and it counts no more.
    mark: str = ""
    #: For people: which token, or what is wrong.
    note: str = ""
    expires_ns: int = 0
    #: What it may do where it came in, for one that another node let in.
    rules: tuple[Rule, ...] = ()

    def __repr__(self) -> str:
        """Return what may stand in a log: not what is kept of a secret."""
        return f"Identity({self.user!r}, {self.how!r}, {self.note!r})"


ANONYMOUS = Identity()
#: Whoever shows the node's own token.
NODE_TOKEN = Identity("", "node")
BUSY = Identity("", "busy", note="too many secrets wait to be looked at")
