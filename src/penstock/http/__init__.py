"""HTTP/1 for everybody who speaks it here: a parser in C, routes, bodies within limits, answers in order.

No framework and no task per request: a handler returns its answer, or gives it later. Whoever needs coroutines makes
tasks of its own.
"""

from penstock.http.app import App, Broken, Shortcut
from penstock.http.connection import Connection
from penstock.http.door import Door
from penstock.http.listener import Listener
from penstock.http.pages import Pages
from penstock.http.request import Request
from penstock.http.response import Response
from penstock.http.routes import NoMethod, Route, Routes

__all__ = [
    "App",
    "Broken",
    "Connection",
    "Door",
    "Listener",
    "NoMethod",
    "Pages",
    "Request",
    "Response",
    "Route",
    "Routes",
    "Shortcut",
]
