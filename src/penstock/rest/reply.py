"""An answer that is more than a value: bytes of some type, with a status and headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.http import Response

JSON = "application/json"


class Reply(NamedTuple):
    """An answer that is not JSON, or not a 200."""

    content: bytes
    media_type: str = JSON
    status: int = 200
    headers: Mapping[str, str] = {}

    def response(self) -> Response:
        """Return it as it is sent."""
        return answered(*self)


def answered(content: bytes, media_type: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer with content."""
    named = {"content-type": media_type, **(headers or {})}
    return Response(content, tuple((name.encode(), value.encode()) for name, value in named.items()), status)
