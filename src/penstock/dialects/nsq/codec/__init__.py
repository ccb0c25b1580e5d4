"""NSQ's bytes: whole reads into commands, deliveries into frames. No sockets, no clock, no delivery rules.

`decoder` turns a stream into commands, with `runs` for what can be cut many at a time and `ids` for the two forms of
message ids; `frames` makes what is sent, `extended` the message frames of Youzan's extension.
"""

from penstock.dialects.nsq.codec.decoder import Decoder
from penstock.dialects.nsq.codec.extended import PLAIN, Form
from penstock.dialects.nsq.codec.frames import (
    CLOSE_WAIT,
    ERROR,
    HEARTBEAT,
    MESSAGE,
    OK,
    RESPONSE,
    error,
    frame,
    gathered,
    lone,
    messages,
    picked,
    traced,
)
from penstock.dialects.nsq.codec.ids import hex_id, hex_ids, raw_id
from penstock.dialects.nsq.codec.words import (
    ANY,
    LINE_BYTES_MAX,
    MAGIC,
    SOURCE,
    Command,
    Limits,
    is_name,
    number_of,
    partition_of,
    quoted,
    shown,
)

__all__ = [
    "ANY",
    "CLOSE_WAIT",
    "ERROR",
    "HEARTBEAT",
    "LINE_BYTES_MAX",
    "MAGIC",
    "MESSAGE",
    "OK",
    "PLAIN",
    "RESPONSE",
    "SOURCE",
    "Command",
    "Decoder",
    "Form",
    "Limits",
    "error",
    "frame",
    "gathered",
    "hex_id",
    "hex_ids",
    "is_name",
    "lone",
    "messages",
    "number_of",
    "partition_of",
    "picked",
    "quoted",
    "raw_id",
    "shown",
    "traced",
]
