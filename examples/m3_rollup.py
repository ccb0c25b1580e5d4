"""M3 in, Spark's rollup, M3 out: `python examples/m3_rollup.py` (after `make spark`, or `pip install penstock[spark]`).

A node of its own takes counters from a producer of M3's protocol. Spark rolls them up by M3's rules and writes the
aggregates to another topic, which the node relays to two consumer services; the routing policy says which gets what.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.m3.acks import acks
from penstock.m3.messages import MessageReader
from penstock.m3.metrics import Metric, decode, encode_unaggregated
from penstock.m3.policies import storage_policy
from penstock.pipeline import session
from penstock.pipeline.jobs.rollup import Rollup, rolled
from penstock.relays.m3msg.producer import producing
from penstock.relays.m3msg.topology import FileTopology, read

POLICY = storage_policy("10s:2d")
#: Bits of the routing policy; what carries none is for those who are its default.
TYPES = {"production": 0, "staging": 1}
SAMPLES = {b"checkout": ("production", (1, 2, 3)), b"search": ("staging", (10, 20)), b"login": ("", (5,))}

NODE = """
[m3msg]
topic = "raw"
ack_flush_interval = "5ms"
[m3msg_relay]
topics = ["aggregated"]
topology = "out.toml"
[routing.traffic_types]
production = 0
staging = 1
"""
OUT = """
[topics.aggregated]
shards = 4
[[topics.aggregated.services]]
name = "long-term"
traffic_types = ["production"]
[[topics.aggregated.services]]
name = "everything"
traffic_types = ["production", "staging"]
is_default = true
[placements.long-term.instances.a]
endpoint = "127.0.0.1:{long_term}"
[placements.everything.instances.a]
endpoint = "127.0.0.1:{everything}"
"""
IN = """
[topics.raw]
shards = 4
[[topics.raw.services]]
name = "penstock"
[placements.penstock.instances.node]
endpoint = "127.0.0.1:{port}"
"""


class Service:
    """A consumer service: acks what it gets, and keeps it."""

    def __init__(self) -> None:
        self.got: dict[str, float] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = MessageReader()
        while data := await reader.read(1 << 16):
            found = frames.feed(data)
            if found is not None:
                for row in range(found.count):
                    value = bytes(memoryview(found.values)[int(found.cuts[row]) : int(found.cuts[row + 1])])
                    metric = decode(value, 0)
                    self.got[metric.id.decode()] = metric.values[0]
                writer.write(acks([found.entries]).wire)
        writer.close()


async def send(file: Path) -> None:
    """Send samples to the node as to any consumer service; the end waits for its acks."""
    now_ns = time.time_ns()
    async with producing("raw", FileTopology(read(str(file)))) as producer:
        for id_, (kind, values) in SAMPLES.items():
            bits = 1 << TYPES[kind] if kind else 0
            for value in values:
                sample = Metric(id_, "counter", now_ns, (value,), (POLICY,), bits)
                producer.produce(encode_unaggregated(sample), id=id_)


def roll_up(spark: SparkSession, url: str) -> None:
    """Read the samples, and write what M3's rules make of them."""
    source = spark.read.format("penstock").option("url", url).option("subscribe", "raw")
    samples = source.option("columns", ",".join(Rollup.COLUMNS)).load()
    output = rolled(samples, Rollup(format="m3", output="m3", policies=("10s:2d",), names="plain"))
    assert output.messages is not None
    sink = output.messages(output.frame).write.format("penstock").mode("append")
    sink.option("url", url).option("topic", "aggregated").save()


async def run(
    spark: SparkSession, arguments: Sequence[str] = ("--port-offset", "20000")
) -> dict[str, dict[str, float]]:
    """Return what each service got."""
    services = {"long-term": Service(), "everything": Service()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        listening = [await asyncio.start_server(each.serve, "127.0.0.1", 0) for each in services.values()]
        long_term, everything = (each.sockets[0].getsockname()[1] for each in listening)
        (folder / "out.toml").write_text(OUT.format(long_term=long_term, everything=everything))
        (folder / "penstock.toml").write_text(NODE.replace("out.toml", str(folder / "out.toml")))
        command = ["up", "--data", name + "/data", "--config", name + "/penstock.toml", "--ready-file", name + "/ready"]
        node = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "penstock.cli", *command, "--quiet", *arguments
        )
        try:
            async with asyncio.timeout(600):
                ready = await appeared(folder / "ready", node)
                (folder / "in.toml").write_text(IN.format(port=ready["m3msg.port"]))
                await send(folder / "in.toml")
                # Not in another thread: Spark knows a session's sources by the thread that began it.
                roll_up(spark, f"grpc://127.0.0.1:{ready['flight.port']}")
                while len(services["everything"].got) < len(SAMPLES) or not services["long-term"].got:
                    await asyncio.sleep(0.05)
        finally:
            if node.returncode is None:
                node.terminate()
            await node.wait()
            for each in listening:
                each.close()
                await each.wait_closed()
    return {name: service.got for name, service in services.items()}


async def appeared(file: Path, node: asyncio.subprocess.Process) -> dict[str, int]:
    """Return the ports of the node, once it listens."""
    while not file.exists():
        if node.returncode is not None:
            raise SystemExit("the node did not start")
        await asyncio.sleep(0.05)
    ports: dict[str, int] = json.loads(file.read_bytes())["ports"]
    return ports


if __name__ == "__main__":
    for service, got in asyncio.run(run(session(quick=True))).items():
        print(f"{service}: {', '.join(f'{name} {value:g}' for name, value in sorted(got.items()))}")
