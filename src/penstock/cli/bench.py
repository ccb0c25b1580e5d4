"""`penstock bench`: what a running node does on this machine, in a few seconds.

A first impression, not a comparison: `make bench` in the sources measures beside other brokers.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from penstock.cli.client import Client, part
from penstock.cli.failure import USAGE, Failure
from penstock.cli.printer import Printer

#: Enough single round trips for a p99 and still under a second.
LONE_MESSAGES = 2000


def bench(
    client: Client,
    out: Printer,
    messages: Annotated[int, typer.Option("--messages", "-n", min=1000, help="How many to publish.")] = 200_000,
    size: Annotated[int, typer.Option("--size", min=1, max=1 << 20, help="Bytes of a body.")] = 100,
    nsq: Annotated[
        str | None,
        typer.Option(help="The node's NSQ port.", metavar="HOST:PORT", show_default="as the configuration says"),
    ] = None,
) -> None:
    """Publish, deliver and finish messages over the NSQ port, and print the rates."""
    from penstock.cli.nsq import Nsq

    host, port = _place(nsq)
    topic = f"bench.{os.getpid()}"
    body = b"x" * size
    client.get("/topics")  # an unreachable admin API shall not leave a topic behind
    connection = Nsq(host, port)
    try:
        publish_s = connection.publish(topic, body, messages)
        lone_s = connection.publish_one_by_one(topic, body, LONE_MESSAGES)
        deliver_s = connection.consume(topic, "bench", size, messages + LONE_MESSAGES)
    finally:
        connection.close()
        client.call("DELETE", f"/topics/{part(topic)}", accept=(404,))
    rates = {
        "messages": messages,
        "body_bytes": size,
        "publish_per_second": round(messages / publish_s),
        "publish_wait_p50_us": round(lone_s[LONE_MESSAGES // 2] * 1e6),
        "publish_wait_p99_us": round(lone_s[LONE_MESSAGES * 99 // 100] * 1e6),
        "deliver_finish_per_second": round((messages + LONE_MESSAGES) / deliver_s),
    }
    out.fields(
        rates,
        {
            "publish, pipelined": f"{rates['publish_per_second']:,} messages/s",
            "publish, wait for OK": f"p50 {rates['publish_wait_p50_us']:,} us, p99 {rates['publish_wait_p99_us']:,} us",
            "deliver + FIN": f"{rates['deliver_finish_per_second']:,} messages/s",
            "": f"one connection each way, {messages:,} bodies of {size} bytes",
        },
    )


def _place(nsq: str | None) -> tuple[str, int]:
    if nsq is None:
        from penstock.cli.table import load
        from penstock.dialects.nsq.config import endpoints

        _, _, _, address, port, *_ = endpoints(load().config)[0]
        if not port:
            raise Failure("nsq.tcp_port is 0, any free port, so it must be named: --nsq 127.0.0.1:PORT", USAGE)
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address), port
    host, _, number = nsq.rpartition(":")
    if not number.isdigit():
        raise Failure(f'--nsq "{nsq}" is not understood; write HOST:PORT, like 127.0.0.1:4150', USAGE)
    return host.strip("[]") or "127.0.0.1", int(number)
