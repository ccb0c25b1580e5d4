"""One line out of what Spark says when a query fails."""

from __future__ import annotations

import pytest

from penstock.pipeline.run.fault import reason

FOREACH = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] \
Reason: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "clientserver.py", line 641, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
pyspark.errors.exceptions.captured.PythonException:
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "stage.py", line 1, in stage
penstock.client.connection.Unreachable: grpc://127.0.0.1:1 does not answer
 SQLSTATE: 39000
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FOREACH, "grpc://127.0.0.1:1 does not answer"),
        ("x\npenstock.errors.Refusal: topic t is gone\n", "topic t is gone"),
        ("Traceback\nOSError: [Errno 28] No space left on device\n", "[Errno 28] No space left on device"),
        ("boom\nCaused by: java.io.IOException: No space left\n", "java.io.IOException: No space left"),
        ("plain words", "plain words"),
        ("", "ValueError"),
    ],
)
def test_the_line_that_matters_is_found(text: str, said: str) -> None:
    assert reason(ValueError(text)) == said
