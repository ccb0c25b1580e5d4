"""The `in-order` policy: one line by the offsets of rows, in which what comes back goes before what was never out."""

from __future__ import annotations

from penstock.delivery.policies.policy import Policy


class InOrder(Policy):
    """One lane, open to everybody, as a relay wants it: what it gave back when it went is behind nothing newer."""

    name = "in-order"
    in_order = True
