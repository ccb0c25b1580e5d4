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


ARROW = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] \
Reason: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "clientserver.py", line 641, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
  File "pyarrow/error.pxi", line 91, in pyarrow.lib.check_status
pyarrow.lib.ArrowInvalid: Parquet file size is 0 bytes
 SQLSTATE: 39000
"""

UNREADABLE = """An error occurred while calling o95.count.
: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file \
file:///lake/topic=a%20b/part-1.parquet.  SQLSTATE: KD001
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.cannotReadFilesError(QueryExecutionErrors.scala:920)
Caused by: java.io.IOException: can not read class org.apache.parquet.format.PageHeader
\tat org.apache.parquet.format.Util.read(Util.java:416)
Caused by: shaded.thrift.TProtocolException: don't know what type: 14
\tat shaded.thrift.TCompactProtocol.getTType(TCompactProtocol.java:900)
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FOREACH, "grpc://127.0.0.1:1 does not answer"),
        (
            "  x\npyspark.errors.exceptions.captured.ArithmeticException: [BY_ZERO] No.\n== SQL",
            "[BY_ZERO] No.",
        ),
        (ARROW, "Parquet file size is 0 bytes"),
        (UNREADABLE, "/lake/topic=a b/part-1.parquet cannot be read: don't know what type: 14"),
        ("Traceback (most recent call last):\n  File 'x'\nKeyError: 'price'\n", "KeyError: 'price'"),
        ("x\npenstock.errors.Refusal: topic t is gone\n", "topic t is gone"),
        ("Traceback\nOSError: [Errno 28] No space left on device\n", "[Errno 28] No space left on device"),
        ("boom\nCaused by: java.io.IOException: No space left\n", "java.io.IOException: No space left"),
        ("plain words", "plain words"),
        ("", "ValueError"),
    ],
)
def test_the_line_that_matters_is_found(text: str, said: str) -> None:
    assert reason(ValueError(text)) == said
