"""The pipeline's jobs beside the same work on Spark's own: archive, rollup, route; a report; the default pipeline."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from bench import measure, supply
from bench.generator import LoadFailed
from bench.measure import Reading, Sample, interleaved
from bench.peers import Penstock
from bench.plan import Plan
from bench.ports import free_offset
from bench.report import Result, at_least, at_most, rate, ratio, result, shown, table_row
from bench.spark.job import Job, Place
from bench.spark.messages import BATCH_ROWS, TOPIC, stored
from bench.spark.site import Site

SAMPLES = "samples"
SERIES = 10_000
#: What the rollup reads.
READ = "topic,shard,offset,timestamp,key,headers,body,event_time,traffic"
#: What the report reads.
REPORTED = "topic,shard,offset,timestamp,source,key,tag,bucket,due,body"
REPORT_ROWS, REPORT_S_MAX = 10_000_000, 60
MEMORY_MB_MAX = 1_200
#: The default pipeline has all its processes, and Java most of its memory, after so many batches.
BATCHES = 4
#: What it may take at the shop's twenty messages a second, of one core and of the disk; measured over so many batches,
#: among which files are merged once, and those that were merged before removed.
CPU_PERCENT_MAX, DISK_MB_MAX, MEASURED_BATCHES = 5, 50, 5
DAY_S = 24 * 3600
PATIENCE_S = 900.0


def lines(site: Site, plan: Plan) -> Iterator[Result]:
    """Do each job and its like in turns."""
    yield from _archive(site, plan)
    _fill_samples(site)
    yield from _rollup(site, plan)
    yield from _route(site, plan)
    yield from _report(site)


def run_memory(plan: Plan) -> Iterator[Result]:
    """Run a node with the default pipeline, as `make up` does, and weigh its processes."""
    with tempfile.TemporaryDirectory(dir=supply.BUILD) as place:
        words = ["up", "--data", f"{place}/data", "--port-offset", str(free_offset(Penstock.ports)), "--quiet"]
        with open(f"{place}/log", "wb") as log:
            command = [str(supply.penstock()), *words, "--pipeline", "default"]
            node = subprocess.Popen(command, stdout=log, stderr=log, cwd=place)
        try:
            _wait_for(Path(place, "data", "pipelines", "default", "status.json"), BATCHES)
            found = {pid: measure.pss_bytes(pid) / 1e6 for pid in measure.family(node.pid)}
            mine = found.pop(node.pid)
            percent, disk_mb = _upkeep(node.pid, Path(place, "data"))
        finally:
            node.send_signal(signal.SIGTERM)
            node.wait(60)
    java = max(found.values())
    words_of = {"penstock": f"{sum(found.values()):.0f} MB in {len(found)} processes, Java {java:.0f} MB"}
    goals = [at_most(MEMORY_MB_MAX, sum(found.values()), " MB"), shown("the node beside it", mine, " MB")]
    yield table_row("memory", f"PSS of the default pipeline after {BATCHES} batches", words_of, goals, {})
    words_of = {"penstock": f"{percent:.1f} % of a core, {disk_mb:.0f} MB of disk a day"}
    goals = [at_most(CPU_PERCENT_MAX, percent, " %"), at_most(DISK_MB_MAX, disk_mb, " MB")]
    yield table_row("upkeep", "the node and the default pipeline at 20 messages a second", words_of, goals, {})


def _upkeep(pid: int, data: Path) -> tuple[float, float]:
    """Return what a node and its pipeline take: percents of a core, and MB a day that tables and checkpoints grow by.

    Topics do not count: they have a retention.
    """
    status = data / "pipelines" / "default" / "status.json"

    def size() -> int:
        places = [data / "lake", data / "pipelines"]
        return sum(file.stat().st_size for place in places for file in place.rglob("*") if file.is_file())

    batch = _wait_for(status, 0)
    started, cpu_ns, grown = time.monotonic(), measure.cpu_ns(pid), size()
    _wait_for(status, batch + MEASURED_BATCHES)
    passed_s = time.monotonic() - started
    spent = measure.cpu_ns(pid) - cpu_ns
    return spent / 1e7 / passed_s, (size() - grown) / 1e6 / passed_s * DAY_S


def _archive(site: Site, plan: Plan) -> Iterator[Result]:
    whole = f"{site.place}/whole"
    everything = stored(site.node, columns="*")
    site.spark.run(Job(source=everything, sink=Place("parquet", {"path": whole, "compression": "zstd"})))
    work = f"archive of {site.rows / 1e6:g} M messages, all columns, zstd; peer: Spark copies them Parquet to Parquet"

    def turn(ours: bool) -> Sample:
        target = site.fresh()
        sink = Place("archive", {"path": target}) if ours else Place("parquet", {"path": target, "compression": "zstd"})
        source = everything if ours else Place("parquet", {"path": whole})
        done = site.spark.sample(Job(source=source, sink=sink), site.rows, site.node.pid)
        shutil.rmtree(target)
        return done

    for ours in (True, False):
        turn(ours)
    numbers = interleaved(plan.rounds, {"parquet to parquet": lambda: turn(False), "penstock": lambda: turn(True)})
    goals = [at_least(0.85, ratio(rate(numbers, "penstock"), rate(numbers, "parquet to parquet")))]
    yield result("archive", work, numbers, goals, {})


def _rollup(site: Site, plan: Plan) -> Iterator[Result]:
    files = f"{site.place}/samples"
    ours = stored(site.node, SAMPLES, columns=READ)
    site.spark.run(Job(source=ours, sink=Place("parquet", {"path": files, "compression": "none"})))
    jobs = {
        "parquet": Job(source=Place("parquet", {"path": files}), work="rollup"),
        "penstock": Job(source=ours, work="rollup"),
    }
    numbers = _turns(site, plan, jobs)
    goals = [at_least(0.7, ratio(rate(numbers, "penstock"), rate(numbers, "parquet")))]
    work = f"rollup of {site.rows / 1e6:g} M samples, {SERIES:,} series, two policies; peer: the same on Parquet"
    yield result("rollup", work, numbers, goals, {})


def _route(site: Site, plan: Plan) -> Iterator[Result]:
    source = stored(site.node, SAMPLES, columns="topic,offset,traffic,key,body")
    jobs = {
        "by hand": Job(source=source, work="route-by-hand"),
        "penstock counting": Job(source=source, work="route-counted"),
        "penstock": Job(source=source, work="route"),
    }
    numbers = _turns(site, plan, jobs)
    goals = [
        at_least(0.9, ratio(rate(numbers, "penstock"), rate(numbers, "by hand"))),
        shown("with counts", ratio(rate(numbers, "penstock counting"), rate(numbers, "by hand"))),
    ]
    work = f"route of {site.rows / 1e6:g} M messages, 5 services; peer: an expression written by hand, same source"
    yield result("route", work, numbers, goals, {})


def _report(site: Site) -> Iterator[Result]:
    both = stored(site.node, f"{TOPIC},{SAMPLES}", columns=REPORTED)
    job = Job(source=both, sink=Place("report", {"path": site.fresh()}))
    site.spark.run(job)
    seconds = site.spark.run(job).seconds
    rows = 2 * site.rows
    work = f"report over {rows / 1e6:g} M messages of two topics, with compression advice"
    goals = [at_most(REPORT_S_MAX, seconds * REPORT_ROWS / rows, " s", f"at this rate for {REPORT_ROWS / 1e6:g} M: ")]
    yield table_row("report", work, {"penstock": f"{seconds:.1f} s"}, goals, {})


def _turns(site: Site, plan: Plan, jobs: dict[str, Job]) -> dict[str, Reading]:
    for job in jobs.values():  # Java is slow the first time
        site.spark.run(job)
    return interleaved(
        plan.rounds,
        {name: lambda job=job: site.spark.sample(job, site.rows, site.node.pid) for name, job in jobs.items()},  # type: ignore[misc]
    )


def _fill_samples(site: Site) -> None:
    """Publish StatsD lines: counters, gauges and timers, with traffic types."""
    with flight.connect(f"grpc://127.0.0.1:{site.node.flight_port}") as client:
        settings = {"name": SAMPLES, "settings": {"shards": 2}}
        list(client.do_action(flight.Action("create-topic", json.dumps(settings).encode())))
        random = np.random.default_rng(7)
        for shard in range(2):
            command = json.dumps({"publish": {"topic": SAMPLES, "shard": shard}})
            schema = _samples(random, 1).schema
            writer, answers = client.do_put(flight.FlightDescriptor.for_command(command), schema)
            for first in range(0, site.rows // 2, BATCH_ROWS):
                writer.write_batch(_samples(random, min(BATCH_ROWS, site.rows // 2 - first)))
                answers.read()
            writer.close()
    measure.settle(site.node.pid)


def _samples(random: np.random.Generator, rows: int) -> pa.RecordBatch:
    series = random.integers(0, SERIES, rows)
    values = random.integers(1, 1000, rows)
    kinds = (b"c", b"g", b"ms")
    bodies = [b"shop.m%d:%d|%b" % (s, v, kinds[s % 3]) for s, v in zip(series, values, strict=True)]
    keys = [b"shop.m%d" % s for s in series]
    traffic = 1 << random.integers(0, 8, rows)
    columns = {"body": pa.array(bodies, pa.binary()), "key": pa.array(keys, pa.binary()), "traffic": traffic}
    return pa.record_batch(columns)


def _wait_for(status: Path, batches: int) -> int:
    """Wait until every query of a pipeline has done some batches; return how many each has."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        time.sleep(1)
        if status.exists():
            told = json.loads(status.read_text())
            done = min((query["batch"] for query in told["queries"]), default=-1)
            if done >= batches:
                return int(done)
    raise LoadFailed(f"the default pipeline has not done {batches} batches in {PATIENCE_S:.0f} s")
