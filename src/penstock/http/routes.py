"""From a method and a path to who answers: literal paths, and patterns with names in braces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from penstock.errors import Refusal
from penstock.http.request import NO_NAMES, Request
from penstock.http.response import Response
from penstock.registry.answer import Answer

#: Returns the response, now or later, or None and gives it to the request itself; raises what the application has words
#: for.
Handle = Callable[[Request], Response | Answer[Response] | Answer[Response | None] | None]


class Route(NamedTuple):
    """Who answers a request."""

    handle: Handle
    #: More is refused before it is read, or as it comes.
    body_bytes_max: int = 0
    #: How that is refused; None = as `message_too_big`.
    too_big: Exception | None = None
    #: Changes nothing, whoever asks; a web page from elsewhere may follow a link to it.
    only_reads: bool = False


class NoMethod(Refusal):
    """The path is known, the method is not."""

    def __init__(self, method: str, path: str, allowed: Iterable[str]) -> None:
        self.allowed = tuple(allowed)
        possible = ", ".join(self.allowed)
        super().__init__("method_not_allowed", f"{method} is not possible on {path}; possible: {possible}")


class Routes:
    """A table of routes, by path and method."""

    def __init__(self, table: Iterable[tuple[str, str, Route]], *, head: bool = False) -> None:
        """Take (method, path, route) rows; with `head` whatever answers GET answers HEAD too, without its content."""
        self._literal: dict[str, dict[str, Route]] = {}
        #: By number of parts: the parts of a path, None where a name stands, with the names.
        self._patterns: dict[int, list[tuple[list[str | None], list[str], dict[str, Route]]]] = {}
        methods: dict[str, dict[str, Route]] = {}
        for method, path, route in table:
            methods.setdefault(path, {})[method] = route
            if head and method == "GET":
                methods[path].setdefault("HEAD", route)
        for path, routes in methods.items():
            if "{" not in path:
                self._literal[path] = routes
                continue
            parts = path.split("/")
            names = [part[1:-1] for part in parts if part.startswith("{")]
            shape = [None if part.startswith("{") else part for part in parts]
            self._patterns.setdefault(len(parts), []).append((shape, names, routes))
        for patterns in self._patterns.values():  # of two that match, the one with fewer names is meant
            patterns.sort(key=lambda pattern: len(pattern[1]))

    def find(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        """Return who answers, and what stands in place of the names; refuse what nobody answers."""
        names = NO_NAMES
        routes = self._literal.get(path)
        if routes is None:
            routes, names = self._matching(path)
        route = routes.get(method)
        if route is None:
            raise NoMethod(method, path, routes)
        return route, names

    def _matching(self, path: str) -> tuple[dict[str, Route], Mapping[str, str]]:
        parts = path.split("/")
        for shape, names, routes in self._patterns.get(len(parts), ()):
            given = [part for part, known in zip(parts, shape, strict=True) if known is None]
            literal = all(known is None or known == part for part, known in zip(parts, shape, strict=True))
            if literal and all(given):
                return routes, dict(zip(names, given, strict=True))
        raise Refusal("not_found", f"there is nothing at {path}")
