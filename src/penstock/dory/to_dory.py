"""`to_dory`: send messages to a node's Dory inputs from a shell, with the options of Dory's own command."""

from __future__ import annotations

import argparse
import struct
import sys
import time
from collections.abc import Sequence

from penstock.dory.message import TooLong, encode
from penstock.dory.sender import Sender


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    chosen = _parser().parse_args(words)
    given = sys.stdin.buffer.read() if chosen.stdin else chosen.value.encode(errors="surrogateescape")
    try:
        with _sender(chosen) as sender:
            next_s = time.monotonic()
            for number in range(1, chosen.count + 1):
                time.sleep(max(next_s - time.monotonic(), 0))
                next_s = time.monotonic() + chosen.interval / 1_000_000
                sender.send_encoded(_message(chosen, number, given))
                if chosen.print and not number % chosen.print:
                    print(f"{number} messages written", flush=True)
    except (OSError, TooLong) as error:
        print(f"to_dory: {error}", file=sys.stderr)
        return 1
    return 0


def _message(chosen: argparse.Namespace, number: int, given: bytes) -> bytes:
    value = b"%0*d " % (chosen.pad, number) + given if chosen.seq else given
    topic, key = (text.encode(errors="surrogateescape") for text in (chosen.topic, chosen.key))
    wire = encode(topic, value, key, partition_key=chosen.partition_key)
    if chosen.bad:  # its size is wrong by one
        wire = struct.pack(">i", len(wire) - 1) + wire[4:]
    return wire


def _sender(chosen: argparse.Namespace) -> Sender:
    if chosen.socket_path is not None:
        return Sender(chosen.socket_path)
    if chosen.stream_socket_path is not None:
        return Sender(chosen.stream_socket_path, "stream")
    return Sender(chosen.port, "tcp")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "to_dory", description="Send messages to a node on this machine; nothing comes back."
    )
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--socket-path", "--socket_path", metavar="PATH", help="its UNIX datagram socket")
    place.add_argument("--stream-socket-path", "--stream_socket_path", metavar="PATH", help="its UNIX stream socket")
    place.add_argument("--port", type=_port, help="its TCP port")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partition-key", "--partition_key", type=_partition_key, help="chooses a partition")
    parser.add_argument("--key", default="")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--value", default="")
    what.add_argument("--stdin", action="store_true", help="read the value from standard input")
    parser.add_argument("--count", type=_count, default=1, help="how many messages")
    parser.add_argument("--interval", type=_count, default=0, metavar="MICROSECONDS", help="between two of them")
    parser.add_argument("--seq", action="store_true", help="begin each value with its number")
    parser.add_argument("--pad", type=_count, default=0, metavar="WIDTH", help="of that number, with zeros before it")
    parser.add_argument("--bad", action="store_true", help="send what is malformed")
    parser.add_argument("--print", type=_count, default=0, metavar="N", help="say so after every N messages")
    return parser


def _count(text: str) -> int:
    return _between(text, 0, sys.maxsize)


def _port(text: str) -> int:
    return _between(text, 1, 65535)


def _partition_key(text: str) -> int:
    return _between(text, 0, (1 << 32) - 1)


def _between(text: str, least: int, most: int) -> int:
    number = int(text)
    if not least <= number <= most:
        raise argparse.ArgumentTypeError(f"{number} is not between {least} and {most}")
    return number


if __name__ == "__main__":
    sys.exit(main())
