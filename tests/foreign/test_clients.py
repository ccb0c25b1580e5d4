"""pynsq, gnsq, ansq and nsqjs, unchanged, against running nodes; `LACKS` in drivers.py lists what one cannot do.

All clients do the same thing at the same time, each on a topic of its own, and the content is compared on the other
side: what a client publishes is read with a bare socket, what it consumes was published over HTTP.
"""

from __future__ import annotations

import base64
import random
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from tests.foreign.clients.plan import Plan
from tests.foreign.drivers import CLIENTS, LACKS, able, driving
from tests.foreign.nodes import SHORT_TIMEOUT_S, Nodes, drain, fill, publisher, running, settled
from tests.nsq.certificates import certificates
from tests.nsq.lookup.programs import until

#: Deliveries with their attempts, as often as each came.
Deliveries = Counter[tuple[int, bytes]]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with running(tmp_path_factory.mktemp("nodes")) as found:
        yield found


def bodies(name: str, count: int = 50) -> list[bytes]:
    """Return bodies of every kind: text, all byte values, what looks like commands, and one over several packets."""
    draw = random.Random(name)
    special = [bytes(range(256)), b"\n", b"FIN 0123456789abcdef\nNOP\n", "größer ≥ 1".encode(), b"\0" * 70_000]
    return [
        *(b"%s %d " % (name.encode(), number) + draw.randbytes(number) for number in range(count)),
        *special,
        special[0],
        draw.randbytes(150_000),
    ]


def layered(name: str) -> list[bytes]:
    """Return bodies that a client can take through a layer.

    pynsq closes a connection when a read ends inside a compressed piece, and keeps what a read brings beyond 64 KiB to
    itself until more bytes come: it gets no large ones.
    """
    return [body for body in bodies(name) if name != "pynsq" or len(body) < 4096]


def encoded(contents: Sequence[bytes]) -> list[str]:
    return [base64.b64encode(body).decode() for body in contents]


def deliveries(answer: dict[str, list[tuple[int, str]]]) -> Deliveries:
    assert "seen" in answer, answer
    return Counter((attempts, base64.b64decode(body)) for attempts, body in answer["seen"])


def once(contents: Sequence[bytes], attempts: int = 1) -> Deliveries:
    return Counter((attempts, body) for body in contents)


@pytest.mark.parametrize("work", ["publish", "mpub"])
def test_what_a_client_publishes_is_stored_as_it_was(nodes: Nodes, work: str) -> None:
    plans = {name: Plan(f"{work}.{name}", work, [nodes.first.tcp], bodies=encoded(bodies(name))) for name in CLIENTS}
    with driving(plans) as answers:
        commands = 1 if work == "mpub" else len(bodies("any"))
        assert answers == {name: {"answers": ["OK"] * commands} for name in CLIENTS}
    for name, plan in plans.items():
        assert drain(nodes.first, plan.topic) == Counter(bodies(name)), name


def test_what_a_client_finishes_came_to_it_once_and_is_gone(nodes: Nodes) -> None:
    plans = {name: Plan(f"finish.{name}", "consume", [nodes.first.tcp], count=len(bodies(name))) for name in CLIENTS}
    for name, plan in plans.items():
        fill(nodes.first, plan.topic, bodies(name))
    with driving(plans) as answers:
        for name, plan in plans.items():
            assert deliveries(answers[name]) == once(bodies(name)), name
            channel = settled(nodes.first, plan.topic)
            (client,) = channel["clients"]
            assert name in client["user_agent"]
            assert client["finish_count"] == client["message_count"] == len(bodies(name))
            assert (channel["requeue_count"], channel["timeout_count"]) == (0, 0)


def test_what_a_client_requeues_comes_again_with_a_second_attempt(nodes: Nodes) -> None:
    contents = {name: bodies(name, 5) for name in CLIENTS}
    plans = {
        name: Plan(f"requeue.{name}", "consume", [nodes.first.tcp], count=len(contents[name]), first="requeue")
        for name in CLIENTS
    }
    for name, plan in plans.items():
        fill(nodes.first, plan.topic, contents[name])
    with driving(plans) as answers:
        for name, plan in plans.items():
            assert deliveries(answers[name]) == once(contents[name]) + once(contents[name], attempts=2), name
            channel = settled(nodes.first, plan.topic)
            assert (channel["requeue_count"], channel["timeout_count"]) == (len(contents[name]), 0)


def timed(nodes: Nodes, name: str, first: str, count: int) -> Plan:
    """Return a plan with a short message timeout: asked for where a client can, else the node's own."""
    asks = name in able("msg_timeout")
    place = (nodes.first if asks else nodes.second).tcp
    return Plan(
        *(f"{first}.{name}", "consume", [place]),
        count=count,
        first=first,
        timeout_s=SHORT_TIMEOUT_S,
        asks_timeout=asks,
    )


@pytest.mark.parametrize("first", ["leave", "touch"])
def test_a_message_times_out_unless_it_is_touched(nodes: Nodes, first: str) -> None:
    contents = {name: [f"{name} {number}".encode() for number in range(2)] for name in CLIENTS}
    plans = {name: timed(nodes, name, first, len(contents[name])) for name in CLIENTS}
    homes = {name: next(node for node in nodes[1:] if [node.tcp] == plan.nodes) for name, plan in plans.items()}
    for name, plan in plans.items():
        fill(homes[name], plan.topic, contents[name])
    with driving(plans) as answers:
        for name, plan in plans.items():
            again = once(contents[name], attempts=2) if first == "leave" else Counter()
            assert deliveries(answers[name]) == once(contents[name]) + again, name
            channel = settled(homes[name], plan.topic)
            assert (channel["requeue_count"], channel["timeout_count"]) == (0, len(again)), name


@pytest.mark.parametrize("layer", ["tls", "snappy", "deflate"])
def test_a_client_publishes_and_consumes_through_a_layer(nodes: Nodes, layer: str) -> None:
    authority = str(certificates().authority)
    place = [nodes.first.tcp]
    publishing = {
        name: Plan(
            *(f"{layer}.{name}", "publish", place),
            bodies=encoded(layered(name)),
            layer=layer,
            authority=authority,
        )
        for name in able(layer)
    }
    with driving(publishing) as answers:
        for name, plan in publishing.items():
            assert answers[name] == {"answers": ["OK"] * len(layered(name))}, name
            assert publisher(nodes.first, plan.topic)[layer] is True
    consuming = {
        name: Plan(plan.topic, "consume", place, count=len(layered(name)), layer=layer, authority=authority)
        for name, plan in publishing.items()
    }
    with driving(consuming) as answers:
        for name, plan in consuming.items():
            assert deliveries(answers[name]) == once(layered(name)), name
            (client,) = settled(nodes.first, plan.topic)["clients"]
            assert {kind: client[kind] for kind in ("tls", "snappy", "deflate")} == {
                kind: kind == layer for kind in ("tls", "snappy", "deflate")
            }


@pytest.mark.parametrize("count", [1, 2])
def test_a_client_finds_every_node_of_a_topic_through_the_lookup_service(nodes: Nodes, count: int) -> None:
    homes = nodes[1 : 1 + count]
    contents = {(name, at): [f"{name} {at} {n}".encode() for n in range(50)] for name in CLIENTS for at in range(count)}
    plans = {
        name: Plan(f"lookup{count}.{name}", "consume", [], [nodes.lookup.http], count=50 * count) for name in CLIENTS
    }
    for (name, at), published in contents.items():
        fill(homes[at], plans[name].topic, published)
    ports = sorted(node.port("TCP") for node in homes)
    until(lambda: all(nodes.lookup.producers(plan.topic) == ports for plan in plans.values()))
    with driving(plans) as answers:
        for name, plan in plans.items():
            wanted = sum((once(contents[name, at]) for at in range(count)), Deliveries())
            assert deliveries(answers[name]) == wanted, name
            for node in homes:
                assert settled(node, plan.topic)["message_count"] == 50


@pytest.mark.parametrize(("name", "feature"), LACKS)
def test_a_client_without_a_feature_says_so_itself(nodes: Nodes, name: str, feature: str) -> None:
    plan = Plan(f"lacks.{name}", "consume", [nodes.first.tcp])
    if feature == "producer through a layer":
        plan.work, plan.layer, plan.bodies = "produce", "snappy", encoded([b"x"])
    elif feature == "msg_timeout":
        plan.timeout_s, plan.asks_timeout = SHORT_TIMEOUT_S, True
    else:
        plan.layer = feature
    with driving({name: plan}) as answers:
        assert answers[name].get("error", "nothing").startswith(LACKS[name, feature]), answers
