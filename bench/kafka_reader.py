"""confluent-kafka's consumer as it is used best from Python: lists of records, all of them thrown away.

python -m bench.kafka_reader BROKER TOPIC COUNT
"""

from __future__ import annotations

import json
import sys
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

BATCH = 8192
PARTITIONS = 2


def main(broker: str, topic: str, count: int) -> None:
    """Read so many records, look at values and keys, and print how long that took from the first one on."""
    consumer = Consumer(
        {"bootstrap.servers": broker, "group.id": "bench reader", "enable.auto.commit": False, "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(PARTITIONS)])
    first = consumer.poll(60)
    began, began_cpu = time.monotonic(), time.process_time()
    left = count - (first is not None)
    while left > 0:
        records = consumer.consume(min(BATCH, left), 1)
        if any(map(Message.error, records)):
            raise SystemExit(f"{[str(each.error()) for each in records if each.error()]}")
        list(map(Message.value, records))
        list(map(Message.key, records))
        left -= len(records)
    print(json.dumps({"seconds": time.monotonic() - began, "cpu": time.process_time() - began_cpu}))
    consumer.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
