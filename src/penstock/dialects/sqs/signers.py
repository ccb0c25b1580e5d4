"""Who asks: the holder of the access key that signed a request, or whoever may come without a word.

Where nobody has to say who it is (on this machine, unless it is configured otherwise), a key that no user has is as
good as none: SDKs cannot ask without one.
"""

from __future__ import annotations

import hmac

from penstock.callers import Caller
from penstock.callers.identity import Identity
from penstock.dialects.sqs.codec.signature import signature_of, signed
from penstock.dialects.sqs.faults import Fault
from penstock.http import Request
from penstock.node.node import Node


class Signers:
    """Makes callers of signed requests."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def caller(self, request: Request) -> Caller:
        """Return who asks; refuse a wrong signature, and somebody who must sign and did not."""
        gate, caller = self._node.gate, request.caller
        if caller.identity.how == "peer":  # the node that brings it has looked
            return caller
        found = signed(request.header(b"authorization"), request.query, request.headers)
        known = gate.access_key(found.key_id) if found is not None else None
        if found is None or known is None:
            if not caller.is_known:
                if found is not None:
                    gate.noted(caller.showing(Identity("", "wrong", note="no such access key")))
                    text = "The security token included in the request is invalid."
                    raise Fault("InvalidClientTokenId", text)
                caller.check_known()
            return caller
        secret, identity = known
        found.check_time(self._node.clock.now())
        parts = request.method, request.path, request.query, request.headers, request.body
        if not hmac.compare_digest(signature_of(found, secret, *parts).encode(), found.signature.encode()):
            gate.noted(caller.showing(Identity("", "wrong", note=f"wrong signature (user {identity.user})")))
            raise Fault(
                "SignatureDoesNotMatch",
                "The request signature we calculated does not match the signature you provided. Check your AWS Secret "
                "Access Key and signing method. Consult the service documentation for details.",
            )
        last = request.connection.visitor.signed
        if last is None or last.identity != identity or not last.is_known:
            if last is not None:
                gate.leave(last)
            last = request.connection.visitor.signed = gate.noted(caller.showing(identity))
        last.doing = caller.doing
        return last
