"""What a person writes on the command line, made into what a request carries: pairs and traffic types.

Owns the errors about such texts. Times, durations and sizes pass as text: the node reads and checks them.
"""

from __future__ import annotations

import re

from penstock.cli.failure import USAGE, Failure
from penstock.cli.printer import complain

_BITS = re.compile(r"0[xX][0-9a-fA-F]{1,16}|0[bB][01]{1,64}|[0-9]{1,20}", re.ASCII)


def note_spelling(topic: str) -> None:
    """Say it, if clients of NSQ cannot name a topic."""
    from penstock.dialects.nsq.codec.words import NAME_BYTES_MAX, is_name

    if topic and not is_name(topic.encode(errors="surrogateescape")):
        allowed = f"its names are 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' and '-'"
        complain(f"note: no client of NSQ can name topic {topic!r}: {allowed}.")


def pairs(option: str, texts: list[str] | None) -> dict[str, str]:
    """Return the names and values of a repeated option such as `--header name=value`."""
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Failure(f'{option} "{text}" is not understood; write {option} NAME=VALUE', USAGE)
        found[name] = value
    return found


def traffic(texts: list[str] | None) -> int | list[str] | None:
    """Return traffic types as a message carries them: their names, or all 64 bits as one number."""
    if not texts:
        return None
    numbers = [text for text in texts if _BITS.fullmatch(text)]
    if not numbers:
        return texts
    if len(texts) > 1:
        given = ", ".join(texts)
        raise Failure(f"--traffic {given}: write names, or one number that holds all bits, like 0b101", USAGE)
    bits = int(numbers[0], 0) if numbers[0][:2].lower() in ("0x", "0b") else int(numbers[0])
    if bits >= 1 << 64:
        raise Failure(f"--traffic {numbers[0]} does not fit 64 bits", USAGE)
    return bits
