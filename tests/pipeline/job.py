"""The job that the tests of clusters run: the same on a local master, a standalone one and Spark Connect.

Run: python job.py master data-directory checkpoint-directory node [setting=value ...]; prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pyarrow as pa

from penstock.pipeline import session


def places(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Tell where a worker has the package from."""
    import penstock.message

    yield pa.RecordBatch.from_pydict({"place": [penstock.message.__file__]})


def main() -> None:
    """Read a topic in a batch and as a stream, and write both to a node."""
    master, data, checkpoint, node, *settings = sys.argv[1:]
    options = dict(setting.split("=", 1) for setting in settings)
    spark = session("job", master=master, options=options)
    batch = spark.read.format("penstock").option("path", data).option("subscribe", "t").option("minPartitions", "2")
    stream = spark.readStream.format("penstock").option("path", data).option("subscribe", "t")
    stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "600")
    some = batch.load().where("offset >= 100")
    some.write.format("penstock").option("url", node).option("topic", "batch").mode("append").save()
    writer = stream.load().writeStream.format("penstock").option("url", node).option("topic", "stream")
    found = {
        "batch": some.count(),
        "places": [row["place"] for row in spark.range(1).mapInArrow(places, "place string").collect()],
    }
    query = writer.option("checkpointLocation", f"{checkpoint}/c").trigger(availableNow=True).start()
    query.awaitTermination()
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
