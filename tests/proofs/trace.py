"""What a process asked of the kernel, as `strace -f -yy` wrote it down.

Owns strace's text: calls of several threads overlap there as "unfinished" and "resumed" lines. The line number is
the time: a call begins at the line that shows its arguments and ends at the line that shows its result.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

_LINE = re.compile(r"(\d+) +(?:<\.\.\. (\w+) resumed>(.*)|(\w+)\((.*))", re.DOTALL)
_RESULT = re.compile(r"= (-?\d+|\?)[^=]*$")
_FILE = re.compile(r"\d+<(.*?)>(?=[,) ]|$)")
_PEER = re.compile(r"TCP:\[[^\]]*->[^\]]*:(\d+)\]")
_TOKEN = re.compile(r"<p\d+\.\d+>")
_UNFINISHED = " <unfinished ...>"
_WRITES = frozenset(("write", "writev", "pwrite64", "pwritev", "sendto", "sendmsg"))
#: A response frame that says OK, as strace shows its bytes.
_OK = r"\0\0\0\6\0\0\0\0OK"


class Call:
    """One call: its name, its arguments as text, and the lines where it began and ended."""

    __slots__ = ("arguments", "begin", "end", "name", "path", "result")

    def __init__(self, name: str, arguments: str, begin: int) -> None:
        self.name = name
        self.arguments = arguments
        self.begin = begin
        self.end = begin
        self.result = ""
        found = _FILE.match(arguments)
        self.path = found[1] if found else ""

    def __repr__(self) -> str:
        return f"{self.name} {self.path} at lines {self.begin}-{self.end}"

    @property
    def writes(self) -> bool:
        """Whether it puts bytes somewhere."""
        return self.name in _WRITES

    @property
    def good(self) -> bool:
        """Whether it succeeded."""
        return self.result.isdigit()

    def tokens(self) -> list[bytes]:
        """Return the tokens among the bytes it wrote, in order."""
        return [token.encode() for token in _TOKEN.findall(self.arguments)]


class Trace:
    """All calls of a process in the order they began."""

    def __init__(self, calls: list[Call]) -> None:
        self.calls = calls
        self._to: defaultdict[int, list[Call]] = defaultdict(list)
        for call in calls:
            peer = _PEER.match(call.path) if call.writes else None
            if peer:
                self._to[int(peer[1])] += [call] * call.arguments.count(_OK)

    @classmethod
    def read(cls, path: Path) -> Trace:
        """Read strace's output."""
        calls: list[Call] = []
        unfinished: dict[str, Call] = {}
        with path.open(encoding="latin-1") as lines:
            for number, line in enumerate(lines, 1):
                parts = _LINE.match(line.rstrip("\n"))
                if parts is None:
                    continue
                thread, _, rest, name, arguments = parts.groups()
                if name is None:
                    call = unfinished.pop(thread, None)
                    if call is None:
                        continue
                    call.arguments += rest
                else:
                    call = Call(name, arguments.removesuffix(_UNFINISHED), number)
                    calls.append(call)
                    if arguments.endswith(_UNFINISHED):
                        unfinished[thread] = call
                        continue
                call.end = number
                result = _RESULT.search(rest if name is None else arguments)
                call.result = result[1] if result else ""
        for call in unfinished.values():  # killed inside it: it never ended
            call.end = number + 1
        return cls(calls)

    def oks_to(self, port: int) -> list[Call]:
        """Return the call that sent each OK to a connection, by the client's port."""
        return self._to[port]
