"""Why a query failed, in one line, out of what Spark says.

Spark wraps an error of ours in a Java error around a Python traceback; people want the line in the middle.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

#: An error of ours at the end of a traceback.
_OURS = re.compile(r"\bpenstock\.(?:\w+\.)*[A-Z]\w*: (.+)")
#: A file that Spark could not read; why is in Java's causes.
_FILE = re.compile(r"error while reading file (?:file:)?(?://)?(/.+?)\.\s+(.*?)(?:SQLSTATE|$)", re.MULTILINE)
#: Any Python error at the end of a traceback: those of libraries stand there with their modules.
_PYTHON = re.compile(
    r"^((?:[A-Za-z_]\w*\.)+[A-Z]\w*|[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Iteration)): (.+)", re.MULTILINE
)
#: What is no reason but the wrapping of one, or Java's.
_WRAPS = re.compile(r"(?:org|java|javax|scala|py4j)\.|(?:.*\.)?(?:PythonException|StreamingQueryException)$")
#: Java's own causes.
_JAVA = re.compile(r"Caused by: ([\w.$]+(?:Exception|Error)?: .+)")
#: The class of a Java error, in front of what it says.
_CLASS = re.compile(r"^[\w.$]+(?:Exception|Error): ")
#: What stands around every failure of a stream.
_WRAPPING = ("[STREAM_FAILED]", "[FOREACH_BATCH_USER_FUNCTION_ERROR]")
#: The number of a class of errors, for programs.
_STATE = re.compile(r" SQLSTATE: \w+.*")


def reason(error: BaseException) -> str:
    """Return one line that says what went wrong."""
    text = str(error)
    return _STATE.sub("", _ours(text) or _file(text) or _python(text) or _java(text) or _rest(error, text)).strip()


def _ours(text: str) -> str:
    return str((_OURS.findall(text) or [""])[-1])


def _file(text: str) -> str:
    """Return which file could not be read, and why."""
    found = _FILE.search(text)
    if found is None:
        return ""
    path = unquote(found[1])
    causes = [_CLASS.sub("", cause) for cause in _JAVA.findall(text)]
    why = causes[-1] if causes else found[2].strip() or "Spark does not say why"
    return f"{path} cannot be read: {why}"


def _python(text: str) -> str:
    found = [(name, said.strip()) for name, said in _PYTHON.findall(text) if not _WRAPS.match(name)]
    if not found:
        return ""
    name, said = found[-1]
    # KeyError: 'x' says nothing without its name.
    return said if " " in said else f"{name}: {said}"


def _java(text: str) -> str:
    return str((_JAVA.findall(text) or [""])[-1])


def _rest(error: BaseException, text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith(_WRAPPING)]
    return lines[0] if lines else next(iter(text.strip().splitlines()), type(error).__name__)
