from __future__ import annotations

import json
import urllib.request
from pathlib import Path

from tests.cli.program import Node, Running, penstock
from tests.nsq.lookup.programs import until

ANY = ("--set=nsq.lookup_tcp_port=0", "--set=nsq.lookup_http_port=0")


def test_the_lookup_service_runs_alone_and_stops_on_a_signal(tmp_path: Path) -> None:
    with Running("lookupd", *ANY, "--ready-file", "ready.json", cwd=tmp_path) as service:
        assert service.line().startswith(b"The NSQ lookup service is up")
        tcp, http = service.line().split()[-1], service.line().split()[-1]
        ports = json.loads((tmp_path / "ready.json").read_bytes())["ports"]
        assert tcp.decode() == f"127.0.0.1:{ports['nsq.lookup_tcp_port']}"
        assert set(ports) == {"nsq.lookup_tcp_port", "nsq.lookup_http_port"}
        with urllib.request.urlopen(http.decode() + "/topics", timeout=10) as answer:
            assert json.load(answer) == {"topics": []}
        assert service.end() == 0
        assert "Traceback" not in service.errors()
    assert not (tmp_path / "penstock-data").exists()


def test_a_node_finds_itself_through_its_own_lookup_service_and_through_another(tmp_path: Path) -> None:
    with Running("lookupd", *ANY, cwd=tmp_path) as service:
        service.line()
        tcp, http = (service.line().split()[-1].decode() for _ in range(2))
        with Node(tmp_path, "--set", f"nsq.lookupd_tcp_addresses={tcp}") as node:
            node.ok("pub", "orders", "one")
            own = f"http://127.0.0.1:{node.port('nsq.lookup_http_port')}"
            for place in (own, http):
                found = _producers(place, "orders")
                assert [peer["tcp_port"] for peer in found] == [node.port("nsq.tcp_port")]
                assert found[0]["broadcast_address"] == "127.0.0.1"
            node.ok("topic", "delete", "orders", "--yes")
            assert _producers(own, "orders", wanted=0) == []
            assert _producers(http, "orders", wanted=0) == []


def test_a_lookup_service_beyond_this_machine_is_refused_with_its_own_listener(tmp_path: Path) -> None:
    done = penstock("lookupd", "--set=nsq.address=0.0.0.0", *ANY, cwd=tmp_path)
    assert done.code == 2
    assert done.error.startswith(
        'penstock: nsq.address = "0.0.0.0" opens NSQ lookup (nsq.lookup_tcp_port) beyond this machine without TLS and '
        "callers; its protocol has no TLS, so reach it by a network that strangers are kept out of, or listen on 127.0"
    )
    with Running("lookupd", "--set=nsq.address=0.0.0.0", "--insecure", *ANY, cwd=tmp_path) as service:
        assert service.line().startswith(b"The NSQ lookup service is up")
        assert service.end() == 0


def test_a_bad_address_of_a_lookup_service_is_refused_at_the_start(tmp_path: Path) -> None:
    done = penstock("up", "--set", "nsq.lookupd_tcp_addresses=127.0.0.1", cwd=tmp_path)
    assert (done.code, done.error) == (
        2,
        'penstock: nsq.lookupd_tcp_addresses: "127.0.0.1" is no address; write HOST:PORT, like 127.0.0.1:4160\n',
    )


def _producers(place: str, topic: str, wanted: int = 1) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []

    def look() -> bool:
        nonlocal found
        with urllib.request.urlopen(f"{place}/lookup?topic={topic}&access=r", timeout=10) as answer:
            found = json.load(answer)["producers"]
        return len(found) == wanted

    until(look)
    return found
