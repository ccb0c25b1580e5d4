"""Drives ansq: `python -m tests.foreign.clients.ansq`."""

from __future__ import annotations

import asyncio
from typing import Any

import ansq
from ansq.tcp.types import ConnectionFeatures, ConnectionOptions

from tests.foreign.clients.plan import Plan, Seen, failed, read_plan, tell, wait_for_end


def options(plan: Plan) -> Any:
    """Return what both sides of the library take."""
    features: dict[str, Any] = {}
    if plan.layer:
        features["tls_v1" if plan.layer == "tls" else plan.layer] = True
    if plan.asks_timeout:
        features["msg_timeout"] = int(plan.timeout_s * 1000)
    return ConnectionOptions(features=ConnectionFeatures(**features))


async def publish(plan: Plan) -> None:
    """Publish the bodies and wait for the answer of each command."""
    writer = await ansq.create_writer(plan.nodes, options(plan))
    if plan.work == "mpub":
        answers = [await writer.mpub(plan.topic, *plan.messages)]
    else:
        answers = await asyncio.gather(*(writer.pub(plan.topic, body) for body in plan.messages))
    tell(answers=[answer.text for answer in answers])


async def consume(plan: Plan) -> None:
    """Consume until as much is finished as was asked for."""
    seen = Seen()
    reader = await ansq.create_reader(
        plan.topic,
        plan.channel,
        plan.nodes,
        plan.lookup,
        lookupd_poll_interval=1000,
        connection_options=options(plan),
    )
    async for message in reader.messages():
        seen.add(message.attempts, message.body)
        if plan.sends_back(message.attempts):
            await message.req(0)
            continue
        if plan.leaves(message.attempts):
            continue
        if plan.first == "touch":
            await asyncio.sleep(plan.touches_after_s)
            await message.touch()
            await asyncio.sleep(plan.finishes_after_s)
        await message.fin()
        seen.finished += 1
        if seen.finished == plan.count:
            break
    seen.tell()


async def main() -> None:
    """Carry out the plan."""
    plan = read_plan()
    try:
        await (consume(plan) if plan.work == "consume" else publish(plan))
    except Exception as error:
        failed(error)
    await asyncio.to_thread(wait_for_end)


asyncio.run(main())
