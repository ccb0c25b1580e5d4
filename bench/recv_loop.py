"""The least that a receiver of datagrams can be in Python: it takes them and throws them away.

    python -m bench.recv_loop SOCKET COUNT

In a process of its own, because its CPU time is measured.
"""

from __future__ import annotations

import json
import socket
import sys
import time

#: As much as the node takes with its defaults.
DATAGRAM_BYTES_MAX = 65536


def main() -> None:
    """Receive so many, and say when that was done and what it cost."""
    path, count = sys.argv[1], int(sys.argv[2])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
        spent = time.process_time()
        receive = sock.recv
        for _ in range(count):
            receive(DATAGRAM_BYTES_MAX)
        print(json.dumps({"ended_at": time.monotonic(), "cpu": time.process_time() - spent}))


if __name__ == "__main__":
    main()
