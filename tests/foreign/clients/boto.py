"""boto3, told over a pipe what to call: a line of JSON in, a line out, as many at once as are asked.

    {"id": 1, "service": "sqs", "operation": "send_message", "params": {…}}
    {"id": 1, "answer": {…}}  or  {"id": 1, "error": {"code": …, "type": …, "status": …, "message": …}}

Bytes are {"$bytes": base64}. The first line says where: endpoint, key and secret.
"""

from __future__ import annotations

import json
import sys
import threading
from base64 import b64decode, b64encode
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
import botocore.config
import botocore.exceptions

AT_ONCE = 64


def _told(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"$bytes": b64encode(value).decode()}
    return str(value)


def _read(found: dict[str, Any]) -> Any:
    return b64decode(found["$bytes"]) if list(found) == ["$bytes"] else found


def main() -> None:
    place = json.loads(sys.stdin.readline())
    config = botocore.config.Config(
        retries={"total_max_attempts": 1}, max_pool_connections=AT_ONCE, read_timeout=90, connect_timeout=60
    )
    session = boto3.Session(place["key"], place["secret"], region_name=place["region"])
    clients = {name: session.client(name, endpoint_url=place["endpoint"], config=config) for name in ("sqs", "sns")}
    turn = threading.Lock()

    def carry_out(asked: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"id": asked["id"]}
        try:
            found = getattr(clients[asked["service"]], asked["operation"])(**asked["params"])
            found.pop("ResponseMetadata", None)
            answer["answer"] = found
        except botocore.exceptions.ClientError as error:
            met, told = error.response["ResponseMetadata"], error.response["Error"]
            kind = {"type": type(error).__name__, "code": told["Code"], "message": told["Message"]}
            answer["error"] = {**kind, "status": met["HTTPStatusCode"]}
        except Exception as error:
            answer["error"] = {"type": type(error).__name__, "code": "", "message": str(error), "status": 0}
        with turn:
            print(json.dumps(answer, default=_told), flush=True)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for line in sys.stdin:
            pool.submit(carry_out, json.loads(line, object_hook=_read))


if __name__ == "__main__":
    main()
