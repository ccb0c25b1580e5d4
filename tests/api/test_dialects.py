"""Who serves clients on a node, where, and who is connected: as the API and the metrics tell it."""

from __future__ import annotations

from tests.nsq.caller import Caller
from tests.served import Served


def test_every_listener_is_listed_with_where_it_is(served: Served) -> None:
    listed = {each["name"]: each for each in served.get("dialects").json["dialects"]}
    assert list(listed) == ["api", "nsq", "dynamiq"]
    (api,) = listed["api"]["listeners"]
    place = f"http://127.0.0.1:{served.api.port}"
    assert api == {"key": "api.port", "kind": "http", "purpose": "admin API", "place": place}
    tcp, http = listed["nsq"]["listeners"]
    assert (tcp["purpose"], tcp["place"]) == ("NSQ", f"127.0.0.1:{served.tcp_port}")
    assert (http["purpose"], http["place"]) == ("NSQ HTTP", f"http://127.0.0.1:{served.ports['nsq.http_port']}")


def test_who_is_connected_is_listed_with_what_it_receives(served: Served) -> None:
    served.publish("orders", "a", "b")
    with Caller(served.tcp_port) as client:
        client.identify(client_id="worker-7")
        client.send(b"SUB orders audit\nRDY 1\n")
        assert client.told() == "OK"
        assert client.frame()[0] == 2
        (peer,) = served.get("peers?dialect=nsq").json["peers"]
        assert (peer["name"], peer["listener"]) == ("worker-7", "nsq.tcp_port")
        assert (peer["topic"], peer["subscription"], peer["in_flight"]) == ("orders", "audit", 1)
        assert peer["address"].startswith("127.0.0.1:")
        assert served.get("peers?topic=other").json == {"total": 0, "peers": []}
        assert served.get("peers?limit=1").json["total"] == 2
        assert "penstock_nsq_connections 1\n" in served.get("/metrics").content.decode()
    served.until(lambda: not served.nsq_running.server.connections)
    assert served.get("peers?dialect=nsq").json["total"] == 0
