"""Dory for programs that send: messages into a node's UNIX or TCP sockets, with nothing but Python's own library.

`Sender` is all that most programs need. Nothing here imports the rest of the package, or anything installed.
"""

from penstock.dory.message import TooLong, encode
from penstock.dory.sender import Sender

__all__ = ["Sender", "TooLong", "encode"]
