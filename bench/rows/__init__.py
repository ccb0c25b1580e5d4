"""The rows of the target table: one module each, one function from a plan to its lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from bench.plan import Plan
from bench.report import Result
from bench.rows import (
    backlog,
    batches,
    beside,
    crowd,
    deal,
    deliver,
    dory,
    due,
    dynamiq,
    flight,
    fsync,
    http,
    idle,
    kafka_feed,
    kafka_relay,
    latency,
    m3msg,
    mpub,
    neighbour,
    policy,
    publish,
    queues,
    seconds,
    shared_log,
    spark,
    sqs,
    tens,
    timeline,
    together,
    traffic,
    wait,
)

Row = Callable[[Plan], Iterator[Result]]

ROWS: Mapping[str, Row] = {
    "publish": publish.run,
    "deliver": deliver.run,
    "deliver-lone": deliver.run_lone,
    "wait": wait.run,
    "http": http.run,
    "together": together.run,
    "batches": batches.run,
    "mpub": mpub.run,
    "fsync": fsync.run,
    "mpub-fsync": mpub.run_synced,
    "crowd": crowd.run,
    "tags": crowd.run_tagged,
    "latency": latency.run,
    "neighbour": neighbour.run,
    "traffic": traffic.run,
    "policy": policy.run,
    "deal": deal.run,
    "backlog": backlog.run,
    "due": due.run,
    "idle": idle.run,
    "flight": flight.run,
    "m3msg-in": m3msg.run,
    "m3msg-through": m3msg.run_through,
    "kafka-in": kafka_feed.run,
    "kafka-out": kafka_relay.run,
    "dory": dory.run,
    "dory-stream": dory.run_stream,
    "dory-beside": dory.run_beside,
    "dory-idle": dory.run_idle,
    "beside": beside.run,
    "replay": seconds.run_replay,
    "start": seconds.run_start,
    "report-small": seconds.run_report,
    "sqs": sqs.run,
    "dynamiq": dynamiq.run,
    "tens": tens.run,
    "queue-depth": dynamiq.run_depth,
    "queue-memory": queues.run_memory,
    "queue-idle": queues.run_idle,
    "timeline": timeline.run,
    "timeline-late": timeline.run_late,
    "timeline-wait": timeline.run_wait,
    "shared-log": shared_log.run,
    "spark": spark.run,
    "jobs": spark.run_jobs,
}

#: Too long for every run, or a part of a row above; `--only` names them.
EXTRA: Mapping[str, Row] = {
    "backlog-lone": backlog.run_lone,
    "spark-read": spark.run_read,
    "spark-stream": spark.run_stream,
    "spark-write": spark.run_write,
}
