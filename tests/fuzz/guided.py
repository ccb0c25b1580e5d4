"""Fuzz the parsers themselves, guided by which of their lines an input reaches: python -m tests.fuzz.guided DECODER.

Beside the black box of `python -m tests.fuzz`: no node, no sockets, many times the inputs. Needs Atheris (`make fuzz`
installs it). Options behind the name are libFuzzer's, for example -max_total_time=60.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]

with atheris.instrument_imports(
    include=[
        "penstock.dialects.dory",
        "penstock.dialects.nsq",
        "penstock.http",
        "penstock.kafka",
        "penstock.m3",
        "penstock.wire",
    ]
):
    from penstock.dialects.dory.codec import Stream, decode
    from penstock.dialects.nsq.codec.decoder import Decoder
    from penstock.dialects.nsq.codec.words import Limits
    from penstock.dialects.nsq.lookup import codec as lookup
    from penstock.errors import PenstockError
    from penstock.m3 import metrics
    from penstock.m3.messages import MessageReader
    from penstock.m3.wire import BadMessage
    from penstock.wire.layers import Deflate, LayerError, Snappy
    from tests.kafka import answers  # which brings Kafka's readers in

from tests.fuzz import samples

#: Atheris keeps what it saw compared, 1 to 2 kB a run, which without its tracing is not so: in a few minutes that comes
#: to more than the 2 GB that libFuzzer allows. What one call may allocate stays at these.
MEMORY = ("-rss_limit_mb=12288", "-malloc_limit_mb=2048")

LIMITS = Limits(message_bytes_max=1 << 16, body_bytes_max=1 << 18)


def nsq(data: bytes) -> None:
    """NSQ's commands; what they say does not depend on how they arrive."""
    at = len(data) // 2
    whole, cut = Decoder(LIMITS), Decoder(LIMITS)
    whole.feed(data)
    cut.feed(data[:at])
    cut.feed(data[at:])


def lookup_tcp(data: bytes) -> None:
    """The lookup service's commands, and its answers; the same, however they arrive."""
    at = len(data) // 2
    whole, cut = lookup.Decoder(), lookup.Decoder()
    assert whole.feed(data) == cut.feed(data[:at]) + cut.feed(data[at:])
    for parse in (lookup.identity, lookup.service):
        try:
            parse(data)
        except lookup.Faulty:
            pass


def m3msg(data: bytes) -> None:
    """M3Msg's messages and the metrics in them; as many, however they arrive."""
    at = len(data) // 2
    whole, cut = MessageReader(), MessageReader()
    once, first, second = whole.feed(data), cut.feed(data[:at]), cut.feed(data[at:])
    counts = [found.count if found is not None else 0 for found in (once, first, second)]
    assert counts[0] == counts[1] + counts[2]
    try:
        metrics.decode(data, 0)
    except BadMessage:
        pass


def kafka(data: bytes) -> None:
    """A broker's answers; the first byte says to what."""
    try:
        answers.read(data[0] if data else 0, data[1:])
    except PenstockError:
        pass


def dory(data: bytes) -> None:
    """Dory's messages; the same number of good and bad ones, however they arrive and however many come at once."""
    at = len(data) // 2
    counts = []
    for pieces in ([data], [data[:at], data[at:]]):
        stream, good, bad = Stream(1 << 16), 0, 0
        for piece in pieces:
            if not stream.fault:
                found = decode(*stream.cut(piece), 0)
                good += sum(group.rows.count for group in found.groups)
                bad += sum(map(len, found.faults.values()))
        counts.append((good, bad, stream.fault, stream.held if not stream.fault else 0))
    assert counts[0] == counts[1]


def layers(data: bytes) -> None:
    """Snappy and deflate."""
    for layer in (Snappy(), Deflate()):
        try:
            layer.receive(data)
            while layer.pending:
                layer.receive(b"")
        except LayerError:
            pass


DECODERS: dict[str, tuple[Callable[[bytes], None], tuple[bytes, ...]]] = {
    "nsq": (nsq, tuple(sample.removeprefix(b"  V2") for sample in samples.NSQ_TCP)),
    "lookup": (lookup_tcp, samples.LOOKUP_TCP),
    "kafka": (
        kafka,
        tuple(bytes((row,)) + answers.good(api, version) for row, (api, version, _) in enumerate(answers.READERS)),
    ),
    "layers": (layers, ()),
    "m3msg": (m3msg, samples.M3MSG),
    "dory": (dory, samples.DORY),
}


def main() -> None:
    """Run one decoder until it breaks or its time is over."""
    if len(sys.argv) < 2 or sys.argv[1] not in DECODERS:
        sys.exit(f"name what to fuzz, one of {', '.join(DECODERS)}")
    decoder, said = DECODERS[sys.argv[1]]
    corpus = Path(tempfile.mkdtemp(prefix="penstock-fuzz-"))
    for number, sample in enumerate(said):
        (corpus / str(number)).write_bytes(sample)
    atheris.Setup([sys.argv[0], *MEMORY, *sys.argv[2:], str(corpus)], decoder)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
