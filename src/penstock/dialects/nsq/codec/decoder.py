"""Commands out of a stream of bytes.

A command is a tuple: the wire's word, then its arguments; runs of PUB to one topic and runs of FIN become one
command over columns. A fault is the command ("fault", code, text). After a fault nothing more is decoded, because
every fault found here is fatal on the wire. After a command that may change how the rest is to be read the decoder
stops, and goes on when it is told to.

Invariant: any cut of the stream into reads gives the same commands, apart from how runs are grouped.
"""

from __future__ import annotations

import struct

from penstock.dialects.nsq.codec import runs
from penstock.dialects.nsq.codec.ids import FIN_BYTES, fin_run
from penstock.dialects.nsq.codec.words import (
    ANY,
    BARRIERS,
    LINE_BYTES_MAX,
    LINES,
    MANY,
    OTHERS,
    PARTITION_MAX,
    SINGLES,
    SOURCE,
    Command,
    Limits,
    is_name,
    number_of,
    partition_of,
    quoted,
    shown,
    signed,
)
from penstock.message import Rows

_U32 = struct.Struct(">I").unpack_from


class Decoder:
    """Commands of one connection."""

    __slots__ = (
        "_body_bytes_max",
        "_dead",
        "_delay_ms_max",
        "_header",
        "_least",
        "_message_bytes_max",
        "_need",
        "_pieces",
        "_word",
        "held",
        "plain",
        "raw_ids",
        "shard",
        "stopped",
        "topic",
    )

    def __init__(self, limits: Limits) -> None:
        self._message_bytes_max = limits.message_bytes_max
        self._body_bytes_max = limits.body_bytes_max
        self._delay_ms_max = limits.delay_ms_max
        #: The last line of PUB, PUB_EXT or PUB_TRACE with its newline, and what it says: pipelined ones repeat it.
        self._header = b""
        self._word = b""
        self.topic = ""
        self.shard = ANY
        #: A body has more bytes than this.
        self._least = 0
        #: The same line if it is a PUB; empty otherwise.
        self.plain = b""
        self._pieces: list[bytes] = []
        #: Bytes that came and are not decoded.
        self.held = 0
        self._need = 0
        self._dead = False
        #: Ids in FIN, REQ and TOUCH are 16 raw bytes.
        self.raw_ids = False
        #: The last command was one of BARRIERS: `go_on` gives what was sent behind it.
        self.stopped = False

    def again(self, data: bytes) -> bytes:
        """Return the body of a read that is one PUB to the same topic as before, whole; empty if it is anything else.

        It is what publishers send that wait for their answers.
        """
        header = self.plain
        if self.held or not header or not data.startswith(header):
            return b""
        at = len(header) + 4
        size = len(data) - at
        return data[at:] if 0 < size <= self._message_bytes_max and _U32(data, at - 4)[0] == size else b""

    def feed(self, data: bytes) -> list[Command]:
        """Decode one read."""
        if len(data) == FIN_BYTES and not self.held and not self._dead and data.startswith(b"FIN "):
            # A read that is one FIN: what consumers with little to do send.
            try:
                raw = data[4:12] if self.raw_ids else bytes.fromhex(data[4:20].decode("ascii"))
            except ValueError:
                raw = b""
            if data[20] == 10 and len(raw) == 8 and (id_ := int.from_bytes(raw, "big", signed=True)):
                return [("FIN", [id_])]
        if self._dead:
            return []
        if self.held:
            self._pieces.append(data)
            self.held += len(data)
            if self.held < self._need:
                return []
            data = self.rest()
        out: list[Command] = []
        self._need = 0
        pos = self._parse(data, out)
        if pos < len(data) and not self._dead:
            self.hold(data[pos:] if pos else data)
        return out

    def hold(self, data: bytes) -> None:
        """Keep bytes that are not to be decoded yet."""
        self._pieces.append(data)
        self.held += len(data)

    def go_on(self) -> list[Command]:
        """Decode what was sent behind the command that stopped it."""
        self.stopped = False
        return self.feed(self.rest()) if self.held else []

    def rest(self) -> bytes:
        """Give away the bytes that were not decoded."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        self.held = 0
        return data

    def forget(self) -> bytes:
        """Drop the bytes that were not decoded, and return how they begin."""
        first = self._pieces[0] if self._pieces else b""
        self._pieces.clear()
        self.held = 0
        return first

    def _parse(self, data: bytes, out: list[Command]) -> int:
        pos, end = 0, len(data)
        header = self._header
        head = len(header) + 4
        starts = data.startswith
        bodies: list[bytes] = []
        dense = True
        while pos < end:
            if header and starts(header, pos):
                at = pos + head
                if at > end:
                    break
                size = _U32(data, at - 4)[0]
                if size <= self._least or size > self._message_bytes_max:
                    if self._publish(out, bodies):
                        self._fault(out, *self._bad_size(self._word, size))
                    return end
                stop = at + size
                if stop > end:
                    self._need = stop - pos
                    break
                if dense and size < runs.RUN_BODY_BYTES_MAX and end - pos > runs.RUN_BYTES_MIN:
                    if not self._publish(out, bodies):
                        return end
                    bodies = []
                    rows = runs.run(data, pos, end, header, self._least, self._message_bytes_max)
                    dense = rows is not None and rows.count >= runs.RUN_ROWS_MIN
                    if rows is not None:
                        pos += int(rows.cuts[-1]) + rows.count * head
                        if not self._emit(out, rows):
                            return end
                        continue
                bodies.append(data[at:stop])
                pos = stop
                continue
            if bodies:
                if not self._publish(out, bodies):
                    return end
                bodies = []
            if starts(b"FIN ", pos):
                step = self._fin(data, pos, end, out)
            elif self.raw_ids and (starts(b"REQ ", pos) or starts(b"TOUCH ", pos)):
                step = self._raw(data, pos, end, out)
            else:
                step = self._line(data, pos, end, out)
                if header is not self._header:
                    header = self._header
                    head = len(header) + 4
            if self._dead:
                return end
            if step < 0:
                break
            pos = step
            if self.stopped:
                return pos
        return pos if self._publish(out, bodies) else end

    # --- publishes ------------------------------------------------------------------------------------------------

    def _publish(self, out: list[Command], bodies: list[bytes]) -> bool:
        """Make one command of the bodies that follow each other; False if one of them is a fault."""
        count = len(bodies)
        if count == 1:
            body = bodies[0]
            return self._emit(out, Rows(1, [0, len(body)], body, SOURCE))
        return self._emit(out, Rows.of(bodies, SOURCE)) if count else True

    def _emit(self, out: list[Command], rows: Rows) -> bool:
        if self._word == b"PUB":
            out.append(("PUB", self.topic, rows, rows.count, self.shard))
            return True
        if self._word == b"PUB_TRACE":
            out.append(("PUB_TRACE", self.topic, runs.split_traces(rows), self.shard))
            return True
        headers, messages, good = runs.split_headers(rows)
        if good:
            out.append(("PUB_EXT", self.topic, messages, headers, self.shard))
        if good < rows.count:
            self._short(out, self._word)
            return False
        return True

    def _short(self, out: list[Command], word: bytes, number: int | None = None) -> None:
        item = "" if number is None else f"({number})"
        self._fault(out, "E_BAD_BODY", f"{word.decode()} message{item} ends before its header does, or right behind it")

    def _mpub(self, word: bytes, data: bytes, start: int, stop: int, out: list[Command]) -> Command | None:
        """Decode the items of an MPUB body, which is all there."""
        count = _U32(data, start)[0] if stop - start >= 4 else 0
        if count == 0 or count > (self._body_bytes_max - 4) // 5:
            self._fault(out, "E_BAD_BODY", f"{word.decode()} invalid message count {signed(count)}")
            return None
        rows = self.items(data, start + 4, stop, count, out, word)
        if rows is None or word == b"MPUB":
            return ("MPUB", rows) if rows is not None else None
        if word == b"MPUB_TRACE":
            return ("MPUB_TRACE", runs.split_traces(rows))
        headers, messages, good = runs.split_headers(rows)
        if good < count:
            self._short(out, word, good)
            return None
        return ("MPUB_EXT", messages, headers)

    def items(
        self, data: bytes, start: int, stop: int, count: int, out: list[Command], word: bytes = b"MPUB"
    ) -> Rows | None:
        """Decode `count` length-prefixed bodies that fill start .. stop exactly."""
        least, most = MANY[word], self._message_bytes_max
        rows = runs.equal_items(data, start, stop, count, least, most)
        if rows is not None:
            return rows
        name = word.decode()
        ends: list[int] = []
        at = start
        for number in range(count):
            size = _U32(data, at)[0] if at + 4 <= stop else -1
            if 0 <= size <= least or size > most:
                self._fault(out, *self._bad_size(word, size, number))
                return None
            at += 4 + size
            if size < 0 or at > stop:
                self._fault(out, "E_BAD_BODY", f"{name} message({number}) goes beyond the body")
                return None
            ends.append(at)
        if at != stop:
            self._fault(out, "E_BAD_BODY", f"{name} body has {stop - at} bytes after its {count} messages")
            return None
        return runs.gathered_items(data, start, ends)

    # --- ids ------------------------------------------------------------------------------------------------------

    def _fin(self, data: bytes, pos: int, end: int, out: list[Command]) -> int:
        """Decode a run of FIN lines."""
        ids = fin_run(data, pos, end, self.raw_ids)
        if ids is not None:
            out.append(("FIN", ids))
            return pos + FIN_BYTES * len(ids)
        return self._raw(data, pos, end, out) if self.raw_ids else self._line(data, pos, end, out)

    def _raw(self, data: bytes, pos: int, end: int, out: list[Command]) -> int:
        """Decode FIN, REQ or TOUCH by position; -1 if it is not all there."""
        word = b"TOUCH" if data.startswith(b"T", pos) else data[pos : pos + 3]
        at = pos + len(word) + 1
        after = at + 16
        if after >= end:
            self._need = after + 1 - pos
            return -1
        words = [data[at:after]]
        if word == b"REQ":
            stop = data.find(b"\n", after, after + LINE_BYTES_MAX)
            if data[after] != 32 or (stop < 0 and end - after >= LINE_BYTES_MAX):
                return self._fault(out, "E_INVALID", "REQ invalid message ID")
            if stop < 0:
                return -1
            words.append(data[after + 1 : stop].removesuffix(b"\r"))
            after = stop
        if data[after] != 10 or not any(words[0][:8]):
            return self._fault(out, "E_INVALID", f"{word.decode()} invalid message ID")
        out.append((word.decode(), words))
        return after + 1

    # --- lines ----------------------------------------------------------------------------------------------------

    def _line(self, data: bytes, pos: int, end: int, out: list[Command]) -> int:
        """Decode one command of any kind; -1 if it is not all there."""
        stop = data.find(b"\n", pos, pos + LINE_BYTES_MAX + 1)
        if stop < 0:
            if end - pos > LINE_BYTES_MAX:
                self._dead = True
                self.plain = b""
                out.append(("hang up",))
            return -1
        line = data[pos:stop]
        words = (line[:-1] if line.endswith(b"\r") else line).split(b" ")
        name = words[0]
        after = stop + 1
        if name in SINGLES:
            return self._single(data, pos, after, words, out)
        if name in MANY or name in OTHERS:
            return self._with_body(data, pos, after, end, words, out)
        if name not in LINES:
            return self._fault(out, "E_INVALID", f"invalid command {shown(name)}")
        out.append((name.decode("ascii"), words[1:]))
        self.stopped = name in BARRIERS
        return after

    def _single(self, data: bytes, pos: int, after: int, words: list[bytes], out: list[Command]) -> int:
        """Take note of a publish's line; the body is cut where it is found again."""
        found = self._address(words, out)
        if found is None:
            return -1
        self._header = data[pos:after]
        self._word, self._least = words[0], SINGLES[words[0]]
        self.topic, self.shard = found
        self.plain = self._header if words[0] == b"PUB" else b""
        return pos

    def _address(self, words: list[bytes], out: list[Command]) -> tuple[str, int] | None:
        """Return the topic and the partition that a publish goes to."""
        name = words[0].decode("ascii")
        if len(words) < (3 if name == "DPUB" else 2):
            self._fault(out, "E_INVALID", f"{name} insufficient number of parameters")
            return None
        if not is_name(words[1]):
            # Upstream's text says the code again for this one command, and clients may compare it.
            again = "E_BAD_TOPIC " if name == "MPUB" else ""
            self._fault(out, "E_BAD_TOPIC", f"{again}{name} topic name {quoted(words[1])} is not valid")
            return None
        shard: int | None = ANY
        if len(words) > 2 and name != "DPUB":
            shard = partition_of(words[2])
        if shard is None:
            text = f"{name} partition {quoted(words[2])} is not valid, choose one from 0 to {PARTITION_MAX}"
            self._fault(out, "E_BAD_PARTITION", text)
            return None
        return words[1].decode("ascii"), shard

    def _delay_ms(self, text: bytes, out: list[Command]) -> int:
        """Return how long a DPUB asks to wait."""
        delay_ms = number_of(text)
        if delay_ms is None:
            self._fault(out, "E_INVALID", f"DPUB could not parse timeout {shown(text)}")
        elif delay_ms > self._delay_ms_max:
            self._fault(out, "E_INVALID", f"DPUB timeout {delay_ms} out of range 0-{self._delay_ms_max}")
        return delay_ms or 0

    def _with_body(self, data: bytes, pos: int, after: int, end: int, words: list[bytes], out: list[Command]) -> int:
        word = words[0]
        name = word.decode("ascii")
        topic, shard, delay_ms = "", ANY, 0
        if word in MANY or word == b"DPUB":
            found = self._address(words, out)
            if found is None:
                return -1
            topic, shard = found
        if word == b"DPUB":
            delay_ms = self._delay_ms(words[2], out)
        elif word == b"AUTH" and len(words) > 1:
            self._fault(out, "E_INVALID", "AUTH invalid number of parameters")
        if self._dead:
            return -1
        if after + 4 > end:
            self._need = after + 4 - pos
            return -1
        size: int = _U32(data, after)[0]
        if word == b"DPUB":
            if size == 0 or size > self._message_bytes_max:
                return self._fault(out, *self._bad_size(word, size))
        elif size == 0 or size > self._body_bytes_max:
            small = size == 0 or size >= 1 << 31
            text = f"invalid body size {signed(size)}" if small else f"body too big {size} > {self._body_bytes_max}"
            return self._fault(out, "E_BAD_BODY", f"{name} {text}")
        start, stop = after + 4, after + 4 + size
        if stop > end:
            self._need = stop - pos
            return -1
        if word in MANY:
            command = self._mpub(word, data, start, stop, out)
            if command is None:
                return -1
            out.append((command[0], topic, *command[1:], shard))
        elif word == b"DPUB":
            out.append(("DPUB", topic, Rows(1, [0, size], data[start:stop], SOURCE), delay_ms))
        else:
            out.append((name, words[1:], data[start:stop]))
        self.stopped = word in BARRIERS
        return stop

    # --- faults ---------------------------------------------------------------------------------------------------

    def _bad_size(self, word: bytes, size: int, number: int | None = None) -> tuple[str, str]:
        """Return code and text for a message of this size. Youzan's commands call a missing message a bad body."""
        name = word.decode()
        item = "" if number is None else f"({number})"
        if size <= SINGLES.get(word, MANY.get(word, 0)) or size >= 1 << 31:
            code = "E_BAD_MESSAGE" if name in ("PUB", "MPUB", "DPUB") else "E_BAD_BODY"
            return code, f"{name} invalid message{item} body size {signed(size)}"
        return "E_BAD_MESSAGE", f"{name} message too big {size} > {self._message_bytes_max}"

    def _fault(self, out: list[Command], code: str, text: str) -> int:
        out.append(("fault", code, text))
        self._dead = True
        self.plain = b""
        return -1
