"""Heads of the common shape: HTTP/1.1, at most one length, no header that changes how a request is read.

One regular expression is the whole parser. Whatever it does not match is left to the real one.
"""

from __future__ import annotations

import re

#: Half a head is kept up to this size; a plain one is far smaller.
HALF_BYTES_MAX = 4096

#: A header that changes nothing here. Those that would (a length, chunks, 100-continue, another protocol, a
#: connection that ends, a web page that asks) are left out, so that a request with one of them has another shape.
#: Case is passed over in names alone: in values it would double what every byte of a head costs.
_VALUE = rb"[^\x00-\x08\x0a-\x1f\x7f]*+\r\n"
_OTHER = (
    rb"(?>(?i:host):[ ]?([!-~]*+)\r\n"
    # The first letters alone make most headers pass without comparing words.
    rb"|(?!(?=[cehostuCEHOSTU])"
    rb"(?i:content-length|transfer-encoding|expect|upgrade|connection|host|origin|sec-fetch-site)[ \t]*:)"
    rb"[!#$%&'*+.^_`|~0-9A-Za-z-]++:" + _VALUE + rb"|(?i:connection:[ ]?keep-alive)\r\n)*+"
)
#: The whole head, one length in it: method, target, the host before it, length, or the host behind it. Nothing in it
#: can match in two ways, so no input makes it look back.
match = re.compile(
    rb"([A-Z]{1,16}) (/[!-~]*+) HTTP/1\.1\r\n"
    + _OTHER
    + rb"(?i:content-length):[ ]?([0-9]{1,9})\r\n"
    + _OTHER
    + rb"\r\n"
).match


def is_half(data: bytes, at: int, starts: tuple[bytes, ...]) -> bool:
    """Tell whether bytes may become a plain head; of a pipelined read the last head is nearly always cut."""
    begins = any(start.startswith(data[at : at + len(start)]) for start in starts)
    return begins and len(data) - at < HALF_BYTES_MAX and data.find(b"\r\n\r\n", at) < 0
