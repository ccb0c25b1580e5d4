"""Keywords of calls: one that is not there offers the nearest that is."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from penstock.errors import hint

P = ParamSpec("P")
R = TypeVar("R")


def hinted(call: Callable[P, R]) -> Callable[P, R]:
    """Let a method say which keyword was meant."""
    names = [name for name in signature(call).parameters if name != "self"]
    known = frozenset(names)

    @wraps(call)
    def checked(*args: P.args, **keywords: P.kwargs) -> R:
        for name in keywords:
            if name not in known:
                raise TypeError(f"{call.__name__}() has no {name!r}; {hint(name, names, show=repr)}")
        return call(*args, **keywords)

    return checked
