"""confluent-kafka's producer, tuned, fed from memory: acks from all, no callback for a message.

python -m bench.kafka_writer BROKER TOPIC COUNT SIZE [COMPRESSION]
"""

from __future__ import annotations

import json
import random
import sys
import time
from string import ascii_lowercase

from confluent_kafka import Producer

#: As the node's relay has it: a set of messages up to 1 MB.
BATCH_BYTES = 1_000_000
QUEUE = 500_000
#: Bodies that are none of them like another, and are made before the clock starts.
POOL = 1000


def bodies(size: int, compression: str = "none") -> list[bytes]:
    """Return what is sent again and again; where it is compressed, what the load generator would send."""
    chance = random.Random(1)
    if compression == "none":
        return [chance.randbytes(size) for _ in range(POOL)]
    return [bytes(chance.choices(ascii_lowercase.encode(), k=32)).ljust(size, b"x") for _ in range(POOL)]


def main(broker: str, topic: str, count: int, size: int, compression: str = "none") -> None:
    """Send so many messages and print how long it took until Kafka had acked all of them."""
    producer = Producer(
        {
            "bootstrap.servers": broker,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.size": BATCH_BYTES,
            "compression.type": compression,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": QUEUE,
            "queue.buffering.max.kbytes": 1 << 20,
            "log_level": 0,
        }
    )
    producer.list_topics(topic, timeout=60)
    pool, produce = bodies(size, compression), producer.produce
    began, began_cpu = time.monotonic(), time.process_time()
    for number in range(count):
        try:
            produce(topic, pool[number % POOL])
        except BufferError:
            producer.poll(0.05)
            while len(producer) >= QUEUE // 2:
                producer.poll(0.01)
            produce(topic, pool[number % POOL])
    if producer.flush(300):
        raise SystemExit("Kafka did not take all messages")
    print(json.dumps({"seconds": time.monotonic() - began, "cpu": time.process_time() - began_cpu}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
