"""An instance of a consumer service as a process: what comes is in a file before it is acked, so a kill loses nothing.

python -m tests.proofs.m3msg_consumer PORT FILE
"""

from __future__ import annotations

import os
import signal
import sys

from tests.m3msg.receiver import Receiver


def main() -> None:
    """Take messages until it is killed."""
    port, path = int(sys.argv[1]), sys.argv[2]
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    os.write(file, b"\n")  # a kill may have left half a line

    def keep(values: list[bytes]) -> None:
        os.write(file, b"".join(value + b"\n" for value in values))

    with Receiver(port, keep):
        signal.pause()


if __name__ == "__main__":
    main()
