"""What happened at the inputs, counted under Dory's own names: operators and their scripts look for them."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.dialect import Sample

#: Names of one connected input begin with what it is.
STREAMS = ("UnixStream", "Tcp")
ENDS = ("CleanDisconnect", "UncleanDisconnect", "SocketError", "InvalidSizeField", "MsgBodyTooLarge", "ForwardMsg")
NAMES = (
    "MsgCreate",
    "UnixDgInputAgentForwardMsg",
    "NewUnixClient",
    "NewTcpClient",
    "InputAgentDiscardMsgMalformed",
    "InputAgentDiscardMsgUnsupportedApiKey",
    "InputAgentDiscardAnyPartitionMsgUnsupportedApiVersion",
    "InputAgentDiscardPartitionKeyMsgUnsupportedApiVersion",
    "InputAgentDiscardMsgNoMem",
    *(f"{stream}Input{end}" for stream in STREAMS for end in ENDS),
)


class Counters(dict[str, int]):
    """How often each thing happened since the start; every name is there."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(NAMES, 0))

    def samples(self) -> Iterator[Sample]:
        """Return them as figures."""
        text = "What happened at Dory's inputs, by Dory's own names."
        for name, count in self.items():
            yield Sample("input_total", "counter", text, count, {"name": name})
