"""An NSQ consumer that asks for messages with one tag: python examples/desired_tag.py TOPIC CHANNEL TAG

Stock NSQ clients cannot send `desired_tag`, so this one speaks the protocol itself. It needs nothing but Python.
Try it beside `penstock pub TOPIC "for blue" --tag blue` and `penstock sub TOPIC CHANNEL`.
"""

import json
import socket
import struct
import sys


def main(topic: str, channel: str, tag: str, host: str = "127.0.0.1", port: str = "4150") -> None:
    """Print and finish messages until the connection ends."""
    body = json.dumps({"client_id": "example", "desired_tag": tag, "extend_support": True, "feature_negotiation": True})
    connection = socket.create_connection((host, int(port)))
    connection.sendall(b"  V2IDENTIFY\n" + struct.pack(">I", len(body)) + body.encode())
    connection.sendall(f"SUB {topic} {channel}\nRDY 10\n".encode())
    stream = connection.makefile("rb")
    while head := stream.read(8):
        size, kind = struct.unpack(">II", head)
        data = stream.read(size - 4)
        if kind == 1:
            sys.exit(data.decode())
        elif kind == 0:
            if data == b"_heartbeat_":
                connection.sendall(b"NOP\n")
        else:
            # time (8), attempts (2), id (16), version of the header (1), then the header if there is one
            id_, rest = data[10:26], data[27:]
            header = ""
            if data[26]:
                length = struct.unpack_from(">H", rest)[0]
                header, rest = rest[2 : 2 + length].decode(), rest[2 + length :]
            print(header, rest.decode(errors="replace"), flush=True)
            connection.sendall(b"FIN " + id_ + b"\n")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:6])
