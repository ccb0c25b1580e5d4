"""One NSQ connection: commands in, frames out. No sockets, no clock of its own, no delivery rules.

A channel is a subscription, RDY is credit, FIN / REQ / TOUCH are ack / release / extend. Replies leave in the order
of the commands, each once its own durability is reached (ruling 15).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from penstock.clock import MILLISECOND
from penstock.config import NsqConfig
from penstock.delivery.consumer import Consumer
from penstock.delivery.source import Delivery
from penstock.delivery.subscription import Subscription
from penstock.dialects.nsq import codec
from penstock.dialects.nsq.codec import CLOSE_WAIT, OK, RESPONSE, Decoder, Limits, error, frame, is_name
from penstock.dialects.nsq.identify import Agreed, Faulty, agree, reply
from penstock.errors import Refusal
from penstock.inlet import Receipt
from penstock.message import OFFSET_BITS, Buffer, Offsets, Rows
from penstock.node import Node
from penstock.settings import SubscriptionSettings, TopicSettings
from penstock.topic import Topic

#: Names that end so live as long as somebody uses them.
EPHEMERAL = "#ephemeral"


class Link(Protocol):
    """The way back to the client."""

    def write(self, data: Buffer) -> None:
        """Send bytes."""

    def retime(self) -> None:
        """Beat at the interval that was just agreed on."""

    def hang_up(self) -> None:
        """Close once everything sent has left."""


class Session:
    """The protocol's state: init -> subscribed (SUB) -> closing (CLS)."""

    __slots__ = (
        "__weakref__",
        "_config",
        "_decoder",
        "_link",
        "_node",
        "_promised",
        "_published",
        "agreed",
        "closed",
        "consumer",
        "name",
        "state",
        "subscription",
        "topic",
    )

    def __init__(self, node: Node, config: NsqConfig, link: Link, name: str) -> None:
        self._node = node
        self._config = config
        self._link = link
        self._decoder = Decoder(Limits(config.max_msg_size, config.max_body_size))
        #: Replies not sent yet because one of them waits for the log; None until it is known.
        self._promised: deque[list[Buffer | None]] = deque()
        self._published: dict[str, Topic] = {}
        self.name = name
        self.agreed = Agreed(heartbeat_ns=config.heartbeat_interval_ns, lease_ns=config.msg_timeout_ns)
        self.state = "init"
        self.closed = False
        self.topic: Topic | None = None
        self.subscription: Subscription | None = None
        self.consumer: Consumer | None = None

    def receive(self, data: bytes) -> None:
        """Carry out what one read brought."""
        acked = False
        for command in self._decoder.feed(data):
            if self.closed:
                return
            method = self.COMMANDS.get(command[0])  # type: ignore[call-overload]
            if method is None:
                self.fail("E_INVALID", f"invalid command {command[0]}")
                return
            acked = acked or command[0] == "FIN"
            method(self, *command[1:])
        if self.topic is not None and self.subscription is not None:
            if acked:
                self.topic.settle(self.subscription)
            self.topic.pump(self.subscription)

    def close(self) -> None:
        """Forget the connection; what it held goes to the others."""
        self.closed = True
        self._promised.clear()
        self._leave()

    def _leave(self) -> None:
        """Take no more part in the channel: a connection that is hung up on would only burn attempts."""
        if self.topic is not None and self.subscription is not None and self.consumer is not None:
            self.topic.settle(self.subscription)
            self.topic.detach(self.subscription, self.consumer)
        self.topic = self.subscription = self.consumer = None

    # --- commands -------------------------------------------------------------------------------------------------

    def identify(self, args: list[bytes], body: bytes) -> None:
        """Agree on timeouts and buffers."""
        if self.state != "init":
            self.fail("E_INVALID", "cannot IDENTIFY in current state")
            return
        try:
            self.agreed = agree(body, self._config)
        except Faulty as faulty:
            self.fail(faulty.code, str(faulty))
            return
        self._link.retime()
        self.send(frame(RESPONSE, reply(self.agreed, self._config)) if self.agreed.negotiated else OK)

    def auth(self, args: list[bytes], body: bytes) -> None:
        """Refuse: no auth server is configured."""
        self.fail("E_AUTH_DISABLED", "AUTH disabled")

    def sub(self, args: list[bytes]) -> None:
        """Join a channel."""
        if self.state != "init":
            self.fail("E_INVALID", "cannot SUB in current state")
        elif not self.agreed.heartbeat_ns:
            self.fail("E_INVALID", "cannot SUB with heartbeats disabled")
        elif len(args) < 2:
            self.fail("E_INVALID", "SUB insufficient number of parameters")
        elif not is_name(args[0]):
            self.fail("E_BAD_TOPIC", f'SUB topic name "{args[0].decode("latin-1")}" is not valid')
        elif not is_name(args[1]):
            self.fail("E_BAD_CHANNEL", f'SUB channel name "{args[1].decode("latin-1")}" is not valid')
        else:
            self._join(args[0].decode("ascii"), args[1].decode("ascii"))

    def _join(self, topic_name: str, channel: str) -> None:
        try:
            topic = self._topic(topic_name)
            settings = SubscriptionSettings(
                ephemeral=channel.endswith(EPHEMERAL),
                lease_ns=self._config.msg_timeout_ns,
                lease_max_ns=self._config.max_msg_timeout_ns,
            )
            subscription = topic.subscribe(channel, settings)
            most = self._config.max_channel_consumers
            if most and len(subscription.consumers) >= most:
                raise Refusal("conflict", f"consumers for {topic_name}:{channel} exceeds limit of {most}")
            consumer = Consumer(self.deliver, self.agreed.lease_ns, self.agreed.client_id or self.name)
            topic.attach(subscription, consumer, self._thrown_out)
        except Refusal as refusal:
            self.fail("E_SUB_FAILED", f"SUB failed {refusal}")
            return
        self.topic, self.subscription, self.consumer = topic, subscription, consumer
        self.state = "subscribed"
        self.send(OK)

    def rdy(self, args: list[bytes]) -> None:
        """Set the credit."""
        if self.state == "closing":
            return
        if self.state != "subscribed":
            self.fail("E_INVALID", "cannot RDY in current state")
            return
        count = _number(args[0]) if args else 1
        most = self._config.max_rdy_count
        if count is None:
            self.fail("E_INVALID", f"RDY could not parse count {args[0].decode('latin-1')}")
        elif count > most:
            self.fail("E_INVALID", f"RDY count {count} out of range 0-{most}")
        else:
            self._subscription.set_credit(self._consumer, count)

    def fin(self, ids: list[int] | Offsets | list[bytes]) -> None:
        """Ack."""
        if self.state == "init":
            self.fail("E_INVALID", "cannot FIN in current state")
            return
        if isinstance(ids, list) and (not ids or isinstance(ids[0], bytes)):  # a line that was not an id
            self._bad_id("FIN", ids[0] if ids else b"")  # type: ignore[arg-type]
            return
        refused = self._subscription.ack(self._consumer, ids)
        for id_ in refused:
            self._not_mine("FIN", id_)

    def req(self, args: list[bytes]) -> None:
        """Release, at once or after a delay."""
        id_ = self._id("REQ", args, 2)
        if id_ is None:
            return
        delay_ms = _number(args[1])
        if delay_ms is None:
            self.fail("E_INVALID", f"REQ could not parse timeout {args[1].decode('latin-1')}")
            return
        delay_ns = min(delay_ms * MILLISECOND, self._config.max_req_timeout_ns)
        now = self._node.now()
        if self._subscription.release(self._consumer, [id_], delay_ns, now):
            self._not_mine("REQ", id_)
        elif self.topic is not None:
            self.topic.wait(delay_ns)

    def touch(self, args: list[bytes]) -> None:
        """Extend."""
        id_ = self._id("TOUCH", args, 1)
        if id_ is not None and self._subscription.extend(self._consumer, [id_], self.agreed.lease_ns, self._node.now()):
            self._not_mine("TOUCH", id_)

    def cls(self, args: list[bytes]) -> None:
        """Get no more; what is out may still be acked."""
        if self.state != "subscribed":
            self.fail("E_INVALID", "cannot CLS in current state")
            return
        self._subscription.set_credit(self._consumer, 0)
        self.state = "closing"
        self.send(CLOSE_WAIT)

    def nop(self, args: list[bytes]) -> None:
        """Show life."""

    def pub(self, topic: str, rows: Rows, replies: int) -> None:
        """Publish a run of single messages, one OK each."""
        self._publish("PUB", topic, rows, replies)

    def mpub(self, topic: str, rows: Rows) -> None:
        """Publish several messages with one OK."""
        self._publish("MPUB", topic, rows, 1)

    def dpub(self, topic: str, rows: Rows, delay: bytes) -> None:
        """Publish a message that is due later."""
        delay_ms = _number(delay)
        most_ms = self._config.max_req_timeout_ns // MILLISECOND
        if delay_ms is None:
            self.fail("E_INVALID", f"DPUB could not parse timeout {delay.decode('latin-1')}")
        elif delay_ms > most_ms:
            self.fail("E_INVALID", f"DPUB timeout {delay_ms} out of range 0-{most_ms}")
        else:
            if delay_ms:
                rows.columns = {"due": [self._node.now().wall_ns + delay_ms * MILLISECOND]}
            self._publish("DPUB", topic, rows, 1)

    def _publish(self, word: str, name: str, rows: Rows, replies: int) -> None:
        topic = self._published.get(name)
        if topic is None or topic.deleted:
            try:
                topic = self._published[name] = self._topic(name)
            except Refusal as refusal:
                self.fail(f"E_{word}_FAILED", f"{word} failed {refusal}")
                return
        slot: list[Buffer | None] = [None]
        self._promised.append(slot)

        def done(receipt: Receipt | None, refusal: BaseException | None) -> None:
            if refusal is None:
                slot[0] = OK if replies == 1 else OK * replies
                if len(self._promised) == 1 and self._promised[0] is slot:
                    self._promised.clear()
                    self._link.write(slot[0])
                    return
            else:
                # One frame per command, so that the client's count of replies stays right.
                slot[0] = error(f"E_{word}_FAILED", f"{word} failed {refusal}") * replies
            self._keep_promises()
            if refusal is not None and not (isinstance(refusal, Refusal) and refusal.reason.retry) and not self.closed:
                self.closed = True
                self._link.hang_up()

        topic.publish(rows, self, done)

    # --- replies --------------------------------------------------------------------------------------------------

    def send(self, data: Buffer) -> None:
        """Send a frame behind every reply that is still waited for."""
        if self._promised:
            self._promised.append([data])
        else:
            self._link.write(data)

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Send message frames; a slice of a batch shares its frames with all other subscriptions."""
        for delivery in deliveries:
            batch = delivery.batch
            base = (delivery.shard << OFFSET_BITS) + 1
            if isinstance(delivery.rows, slice):
                whole = batch.wire.get(codec.SOURCE)
                if whole is None:
                    whole = batch.wire[codec.SOURCE] = codec.messages(
                        base + batch.first, batch.count, batch.timestamp, 1, batch.cuts, batch.body
                    )
                frames, cuts = whole
                if delivery.rows.stop - delivery.rows.start != batch.count:
                    frames = memoryview(frames)[int(cuts[delivery.rows.start]) : int(cuts[delivery.rows.stop])]
            else:
                frames = codec.picked(
                    delivery.rows + (base + batch.first),
                    delivery.rows,
                    batch.timestamp,
                    delivery.attempts,
                    batch.cuts,
                    batch.body,
                )
            self.send(frames)

    def fail(self, code: str, text: str) -> None:
        """Send a fatal error and hang up."""
        self.closed = True
        self._leave()
        self._node.count_fault("nsq", code, text, self.name)
        self.send(error(code, text))
        if self._promised:
            self._promised.append([b""])
        else:
            self._link.hang_up()

    def _keep_promises(self) -> None:
        promised = self._promised
        while promised and promised[0][0] is not None:
            data = promised.popleft()[0]
            if data:
                self._link.write(data)
            else:
                self._link.hang_up()

    def _not_mine(self, word: str, id_: int) -> None:
        """Tell that a lease is gone; the connection lives on."""
        text = f"{word} %016x failed " % (id_ & (1 << 64) - 1)
        owner = self._subscription.has(id_, self._consumer)
        why = "ID not in flight" if owner is None else "client does not own message"
        self._node.count_fault("nsq", f"E_{word}_FAILED", text + why, self.name)
        self.send(error(f"E_{word}_FAILED", text + why))

    def _bad_id(self, word: str, text: bytes) -> None:
        if len(text) != 16:
            self.fail("E_INVALID", "invalid message ID")
        else:
            shown = text.decode("latin-1")
            self.send(error(f"E_{word}_FAILED", f"{word} {shown} failed ID not in flight"))

    def _id(self, word: str, args: list[bytes], words: int) -> int | None:
        if self.state == "init":
            self.fail("E_INVALID", f"cannot {word} in current state")
        elif len(args) < words:
            self.fail("E_INVALID", f"{word} insufficient number of params")
        else:
            id_ = codec.hex_id(args[0]) if len(args[0]) == 16 else None
            if id_ is not None:
                return id_
            self._bad_id(word, args[0])
        return None

    def _topic(self, name: str) -> Topic:
        settings = None
        if name.endswith(EPHEMERAL):
            settings = TopicSettings(durability="memory", ephemeral=True, extend="off")
        return self._node.topic(name, create=True, settings=settings)

    def _thrown_out(self) -> None:
        self.closed = True
        self._link.hang_up()

    @property
    def _subscription(self) -> Subscription:
        assert self.subscription is not None
        return self.subscription

    @property
    def _consumer(self) -> Consumer:
        assert self.consumer is not None
        return self.consumer

    def _hang_up(self) -> None:
        self.closed = True
        self._link.hang_up()

    COMMANDS: ClassVar[dict[str, Callable[..., Any]]] = {
        "PUB": pub,
        "MPUB": mpub,
        "DPUB": dpub,
        "SUB": sub,
        "RDY": rdy,
        "FIN": fin,
        "REQ": req,
        "TOUCH": touch,
        "NOP": nop,
        "CLS": cls,
        "IDENTIFY": identify,
        "AUTH": auth,
        "fault": fail,
        "hang up": _hang_up,
    }


def _number(text: bytes) -> int | None:
    """Return a number as NSQ writes them: digits only, nothing at all is 0."""
    if not text:
        return 0
    return int(text) if text.isdigit() and len(text) < 19 else None
