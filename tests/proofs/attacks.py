"""What rude clients do to a node, each as a small class: how it behaves on one connection, over and over.

Run as a program this is a process full of them, away from whoever measures. A new attack is a class in `ATTACKS`.

    python -m tests.proofs.attacks PORTS(JSON) SECONDS CONNECTIONS [ATTACK,ATTACK]
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import sys
import time
from base64 import b64encode
from collections import Counter
from random import Random
from typing import ClassVar

#: Attackers come from another address than their victims; the whole of 127/8 is this machine.
ADDRESS = "127.0.0.2"

MIB = 1 << 20


class Attack:
    """One attacker. `once` is one connection, from its beginning to its end or to a rest."""

    #: Which listener it comes to.
    listener: ClassVar[str] = "nsq.tcp_port"
    #: How many of hundred attackers are such.
    weight: ClassVar[int] = 10
    #: How long it rests between two connections.
    rest_s: ClassVar[float] = 0.5

    def __init__(self, port: int, number: int) -> None:
        self.port = port
        self.number = number
        self.random = Random(number)
        self._loop = asyncio.get_running_loop()

    async def once(self) -> None:
        """Do it once."""
        raise NotImplementedError

    async def connected(self, greeting: bytes = b"  V2") -> socket.socket:
        """Return a socket to the node."""
        wire = socket.socket()
        wire.setblocking(False)
        try:
            wire.bind((ADDRESS, 0))
            await asyncio.wait_for(self._loop.sock_connect(wire, ("127.0.0.1", self.port)), 5)
            await self.send(wire, greeting)
        except BaseException:
            wire.close()
            raise
        return wire

    async def send(self, wire: socket.socket, data: bytes) -> None:
        """Send all of it, or be told that nobody takes it."""
        await asyncio.wait_for(self._loop.sock_sendall(wire, data), 20)

    async def heard(self, wire: socket.socket, seconds: float) -> bytes:
        """Wait for some bytes, for so long; b"" if none came, or the node hung up."""
        try:
            return await asyncio.wait_for(self._loop.sock_recv(wire, 65536), seconds)
        except TimeoutError:
            return b""


class HalfBodies(Attack):
    """Sends most of a large body, and waits."""

    weight = 15
    rest_s = 2.0

    async def once(self) -> None:
        with await self.connected() as wire:
            await self.send(wire, b"MPUB halves\n" + struct.pack(">I", 5 * MIB) + bytes(4 * MIB))
            await self.heard(wire, 20)


class HalfRequests(HalfBodies):
    """The same over HTTP."""

    listener = "nsq.http_port"
    weight = 10

    async def once(self) -> None:
        head = b"POST /mpub?topic=halves HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (5 * MIB)
        with await self.connected(head) as wire:
            await self.send(wire, bytes(4 * MIB))
            await self.heard(wire, 20)


class HalfMessages(HalfBodies):
    """The same as a producer of M3Msg."""

    listener = "m3msg.port"
    weight = 5

    async def once(self) -> None:
        with await self.connected(struct.pack(">I", 4 * MIB)) as wire:
            await self.send(wire, bytes(3 * MIB))
            await self.heard(wire, 20)


class SlowBodies(Attack):
    """Sends a body byte by byte."""

    weight = 15

    async def once(self) -> None:
        with await self.connected() as wire:
            await self.send(wire, b"PUB slow\n" + struct.pack(">I", 500_000))
            for _ in range(1000):
                await self.send(wire, b"x")
                if await self.heard(wire, 0.2):
                    return


class SlowHeads(SlowBodies):
    """The same in the head of a request."""

    listener = "api.port"
    weight = 5

    async def once(self) -> None:
        with await self.connected(b"GET /api/v1/topics HTTP/1.1\r\n") as wire:
            for _ in range(1000):
                await self.send(wire, b"X")
                if await self.heard(wire, 0.2):
                    return


class Garbage(Attack):
    """Sends what no protocol knows."""

    async def once(self) -> None:
        greeting = self.random.choice((b"", b"  V2", b"  V1", b"GET "))
        with await self.connected(greeting) as wire:
            await self.send(wire, self.random.randbytes(self.random.randint(1, 4000)))
            await self.heard(wire, 1)


class WebGarbage(Garbage):
    """The same to a listener for HTTP."""

    listener = "nsq.http_port"
    weight = 5


class LookupGarbage(Garbage):
    """The same to the lookup service."""

    listener = "nsq.lookup_tcp_port"
    weight = 5


class WrongFrames(Attack):
    """Knows the words, and says them at the wrong time or with the wrong sizes."""

    SAYINGS: ClassVar[tuple[bytes, ...]] = (
        b"FIN 0123456789abcdef\n",
        b"SUB wrong ch\nFIN 0123456789abcdef\nREQ 0123456789abcdef 100\nTOUCH 0123456789abcdef\n",
        b"SUB wrong ch\nRDY 99999999\n",
        b"SUB wrong ch\nSUB wrong ch\n",
        b"PUB wrong\n\xff\xff\xff\xff",
        b"MPUB wrong\n\x00\x00\x00\x08\x7f\xff\xff\xff\x00\x00\x00\x01",
        b"MPUB wrong\n\x00\x00\x00\x0d\x00\x00\x00\x01\x00\x00\x00\xffabcde",
        b"IDENTIFY\n\x00\x00\x00\x02[]",
        b"IDENTIFY\n\x00\x00\x00\x01{",
        b"DPUB wrong 99999999999999\n\x00\x00\x00\x01x",
        b"PUB " + b"n" * 300 + b"\n\x00\x00\x00\x01x",
        b"PUB wrong 4000\n\x00\x00\x00\x01x",
        b"RDY -1\nCLS\nNOP\nAUTH\n",
    )

    async def once(self) -> None:
        with await self.connected() as wire:
            await self.send(wire, self.random.choice(self.SAYINGS))
            await self.heard(wire, 1)


class Floods(Attack):
    """Connects and goes, over and over."""

    rest_s = 0.05

    async def once(self) -> None:
        with await self.connected(self.random.choice((b"", b" ", b"  V2", b"  V2PUB flo"))) as wire:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, self.random.randint(0, 1)))


class DeafConsumers(Attack):
    """Asks for messages that others publish, and reads none."""

    weight = 10

    async def once(self) -> None:
        with await self.connected() as wire:
            await self.send(wire, b"SUB deaf ch%d\nRDY 2500\n" % (self.number % 4))
            for _ in range(20):
                await self.send(wire, b"NOP\n")
                await asyncio.sleep(1)


class DeafPublishers(Attack):
    """Publishes for them, in large pieces, and reads no answer."""

    weight = 2
    rest_s = 1.0

    async def once(self) -> None:
        with await self.connected() as wire:
            for _ in range(20):
                await self.send(wire, b"PUB deaf\n" + struct.pack(">I", 100_000) + bytes(100_000))
                await asyncio.sleep(0.1)


class EphemeralFills(Attack):
    """Fills topics that live in memory."""

    weight = 5
    rest_s = 1.0

    async def once(self) -> None:
        with await self.connected() as wire:
            topic = b"fill%d#ephemeral" % self.number
            for _ in range(20):
                await self.send(wire, b"PUB %b\n" % topic + struct.pack(">I", MIB) + bytes(MIB))
                if not await self.heard(wire, 5):
                    return
                await asyncio.sleep(0.2)


class TopicFloods(Attack):
    """Makes topics that nobody needs."""

    weight = 3
    rest_s = 1.0

    async def once(self) -> None:
        with await self.connected() as wire:
            for number in range(10):
                name = b"flood-%d-%d-%d" % (os.getpid(), self.number, self.random.randint(0, 99_999))
                await self.send(wire, b"PUB %b\n\x00\x00\x00\x01x" % name)
                if not await self.heard(wire, 5):
                    return
                await asyncio.sleep(0.2 + number / 10)


class HugeBatches(Attack):
    """Publishes as many messages in one command as it holds."""

    weight = 3
    rest_s = 5.0

    async def once(self) -> None:
        count = 200_000
        items = (struct.pack(">I", 1) + b"x") * count
        with await self.connected() as wire:
            await self.send(wire, b"MPUB huge\n" + struct.pack(">II", len(items) + 4, count) + items)
            await self.heard(wire, 10)


class HugeRequests(HugeBatches):
    """The same as lines of JSON."""

    listener = "api.port"
    weight = 2

    async def once(self) -> None:
        body = b'{"body":"x"}\n' * 100_000
        head = (
            b"POST /api/v1/topics/huge/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
        )
        with await self.connected(head + b"Content-Length: %d\r\n\r\n" % len(body)) as wire:
            await self.send(wire, body)
            await self.heard(wire, 10)


def _sqs(operation: bytes, body: bytes, length: int | None = None) -> bytes:
    """Return a request to SQS, which may say that its body is longer than what is there of it."""
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-amz-json-1.0\r\n"
    size = len(body) if length is None else length
    return head + b"X-Amz-Target: AmazonSQS.%b\r\nContent-Length: %d\r\n\r\n%b" % (operation, size, body)


class HalfSends(HalfBodies):
    """Most of a message for a queue of SQS."""

    listener = "sqs.port"
    weight = 5

    async def once(self) -> None:
        sent = b'{"QueueUrl": "halves", "MessageBody": "' + b"x" * (900 * 1024)
        with await self.connected(_sqs(b"SendMessage", sent, MIB)) as wire:
            await self.heard(wire, 20)


class SlowEnqueues(SlowBodies):
    """A message for a queue of Dynamiq, byte by byte."""

    listener = "dynamiq.port"
    weight = 5

    async def once(self) -> None:
        head = b"PUT /v1/queues/slow/message HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000\r\n\r\n"
        with await self.connected(head) as wire:
            for _ in range(1000):
                await self.send(wire, b"x")
                if await self.heard(wire, 0.2):
                    return


class AbandonedPolls(Attack):
    """Waits for messages of a queue that somebody fills, and hangs up on them."""

    listener = "sqs.port"
    weight = 10
    rest_s = 0.1

    async def once(self) -> None:
        poll = _sqs(b"ReceiveMessage", b'{"QueueUrl": "polled", "MaxNumberOfMessages": 10, "WaitTimeSeconds": 20}')
        fill = _sqs(b"SendMessage", b'{"QueueUrl": "polled", "MessageBody": "x"}')
        with await self.connected(_sqs(b"CreateQueue", b'{"QueueName": "polled"}')) as wire:
            if not await self.heard(wire, 5):
                return
            await self.send(wire, poll if self.number % 4 else fill)
            await asyncio.sleep(self.random.random())
            if not self.number % 3:
                wire.shutdown(socket.SHUT_WR)
                await self.heard(wire, 5)


class AbandonedLeases(AbandonedPolls):
    """The same by version 2 of Dynamiq."""

    listener = "dynamiq.port"
    weight = 5

    async def once(self) -> None:
        body = b'{"max": 1000, "wait": 60}'
        head = b"POST /v2/queues/polled/leases HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        made = b"PUT /v1/queues/polled HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
        with await self.connected(made) as wire:
            if await self.heard(wire, 5):
                await self.send(wire, head + body)
                await asyncio.sleep(self.random.random())


class HugeSends(HugeBatches):
    """Sends a batch to SQS that has far more entries than one may have."""

    listener = "sqs.port"
    weight = 2

    async def once(self) -> None:
        entries = b",".join([b'{"Id": "%d", "MessageBody": "x"}' % number for number in range(20_000)])
        with await self.connected(
            _sqs(b"SendMessageBatch", b'{"QueueUrl": "huge", "Entries": [%b]}' % entries)
        ) as wire:
            await self.heard(wire, 10)


class HugeEnqueues(HugeBatches):
    """Publishes to a queue of Dynamiq as many messages at once as may be, each with a key of its own."""

    listener = "dynamiq.port"
    weight = 2

    async def once(self) -> None:
        entries = b",".join([b'{"body": "%b", "key": "%d"}' % (b"x" * 1000, number) for number in range(1000)])
        body = b'{"messages": [%b]}' % entries
        head = b"POST /v2/queues/huge/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        made = b"PUT /v1/queues/huge HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
        with await self.connected(made) as wire:
            if await self.heard(wire, 5):
                await self.send(wire, head + body)
                await self.heard(wire, 10)


class IdlePuts(Attack):
    """Begins calls of Flight that say nothing, each of which takes a thread of gRPC's."""

    listener = "flight.port"
    weight = 10
    rest_s = 2.0

    async def once(self) -> None:
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": "/arrow.flight.protocol.FlightService/DoPut",
            ":authority": "localhost",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        texts = [(name.encode(), value.encode()) for name, value in headers.items()]
        block = b"".join(b"\0%c%b%c%b" % (len(name), name, len(value), value) for name, value in texts)
        greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b"")
        with await self.connected(
            greeting + b"".join(_frame(1, 4, 1 + 2 * number, block) for number in range(3))
        ) as wire:
            for _ in range(20):  # it says its settings, and what it is asked for after that is nobody's
                if not await self.heard(wire, 5):
                    return
                await asyncio.sleep(1)


class HotKeys(Attack):
    """Publishes messages of one key to a subscription that keeps their order."""

    listener = "api.port"
    weight = 2
    rest_s = 3.0

    async def once(self) -> None:
        lines = b'{"body":"x","key":"the one"}\n' * 5_000
        where = "/api/v1/topics/hot"
        made = _request(f"POST {where}/subscriptions", b'{"name":"s","settings":{"order":"key"}}')
        lease = _request(f"POST {where}/subscriptions/s/lease", b'{"max":100,"lease":"1s"}')
        with await self.connected(b"") as wire:
            for asked in (_request("POST /api/v1/topics", b'{"name":"hot"}'), made):
                await self.send(wire, asked)
                await self.heard(wire, 5)
            await self.send(wire, _request(f"POST {where}/messages", lines, "Content-Type: application/x-ndjson"))
            await self.heard(wire, 10)
            for _ in range(10):
                await self.send(wire, lease)
                await self.heard(wire, 5)


class ShardFloods(Attack):
    """Makes topics of as many shards as one may have, or asks for more, each by a single command."""

    weight = 1
    rest_s = 10.0

    async def once(self) -> None:
        name = b"shards-%d-%d" % (self.number, self.random.randint(0, 99_999))
        with await self.connected() as wire:
            await self.send(wire, b"INTERNAL_CREATE_TOPIC %b %d\n" % (name, self.random.choice((63, 1023, 32_767))))
            await self.heard(wire, 20)


class SecretFloods(Attack):
    """Shows one wrong secret after the other, each of which has to be hashed."""

    listener = "api.port"
    weight = 5
    rest_s = 0.1

    async def once(self) -> None:
        shown = b64encode(b"ops:" + self.random.randbytes(12).hex().encode()).decode()
        with await self.connected(_request("GET /api/v1/topics", b"", f"Authorization: Basic {shown}")) as wire:
            await self.heard(wire, 10)


class AuthFloods(SecretFloods):
    """The same over NSQ."""

    listener = "nsq.tcp_port"

    async def once(self) -> None:
        shown = b"ops:" + self.random.randbytes(12).hex().encode()
        with await self.connected(b"  V2AUTH\n" + struct.pack(">I", len(shown)) + shown) as wire:
            await self.heard(wire, 10)


class ChannelFloods(Attack):
    """Makes channels that nobody needs, in one topic."""

    weight = 3
    rest_s = 0.3

    async def once(self) -> None:
        with await self.connected() as wire:
            await self.send(wire, b"SUB channels c%d-%d\n" % (self.number, self.random.randint(0, 99_999)))
            await self.heard(wire, 5)


class TimelineFloods(Attack):
    """Begins sessions of producers and consumers of a timeline, and leaves them."""

    listener = "timeline.port"
    weight = 3
    rest_s = 0.5

    async def once(self) -> None:
        with await self.connected(_request("PUT /v1/topics/flooded", b"{}")) as wire:
            await self.heard(wire, 5)
            for _ in range(20):
                who = b"%d-%d" % (self.number, self.random.randint(0, 99_999))
                producer = b'{"topic_id":"flooded","producer_group_id":"%b","producer_id":"p"}' % who
                consumer = b'{"topic_id":"flooded","consumer_id":"%b"}' % who
                await self.send(wire, _request("POST /v1/producer-handshake", producer))
                await self.heard(wire, 5)
                await self.send(wire, _request("POST /v1/consumer-handshake", consumer))
                await self.heard(wire, 5)


class DoryHalves(HalfBodies):
    """Sends half of a message, and things that are none, as a program of this machine does that uses Dory."""

    listener = "dory.tcp_port"
    weight = 5

    async def once(self) -> None:
        with await self.connected(b"") as wire:
            await self.send(wire, self.random.randbytes(self.random.randint(1, 4000)))
            await self.send(wire, struct.pack(">ihh", 50_000, 256, 0) + bytes(40_000))
            await self.heard(wire, 20)


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    """Return a frame of HTTP/2."""
    return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content


def _request(line: str, body: bytes = b"", *headers: str) -> bytes:
    """Return a request of HTTP/1.1."""
    head = [f"{line} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


ATTACKS: tuple[type[Attack], ...] = (
    HalfBodies,
    HalfRequests,
    HalfMessages,
    HalfSends,
    SlowBodies,
    SlowHeads,
    SlowEnqueues,
    Garbage,
    WebGarbage,
    LookupGarbage,
    WrongFrames,
    Floods,
    DeafConsumers,
    DeafPublishers,
    EphemeralFills,
    TopicFloods,
    HugeBatches,
    HugeRequests,
    AbandonedPolls,
    AbandonedLeases,
    HugeSends,
    HugeEnqueues,
    IdlePuts,
    HotKeys,
    ShardFloods,
    SecretFloods,
    AuthFloods,
    ChannelFloods,
    TimelineFloods,
    DoryHalves,
)


async def attack(ports: dict[str, int], seconds: float, connections: int, only: str = "") -> Counter[str]:
    """Let so many attackers loose for a while, and return how often each kind did its worst."""
    chosen = [kind for kind in ATTACKS if not only or kind.__name__ in only.split(",")]
    end = time.monotonic() + seconds
    done: Counter[str] = Counter()
    whole = sum(kind.weight for kind in chosen)

    async def go_on(attacker: Attack) -> None:
        await asyncio.sleep(attacker.random.random())
        while time.monotonic() < end:
            try:
                await asyncio.wait_for(attacker.once(), max(end - time.monotonic(), 0.01))
            except (OSError, TimeoutError):
                pass  # it was shown the door
            done[type(attacker).__name__] += 1
            await asyncio.sleep(min(attacker.rest_s, max(end - time.monotonic(), 0)))

    kinds = [kind for kind in chosen for _ in range(max(1, kind.weight * connections // whole))]
    await asyncio.gather(*(go_on(kind(ports[kind.listener], number)) for number, kind in enumerate(kinds)))
    return done


if __name__ == "__main__":
    print(json.dumps(asyncio.run(attack(json.loads(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]))))
