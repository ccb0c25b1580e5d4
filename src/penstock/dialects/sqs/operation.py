"""One operation: what is asked, and who carries it out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from penstock.callers import Caller
from penstock.dialects.sqs.names import Names
from penstock.http import Request
from penstock.registry.answer import Answer


class Asked(NamedTuple):
    """A request on its way to its operation."""

    request: Request
    caller: Caller
    params: Any
    names: Names

    @property
    def base_url(self) -> str:
        """How whoever asks reaches the node."""
        host = self.request.header(b"host").decode("latin-1") or "localhost"
        return self.names.base(host, secure=self.request.connection.is_secure)

    def url_of(self, name: str) -> str:
        """Return the address of a queue for whoever asks."""
        return self.names.url(name, self.base_url)


#: Carries an operation out: returns what is answered, now or later.
Carry = Callable[[Asked], "msgspec.Struct | Answer[Any]"]


class Operation(NamedTuple):
    """One row of the table."""

    kind: type[msgspec.Struct]
    carry: Carry
    #: Of a service that speaks the older form alone, and not SQS's.
    namespace: str = ""
    #: Tells of parameters whether somebody who is not known may ask for this.
    is_open: Callable[[Any], bool] | None = None
