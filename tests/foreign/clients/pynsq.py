"""Drives pynsq: `python -m tests.foreign.clients.pynsq`."""

from __future__ import annotations

import asyncio
from typing import Any

import nsq

from tests.foreign.clients.plan import Plan, Seen, failed, read_plan, tell, wait_for_end


def options(plan: Plan) -> dict[str, Any]:
    """Return what both sides of the library take."""
    chosen: dict[str, Any] = {}
    if plan.layer == "tls":
        chosen |= {"tls_v1": True, "tls_options": {"ca_certs": plan.authority}}
    elif plan.layer:
        chosen[plan.layer] = True
    if plan.secret:
        chosen["auth_secret"] = plan.secret
    if plan.asks_timeout:
        chosen["msg_timeout"] = plan.timeout_s
    return chosen


async def publish(plan: Plan) -> None:
    """Publish the bodies and wait for the answer of each command."""
    writer = nsq.Writer(plan.nodes, **options(plan))
    while not writer.conns:
        await asyncio.sleep(0.01)
    loop = asyncio.get_running_loop()
    answers: list[asyncio.Future[Any]] = []

    def answer() -> Any:
        answers.append(loop.create_future())
        future = answers[-1]
        return lambda _, data: future.set_result(data)

    if plan.work == "mpub":
        writer.mpub(plan.topic, plan.messages, answer())
    else:
        for body in plan.messages:
            writer.pub(plan.topic, body, answer())
    tell(answers=[str(one, "ascii") if isinstance(one, bytes) else repr(one) for one in await asyncio.gather(*answers)])


async def consume(plan: Plan) -> None:
    """Consume until as much is finished as was asked for."""
    seen, done = Seen(), asyncio.Event()

    async def handle(message: Any) -> None:
        seen.add(message.attempts, message.body)
        if plan.sends_back(message.attempts):
            message.requeue(delay=0, backoff=False)
            return
        if plan.leaves(message.attempts):
            return
        if plan.first == "touch":
            await asyncio.sleep(plan.touches_after_s)
            message.touch()
            await asyncio.sleep(plan.finishes_after_s)
        message.finish()
        seen.finished += 1
        if seen.finished == plan.count:
            done.set()

    tasks = []

    def receive(message: Any) -> None:
        message.enable_async()
        tasks.append(asyncio.create_task(handle(message)))

    nsq.Reader(
        plan.topic,
        plan.channel,
        message_handler=receive,
        nsqd_tcp_addresses=plan.nodes,
        lookupd_http_addresses=[f"http://{place}" for place in plan.lookup],
        lookupd_poll_interval=1,
        max_in_flight=20,
        **options(plan),
    )
    await done.wait()
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
