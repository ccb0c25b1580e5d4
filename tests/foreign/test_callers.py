"""Other people's clients show who they are by what they call their auth secret."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.config import CallersConfig
from tests.callers.parts import SECRET, TOKEN, user, users_in
from tests.foreign.clients.plan import Plan
from tests.foreign.drivers import driving
from tests.served import Served

#: Those that have an auth secret.
CLIENTS = ("pynsq", "nsqjs")
BODY = b64encode(b"a shirt").decode()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    users_in(tmp_path / "data", [user("bob", ("publish", "orders.*"), ("consume", "orders.*"), token=TOKEN)])
    with Served(tmp_path / "data", callers=CallersConfig(anonymous="off")) as node:
        yield node


def plans(served: Served, work: str, secret: str, **more: Any) -> dict[str, Plan]:
    place = [f"127.0.0.1:{served.tcp_port}"]
    return {name: Plan(f"orders.{name}", work, place, secret=secret, **more) for name in CLIENTS}


@pytest.mark.parametrize("secret", [f"bob:{SECRET}", TOKEN])
def test_a_client_with_a_secret_publishes_and_consumes(served: Served, secret: str) -> None:
    with driving(plans(served, "publish", secret, bodies=[BODY])) as answers:
        assert answers == {name: {"answers": ["OK"]} for name in CLIENTS}
        assert served.do(lambda: {c.session.login.caller.name for c in served.nsq_running.server.connections}) == {
            "bob"
        }
    with driving(plans(served, "consume", secret, count=1)) as answers:
        assert answers == {name: {"seen": [[1, BODY]]} for name in CLIENTS}
