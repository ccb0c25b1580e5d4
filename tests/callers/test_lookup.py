"""A node shows a lookup service that asks who vouches for it, and is announced there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.config import CallersConfig
from penstock.dialects.nsq.config import NsqConfig
from tests.callers.parts import TOKEN, bearer, user, users_in
from tests.served import Served


def found(service: Served) -> list[Any]:
    port = service.ports["nsq.lookup_http_port"]
    answer = service.ask("GET", "/lookup?topic=t", headers=bearer(TOKEN), port=port)
    return [producer["tcp_port"] for producer in answer.json.get("producers", [])]


@pytest.mark.parametrize("token", [TOKEN, "", "a wrong token"])
def test_a_node_is_announced_where_somebody_vouches_for_it(tmp_path: Path, token: str) -> None:
    users_in(tmp_path / "service", [user("node", ("manage", "*"), token=TOKEN)])
    with Served(tmp_path / "service", lookup=True, callers=CallersConfig(anonymous="off")) as service:
        place = f"127.0.0.1:{service.ports['nsq.lookup_tcp_port']}"
        nsq = NsqConfig(lookupd_tcp_addresses=(place,), lookupd_token=token)
        with Served(tmp_path / "node", nsq=nsq) as node:
            node.do(lambda: node.node.obtain("t").now())
            (link,) = node.nsq_running.registrar.links
            if token == TOKEN:
                service.until(lambda: bool(service.nsq_running.lookup.directory.knows("t")))  # type: ignore[union-attr]
                assert found(service) == [node.tcp_port]
            else:
                reason = "wrong_secret" if token else "no_secret"
                service.until(lambda: service.node.gate.refusals[reason, "nsq.lookup_tcp_port"] > 0)
                assert found(service) == []
                node.until(lambda: bool(link.problem))
                assert token not in link.problem or not token
