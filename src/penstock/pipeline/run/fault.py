"""Why a query failed, in one line, out of what Spark says.

Spark wraps an error of ours in a Java error around a Python traceback; people want the line in the middle.
"""

from __future__ import annotations

import re

#: An error of ours at the end of a traceback.
_OURS = re.compile(r"penstock\.[\w.]*(?:errors|connection|lake)[\w.]*\.(?:\w+): (.+)")
#: Any Python error at the end of a traceback.
_PYTHON = re.compile(r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Refusal|Unreachable)): (.+)", re.MULTILINE)
#: Java's own causes.
_JAVA = re.compile(r"Caused by: ([\w.$]+(?:Exception|Error)?: .+)")
#: What stands around every failure of a stream.
_WRAPPING = ("[STREAM_FAILED]", "[FOREACH_BATCH_USER_FUNCTION_ERROR]")
#: The number of a class of errors, for programs.
_STATE = re.compile(r" SQLSTATE: \w+.*")


def reason(error: BaseException) -> str:
    """Return one line that says what went wrong."""
    text = str(error)
    for pattern in (_OURS, _PYTHON, _JAVA):
        found = pattern.findall(text)
        if found:
            return _STATE.sub("", str(found[-1])).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith(_WRAPPING)]
    first = next(iter(text.strip().splitlines()), type(error).__name__)
    return _STATE.sub("", lines[0] if lines else first)
