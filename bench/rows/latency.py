"""From the publisher's send to the consumer's read, at fixed rates, and what a message costs there."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench.measure import interleaved
from bench.peers import Nsqd, Penstock, Redis, fleet
from bench.plan import Plan
from bench.report import Result, at_most, cpu, p99_ms, ratio, result

RATES = (10_000, 20_000, 50_000)
#: nsqd gathers 16 KiB for a consumer before it writes; this is its way to ask for none of that.
UNBUFFERED = '{"output_buffer_size":-1}'


def run(plan: Plan) -> Iterator[Result]:
    """Publish at each rate; nsqd is the peer as it comes, and shown unbuffered beside."""
    with fleet(Nsqd, Redis, Penstock) as made:
        for rate in RATES:
            options = {"rate": rate, "seconds": plan.seconds}
            turns = made.turns("paced", options)
            if nsqd := made.servers.get("nsqd"):
                turns["nsqd unbuffered"] = partial(nsqd.sample_fresh, "paced", {**options, "identify": UNBUFFERED})
            numbers = interleaved(plan.rounds, turns)
            ours = p99_ms(numbers, "penstock")
            goals = [
                at_most(1, ours, " ms", "p99 "),
                at_most(0.25, ratio(ours, p99_ms(numbers, "nsqd")), what="p99 of nsqd's "),
                at_most(0.9, ratio(cpu(numbers, "penstock"), cpu(numbers, "nsqd")), what="CPU of nsqd's "),
            ]
            yield result("latency", f"latency at {rate // 1000} k msg/s", numbers, goals, made.missing)
