"""A caller on its way to another node: who it is, and what it may do where it came in.

Invariant: nobody may do more on the node it is carried to than on the one that let it in.
"""

from __future__ import annotations

import msgspec

from penstock.callers.caller import Caller
from penstock.callers.gate import Gate
from penstock.callers.identity import Identity
from penstock.callers.rights import Rule


class Carried(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one node tells another of somebody."""

    #: The user it is, and by what that was shown.
    user: str = ""
    how: str = "nothing"
    address: str = ""
    #: The key of the endpoint it came in by, and what it asks for in its own words.
    listener: str = ""
    doing: str = ""
    rules: tuple[Rule, ...] = ()


def carried(caller: Caller, gate: Gate, rules: tuple[Rule, ...] | None = None) -> Carried:
    """Return what is told of a caller; with `rules` it may do only that."""
    identity = caller.identity
    how = identity.mark if identity.how == "peer" else identity.how
    if not caller.is_known:  # the other node asks nobody who it is
        rules = ()
    may = gate.rules(caller) if rules is None else rules
    return Carried(identity.user, how, caller.address, caller.listener, caller.doing, may)


def arrived(told: Carried, gate: Gate, node: str) -> Caller:
    """Return the caller that another node tells of."""
    identity = Identity(told.user, "peer", told.how, node, rules=told.rules)
    caller = Caller(gate, told.address, told.listener, identity)
    caller.doing = told.doing
    return caller
