"""Flight puts and pipelined PUBs at the same node: what each leaves the other, and how long a quiet publisher waits."""

from __future__ import annotations

from collections.abc import Iterator

from bench import flight, generator, measure
from bench.generator import Run
from bench.measure import Reading, Sample, reading
from bench.peers import Penstock, fleet
from bench.plan import Plan
from bench.report import Result, at_least, at_most, p99_ms, phrase, rate, rate_words, ratio, table_row

SHARE_MIN = 0.4
DELAY_MS_MAX = 5

#: What is read in a round: each alone, a quiet publisher beside Flight, and both together.
PUT, PUB, QUIET, PUT_BESIDE, PUB_BESIDE = "put", "pub", "quiet", "put beside", "pub beside"


def run(plan: Plan) -> Iterator[Result]:
    """Each alone, then both; the delay is a quiet connection's PUB to OK, once a millisecond."""
    numbers: dict[str, Reading] = {}
    with fleet(Penstock) as made:
        for server in made.servers.values():
            assert isinstance(server, Penstock)
            rounds = [_round(server, plan.seconds + 1) for _ in range(plan.rounds)]
            numbers = {name: reading([each[name] for each in rounds]) for name in rounds[0]}
    goals = [
        at_least(SHARE_MIN, _share(numbers, PUT_BESIDE, PUT), what="Flight put, of alone "),
        at_least(SHARE_MIN, _share(numbers, PUB_BESIDE, PUB), what="PUB, of alone "),
        at_most(DELAY_MS_MAX, p99_ms(numbers, PUB_BESIDE), " ms", "quiet PUB to OK beside both, p99 "),
        at_most(DELAY_MS_MAX, p99_ms(numbers, QUIET), " ms", "beside Flight put only, p99 "),
    ]
    work = f"Flight put of {flight.ROWS:,}-row batches while a connection pipelines PUB; a quiet connection's PUB to OK"
    yield table_row("beside", work, _words(numbers), goals, made.missing)


def _round(server: Penstock, seconds: float) -> dict[str, Sample]:
    measure.quiet()
    found = {
        PUT: server.measured(lambda: flight.put(server.flight_port, "put", seconds=seconds)),
        PUB: server.sample("neighbour", topic="pub", seconds=seconds),
    }
    measure.quiet()
    _, found[QUIET] = _put_beside("probe", server, seconds)
    found[PUT_BESIDE], found[PUB_BESIDE] = _put_beside("neighbour", server, seconds)
    return found


def _put_beside(mode: str, server: Penstock, seconds: float) -> tuple[Sample, Sample]:
    """Put while the load generator publishes; CPU is that of a row or message, whichever it is."""
    seen: list[Run] = []

    def both() -> Run:
        other = generator.started(mode, port=server.port, topic="pub", seconds=seconds)
        put = flight.put(server.flight_port, "put", seconds=seconds)
        seen.extend((put, generator.finished(other)))
        return Run(sum(run.messages for run in seen), put.seconds)

    cpu_us = server.measured(both).cpu_us
    put, other = seen
    return Sample(put.rate, cpu_us), Sample(other.rate, cpu_us, other.p50_us, other.p99_us)


def _share(numbers: dict[str, Reading], beside: str, alone: str) -> float | None:
    return ratio(rate(numbers, beside), rate(numbers, alone))


def _words(numbers: dict[str, Reading]) -> dict[str, str]:
    if not numbers:
        return {}
    put, pub, quiet = numbers[PUT_BESIDE], numbers[PUB_BESIDE], numbers[QUIET]
    return {
        "Flight put alone": phrase(numbers[PUT]),
        "PUB alone": phrase(numbers[PUB]),
        "penstock": f"{rate_words(put.rate)} of Flight put beside {rate_words(pub.rate)} of PUB, {put.cpu_us:.3g} µs a "
        f"row; quiet PUB p50 / p99 {pub.p50_us / 1000:.3g} / {pub.p99_us / 1000:.3g} ms, "
        f"beside Flight put only {quiet.p50_us / 1000:.3g} / {quiet.p99_us / 1000:.3g} ms",
    }
