"""A way in for other nodes: by the name of a listener, whose bytes then follow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from penstock.callers import Caller

#: Makes the protocol of a connection that another node brings: for whom, and what the door wants to know first. May
#: refuse it.
Door: TypeAlias = Callable[[Caller, bytes], asyncio.Protocol]
