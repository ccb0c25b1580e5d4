"""Drives gnsq: `python -m tests.foreign.clients.gnsq`."""

from __future__ import annotations

import ssl
from typing import Any

import gevent
import gevent.event
import gnsq

from tests.foreign.clients.plan import Plan, Seen, failed, read_plan, tell, wait_for_end


def options(plan: Plan) -> dict[str, Any]:
    """Return what both sides of the library take."""
    chosen: dict[str, Any] = {}
    if plan.layer == "tls":
        chosen |= {"tls_v1": True, "tls_options": {"ca_certs": plan.authority, "cert_reqs": ssl.CERT_REQUIRED}}
    elif plan.layer:
        chosen[plan.layer] = True
    if plan.asks_timeout:
        chosen["msg_timeout"] = int(plan.timeout_s * 1000)
    return chosen


def publish(plan: Plan) -> None:
    """Publish the bodies with the library's bare connection and wait for the answer of each command."""
    connection = gnsq.NsqdTCPClient(*plan.nodes[0].split(":"), **options(plan))
    connection.connect()
    connection.identify()
    for body in plan.messages:
        connection.publish(plan.topic, body)
    tell(answers=[connection.read_response()[1].decode() for _ in plan.messages])


def produce(plan: Plan) -> None:
    """Publish the bodies with the library's producer and wait for the answer of each command."""
    producer = gnsq.Producer(plan.nodes, **options(plan))
    producer.start()
    if plan.work == "mpub":
        answers = [producer.multipublish(plan.topic, plan.messages)]
    else:
        waiting = [producer.publish(plan.topic, body, raise_error=False) for body in plan.messages]
        answers = [one.get() for one in waiting]
    tell(answers=[answer.decode() for answer in answers])


def consume(plan: Plan) -> None:
    """Consume until as much is finished as was asked for."""
    seen, done = Seen(), gevent.event.Event()

    def handle(message: Any) -> None:
        seen.add(message.attempts, message.body)
        if plan.sends_back(message.attempts):
            message.requeue(time_ms=0, backoff=False)
            return
        if plan.leaves(message.attempts):
            return
        if plan.first == "touch":
            gevent.sleep(plan.touches_after_s)
            message.touch()
            gevent.sleep(plan.finishes_after_s)
        message.finish()
        seen.finished += 1
        if seen.finished == plan.count:
            done.set()

    def receive(_: Any, message: Any) -> None:
        message.enable_async()
        gevent.spawn(handle, message)

    consumer = gnsq.Consumer(
        plan.topic,
        plan.channel,
        plan.nodes,
        plan.lookup,
        message_handler=receive,
        lookupd_poll_interval=1,
        max_in_flight=20,
        **options(plan),
    )
    consumer.start(block=False)
    done.wait()
    seen.tell()


def main() -> None:
    """Carry out the plan."""
    plan = read_plan()
    try:
        if plan.work == "consume":
            consume(plan)
        elif plan.work == "publish" and plan.layer:
            publish(plan)  # its producer cannot: see LACKS in drivers.py
        else:
            produce(plan)
    except Exception as error:
        failed(error)
    gevent.get_hub().threadpool.apply(wait_for_end)


main()
