"""The OpenAPI document, written from the table of endpoints that also answers the requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.api.endpoint import PREFIX, Endpoint
from penstock.api.problem import JSON, ErrorBody

NDJSON = "application/x-ndjson"


def document(endpoints: Sequence[Endpoint], version: str, line: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the document; `line` is the type of one line of an NDJSON body."""
    kinds = [ErrorBody, line]
    for endpoint in endpoints:
        kinds += [kind for kind in (endpoint.answer, endpoint.body) if kind not in (None, bytes)]
    kinds = list(dict.fromkeys(kinds))
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    known = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, known, line)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock admin API", "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _operation(endpoint: Endpoint, known: dict[Any, dict[str, Any]], line: type[msgspec.Struct]) -> dict[str, Any]:
    success: dict[str, Any] = {"description": endpoint.summary}
    if endpoint.answer is not None:
        success["content"] = {JSON: {"schema": known[endpoint.answer]}}
    elif endpoint.media_type != JSON:
        success["content"] = {endpoint.media_type: {"schema": {"type": "string"}}}
    failure = {"description": "Refused", "content": {JSON: {"schema": known[ErrorBody]}}}
    operation: dict[str, Any] = {
        "operationId": endpoint.handle.__name__,
        "summary": endpoint.summary,
        "tags": [_tag(endpoint)],
        "parameters": _parameters(endpoint),
        "responses": {str(endpoint.status): success, "default": failure},
    }
    if endpoint.body is bytes:
        operation["requestBody"] = {"required": True, "content": {NDJSON: {"schema": known[line]}}}
    elif endpoint.body is not None:
        required = bool(msgspec.json.schema(endpoint.body)["$defs"][endpoint.body.__name__].get("required"))
        operation["requestBody"] = {"required": required, "content": {JSON: {"schema": known[endpoint.body]}}}
    if endpoint.is_open:
        operation["security"] = [{}]
    return operation


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", endpoint.path)
    ]
    if endpoint.query is not None:
        described = msgspec.json.schema(endpoint.query)["$defs"][endpoint.query.__name__]
        required = described.get("required", [])
        parameters += [
            {"name": name, "in": "query", "required": name in required, "schema": schema}
            for name, schema in described["properties"].items()
        ]
    return parameters


def _tag(endpoint: Endpoint) -> str:
    if endpoint.path in (PREFIX, f"{PREFIX}/openapi.json"):
        return "index"
    if not endpoint.path.startswith(PREFIX + "/"):
        return "pages" if endpoint.media_type in _SHOWN else "health"
    words = [word for word in endpoint.path.removeprefix(PREFIX).split("/") if word and not word.startswith("{")]
    return next((word for word in reversed(words) if word in _TAGS), words[0])


#: What browsers are given.
_SHOWN = ("text/html", "text/css", "text/javascript")
_TAGS = ("topics", "subscriptions", "messages", "consumers", "pipelines", "ledger", "routing")
