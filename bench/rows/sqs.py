"""SQS beside ElasticMQ: batches sent, received and deleted, and one message at a time, by requests of boto3's shape."""

from __future__ import annotations

from collections.abc import Iterator

from bench.asking import drop_queue, make_queue
from bench.generator import Run
from bench.measure import Reading, Sample, interleaved
from bench.peers import ElasticMq, Fleet, Penstock, Server, fleet
from bench.plan import Plan
from bench.report import Result, at_least, at_most, cpu, either, rate, ratio, result, shown

CONNECTIONS = 16
BATCH = 10
BODY_BYTES = 64
#: What a receiver finds, for each second of a turn: more than any of them takes away in it.
FILLED_PER_SECOND = 60_000

PEER = ElasticMq.name


def run(plan: Plan) -> Iterator[Result]:
    """Warm Java up, then send by tens, receive and delete by tens, and send one by one."""
    with fleet(ElasticMq, Penstock) as made:
        for server in made.servers.values():
            _warm(server, plan.queue_warm if isinstance(server, ElasticMq) else plan.queue_warm // 100)
        yield _send(made, plan)
        yield _drain(made, plan)
        yield _one(made, plan)


def _send(made: Fleet, plan: Plan) -> Result:
    numbers = interleaved(plan.rounds, made.each(lambda server: _turn(server, plan, connections=CONNECTIONS)))
    by_rate, by_cpu = _ratios(numbers)
    goals = [either(at_least(1.5, by_rate), at_most(0.65, by_cpu, what="CPU "))]
    work = f"SQS SendMessageBatch of {BATCH}, {BODY_BYTES}-byte bodies, {CONNECTIONS} connections"
    return result("sqs", work, numbers, goals, made.missing)


def _drain(made: Fleet, plan: Plan) -> Result:
    def turn(server: Server) -> Sample:
        queue, port = _fresh(server)
        filled = int(FILLED_PER_SECOND * plan.seconds)
        _load(server, queue, "wait", connections=CONNECTIONS, batch=BATCH, count=filled // BATCH)
        # What a receiver finds is as it is in a queue that was filled by somebody else a while ago.
        seen = server.measured(lambda: _load(server, queue, "drain", connections=CONNECTIONS, seconds=plan.seconds))
        drop_queue(port, queue)
        return seen

    numbers = interleaved(plan.rounds, made.each(turn))
    by_rate, by_cpu = _ratios(numbers)
    goals = [at_least(1.5, by_rate), shown("CPU", by_cpu)]
    work = f"SQS receive of {BATCH} + DeleteMessageBatch, {CONNECTIONS} connections"
    return result("sqs", work, numbers, goals, made.missing)


def _one(made: Fleet, plan: Plan) -> Result:
    numbers = interleaved(plan.rounds, made.each(lambda server: _turn(server, plan, batch=0)))
    by_rate, by_cpu = _ratios(numbers)
    goals = [at_most(1, by_cpu, what="CPU "), shown("rate", by_rate)]
    work = f"SQS SendMessage, {BODY_BYTES}-byte body, keep-alive, 1 connection"
    return result("sqs", work, numbers, goals, made.missing)


def _ratios(numbers: dict[str, Reading]) -> tuple[float | None, float | None]:
    """Return our rate and our CPU as multiples of ElasticMQ's."""
    by_rate = ratio(rate(numbers, "penstock"), rate(numbers, PEER))
    return by_rate, ratio(cpu(numbers, "penstock"), cpu(numbers, PEER))


def _turn(server: Server, plan: Plan, *, connections: int = 1, batch: int = BATCH) -> Sample:
    queue, port = _fresh(server)
    options = {"connections": connections, "batch": batch, "seconds": plan.seconds}
    seen = server.measured(lambda: _load(server, queue, "wait", **options))
    drop_queue(port, queue)
    return seen


def _fresh(server: Server) -> tuple[str, int]:
    """Return a queue that nobody used yet, and where it is."""
    assert isinstance(server, ElasticMq | Penstock)
    queue, port = server.topic(), server.sqs_port
    make_queue(port, queue)
    return queue, port


def _load(server: Server, queue: str, mode: str, **options: float) -> Run:
    assert isinstance(server, ElasticMq | Penstock)
    return server.load(mode, dialect="sqs", port=server.sqs_port, topic=queue, size=BODY_BYTES, **options)


def _warm(server: Server, batches: int) -> None:
    """Send some batches, take a part of them away again, and forget the rest."""
    queue, port = _fresh(server)
    _load(server, queue, "wait", connections=CONNECTIONS, batch=BATCH, count=batches)
    _load(server, queue, "drain", connections=CONNECTIONS, count=batches * BATCH // 3)
    drop_queue(port, queue)
