"""Version 1 as an OpenAPI document. Its answers are what the service's were, so they are told one by one.

The table of routes that answers is `http`'s; a test holds this one against it.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from penstock.dialects.dynamiq.choices import AGE_NS_MAX, PARTITIONS_MAX, VISIBILITY_NS_MAX
from penstock.settings import SECOND_NS

_TEXT: dict[str, Any] = {"type": "string"}
_TRUTH: dict[str, Any] = {"type": "boolean"}
_WHOLE: dict[str, Any] = {"type": "integer"}
_NUMBER: dict[str, Any] = {"type": "number"}
_TEXTS: dict[str, Any] = {"type": "array", "items": _TEXT}


def _object(**fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields)}


_ERROR = _object(error=_TEXT)
_QUEUES = _object(Queues=_TEXTS)
_DELETED = _object(Deleted=_TRUTH)
_IDS = {"type": "object", "additionalProperties": _TEXT}
_MESSAGE = {**_object(id=_TEXT, body=_TEXT)}
_MESSAGE["properties"] = {**_MESSAGE["properties"], "encoding": {"enum": ["base64"]}}
_MESSAGES = {"type": "array", "items": _MESSAGE}
_SECONDS = {"type": "number", "minimum": 0, "maximum": VISIBILITY_NS_MAX // SECOND_NS}
_AGE = {"type": "number", "minimum": 0, "maximum": AGE_NS_MAX // SECOND_NS}
_PARTITIONS = {"type": "integer", "minimum": 1, "maximum": PARTITIONS_MAX}
_SETTINGS = {
    "type": "object",
    "properties": {
        "visibility_timeout": _SECONDS,
        "min_partitions": _PARTITIONS,
        "max_partitions": _PARTITIONS,
        "max_partition_age": _AGE,
        "compressed_messages": _TRUTH,
    },
}
_QUEUE = _object(
    VisibilityTimeout=_NUMBER,
    MinPartitions=_WHOLE,
    MaxPartitions=_WHOLE,
    MaxPartitionAge=_NUMBER,
    CompressedMessages=_TRUTH,
    partitions=_WHOLE,
    visibility_timeout=_NUMBER,
    min_partitions=_WHOLE,
    max_partitions=_WHOLE,
    max_partition_age=_NUMBER,
    compressed_messages=_TRUTH,
)

_NAME = {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"}
_PARAMETERS: dict[str, dict[str, Any]] = {
    "t": _NAME,
    "q": _NAME,
    "n": {"type": "integer", "minimum": 1},
    "id": {"type": "string", "pattern": "^(0|[1-9][0-9]{0,18})$"},
    "ids": {"type": "string", "pattern": "^[0-9]{1,19}(,[0-9]{1,19}){0,9}$"},
}

_JSON = "application/json; charset=UTF-8"
_PLAIN = "text/plain; charset=utf-8"


class _Row(NamedTuple):
    method: str
    path: str
    name: str
    summary: str
    #: By status: what is answered; a text has no schema of JSON.
    answers: dict[int, dict[str, Any] | None]
    body: dict[str, Any] | None = None


_BYTES: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string"}}}
_CHANGE: dict[str, Any] = {"application/json": {"schema": _SETTINGS}}

_ROWS = (
    _Row("GET", "/ping", "ping", "Tell that the node is there", {200: None}),
    _Row("GET", "/status/servers", "servers", "Tell who is there, a line each", {200: None}),
    _Row(
        "GET",
        "/status/partitionrange",
        "partition_range",
        "Tell which ids are its own",
        {200: _object(bottom=_TEXT, top=_TEXT)},
    ),
    _Row("GET", "/topics", "topics", "List topics", {200: _object(topics=_TEXTS)}),
    _Row("GET", "/topics/{t}", "topic", "Tell which queues a topic feeds", {200: _QUEUES, 404: _ERROR}),
    _Row("PUT", "/topics/{t}", "create_topic", "Make a topic", {201: _QUEUES, 422: _ERROR}),
    _Row("DELETE", "/topics/{t}", "delete_topic", "Remove a topic; its queues stay", {200: _DELETED, 404: _ERROR}),
    _Row("PUT", "/topics/{t}/queues/{q}", "subscribe", "Let a queue be fed", {200: _QUEUES, 422: _ERROR}),
    _Row("DELETE", "/topics/{t}/queues/{q}", "unsubscribe", "Let it be fed no more", {200: _QUEUES, 404: _ERROR}),
    _Row("PUT", "/topics/{t}/message", "publish", "Send a copy to each queue of a topic", {200: _IDS}, _BYTES),
    _Row("GET", "/queues", "queues", "List queues", {200: _object(queues=_TEXTS)}),
    _Row("GET", "/queues/{q}", "queue", "Tell the settings in force", {200: _QUEUE, 404: _TEXT}),
    _Row("PUT", "/queues/{q}", "create_queue", "Make a queue", {201: _TEXT, 409: _ERROR, 422: _ERROR}),
    _Row("DELETE", "/queues/{q}", "delete_queue", "Remove a queue with its messages", {200: _DELETED, 404: _ERROR}),
    _Row("DELETE", "/queue/{q}", "delete_queue_too", "The same", {200: _DELETED, 404: _ERROR}),
    _Row(
        "PATCH",
        "/queues/{q}",
        "configure",
        "Choose settings, in force from the next sync on",
        {200: _TEXT, 400: _ERROR, 404: _ERROR, 422: _ERROR},
        _CHANGE,
    ),
    _Row(
        "PUT",
        "/queues/{q}/message",
        "send",
        "Store a message and tell its id; no id says that it was not stored",
        {200: None},
        _BYTES,
    ),
    _Row(
        "GET",
        "/queues/{q}/messages/{n}",
        "receive",
        "Hand out up to n messages of one partition",
        {200: _MESSAGES, 404: _TEXT, 422: _TEXT},
    ),
    _Row(
        "GET",
        "/queues/{q}/message/{id}",
        "peek",
        "Show messages by their ids",
        {200: _object(messages=_MESSAGES), 404: _ERROR},
    ),
    _Row("DELETE", "/queues/{q}/message/{id}", "delete", "Delete a message", {200: _TRUTH}),
    _Row(
        "DELETE",
        "/queues/{q}/messages/{ids}",
        "delete_many",
        "Delete messages, their ids between commas",
        {200: _object(deleted=_WHOLE), 404: _ERROR, 422: _ERROR},
    ),
)


def v1_document(version: str, prefix: str) -> dict[str, Any]:
    """Return the document of what is under /v1."""
    paths: dict[str, Any] = {}
    for row in _ROWS:
        # One path cannot have its last name called by two names, so `ids` is `n` there.
        path = prefix + row.path.replace("{ids}", "{n}")
        paths.setdefault(path, {})[row.method.lower()] = _operation(row)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock queues, version 1", "version": version},
        "paths": paths,
        "components": {"schemas": {}, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}, {}],
    }


def _operation(row: _Row) -> dict[str, Any]:
    words = [word for word in row.path.split("/") if word]
    operation: dict[str, Any] = {
        "operationId": row.name,
        "summary": row.summary,
        "tags": [{"queue": "queues", "ping": "status"}.get(words[0], words[0])],
        "parameters": [
            {"name": name.replace("ids", "n"), "in": "path", "required": True, "schema": _PARAMETERS[name]}
            for name in re.findall(r"{(\w+)}", row.path)
        ],
        "responses": {
            **{str(status): _answer(schema, status) for status, schema in row.answers.items()},
            "default": {"description": "Refused", "content": {_JSON: {"schema": _ERROR}}},
        },
    }
    if row.body is not None:
        operation["requestBody"] = {"required": True, "content": row.body}
    return operation


def _answer(schema: dict[str, Any] | None, status: int) -> dict[str, Any]:
    if status >= 400 and schema is _TEXT:  # a bad name is refused in the other shape everywhere
        schema = {"anyOf": [_TEXT, _ERROR]}
    content = {_PLAIN: {"schema": _TEXT}} if schema is None else {_JSON: {"schema": schema}}
    return {"description": "Done" if status < 300 else "Refused", "content": content}
