"""Whether the process is up, whether the node can work, and its metrics: what machines ask."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from penstock.api.endpoint import Call, Endpoint, Reply
from penstock.dialect import Described, Hindered
from penstock.node.node import Node
from penstock.observe.exposition import CONTENT_TYPE
from penstock.observe.metrics import exposition

#: Written and removed to see whether the disk takes data.
PROBE = "writable.probe"

#: A disk that does not answer in this time is not ready.
PROBE_S_MAX = 5.0


class Health(msgspec.Struct):
    """The process answers."""

    status: str
    version: str


class Readiness(msgspec.Struct):
    """Whether the node can do its work; what stands against it only for those who may be here."""

    ready: bool
    problems: list[str]
    #: What of timelines or a relay is held back, and why; users that stay as they were though their file is gone. A
    #: topic's own trouble is not the node's.
    degraded: list[str] = []


async def healthz(call: Call[None, None]) -> Health:
    """Say that the process is up."""
    return Health("ok", call.context.version)


async def readyz(call: Call[None, None]) -> Reply:
    """Say whether the node can do its work, and what stands against it."""
    problems = await problems_of(call.node)
    shown = problems if call.caller.is_known else ["show who you are to see what is wrong"] * bool(problems)
    degraded = _degraded(call.node) if call.caller.is_known else []
    answer = Readiness(not problems, shown, degraded)
    return Reply(msgspec.json.encode(answer), status=503 if problems else 200)


def _degraded(node: Node) -> list[str]:
    """Return what works less well than it should, while the node does its work."""
    running = [served.running for served in node.served.values()]
    hindrances = [text for each in running if isinstance(each, Hindered) for text in each.hindrances()]
    return node.health.sentences() + hindrances + ([node.gate.unread] if node.gate.unread else [])


async def problems_of(node: Node) -> list[str]:
    """Return what stands against the node's work."""
    problems = [f"damaged: {damage}" for damage in node.damage()]
    problems += node.read_only()
    problems += node.lost()
    problems += node.registry.problems()
    problems += node.lifecycle.problems()
    problems += node.health.problems()
    problems += node.share.problems() if node.share is not None else []
    if node.membership is not None and node.membership.records.problem:
        problems.append(node.membership.records.problem)
    if node.stopping:
        problems.append("the node is stopping")
    return problems + await _disk(node)


async def metrics(call: Call[None, None]) -> Reply:
    """Return the metrics in Prometheus' text format."""
    served = {name: each.running.samples() for name, each in call.node.served.items()}
    connected = {name: sum(1 for _ in each.running.peers()) for name, each in call.node.served.items()}
    settings, running = call.node.config.metrics, [each.running for each in call.node.served.values()]
    described = [
        partial(each.describe, seed_names=settings.seed_names) for each in running if isinstance(each, Described)
    ]
    text = exposition(call.node, call.context.lag, call.context.version, served, connected, described, settings)
    return Reply(text.encode(), CONTENT_TYPE)


async def _disk(node: Node) -> list[str]:
    """Return what is wrong with the disk: a small file is written and removed."""
    path = f"{node.config.data_dir}/{PROBE}"
    ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def work() -> None:
        file = node.disk.open(path, create=True)
        try:
            file.append([b"penstock"])
        finally:
            file.close()
            node.disk.remove(path)

    def done(_: None, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result(error)

    node.disk.submit("read", work, done)
    try:
        error = await asyncio.wait_for(ended, PROBE_S_MAX)
    except TimeoutError:
        return [f"the disk of {node.config.data_dir} did not answer in {PROBE_S_MAX:.0f} s"]
    return [] if error is None else [f"{node.config.data_dir} cannot be written: {error}"]


ENDPOINTS = (
    Endpoint("GET", "/healthz", healthz, "The process is up", Health, query=None, is_open=True),
    Endpoint("GET", "/readyz", readyz, "The node can do its work", Readiness, query=None, is_open=True),
    Endpoint("GET", "/metrics", metrics, "Prometheus metrics", query=None, media_type="text/plain", on_node="see"),
)
