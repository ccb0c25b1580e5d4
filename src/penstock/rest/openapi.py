"""The OpenAPI document, written from the table of endpoints that also answers the requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import msgspec

from penstock.rest.problem import ErrorBody
from penstock.rest.reply import JSON

NDJSON = "application/x-ndjson"


class Described(Protocol):
    """A row of a table of endpoints, as the document tells of it."""

    @property
    def method(self) -> str:
        """How it is asked."""

    @property
    def path(self) -> str:
        """Where, with names in braces."""

    @property
    def handle(self) -> Callable[[Any], Any]:
        """Who answers; its name is the operation's."""

    @property
    def summary(self) -> str:
        """What it does, in a few words."""

    @property
    def answer(self) -> Any:
        """The type of its answer in JSON, None if it has none."""

    @property
    def query(self) -> type[msgspec.Struct] | None:
        """Its parameters."""

    @property
    def body(self) -> type[msgspec.Struct] | type[bytes] | None:
        """What it takes: a struct, or bytes where it takes lines."""

    @property
    def status(self) -> int:
        """Of its answer."""

    @property
    def media_type(self) -> str:
        """Of its answer."""

    @property
    def is_open(self) -> bool:
        """Whether it is asked without showing who one is."""


class Interface(NamedTuple):
    """What a document says of all endpoints."""

    title: str
    version: str
    #: The group that an endpoint is shown in.
    tag: Callable[[Described], str]
    #: The type of one line of a body of lines.
    line: type[msgspec.Struct] | None = None
    #: Answers are objects with the value under this name; empty = they are the value.
    envelope: str = ""
    #: The schema of a name in a path, where it is not any text.
    names: Mapping[str, Any] = MappingProxyType({})


def document(interface: Interface, endpoints: Sequence[Described]) -> dict[str, Any]:
    """Return the document."""
    kinds: list[Any] = [ErrorBody, *([interface.line] if interface.line is not None else [])]
    for endpoint in endpoints:
        kinds += [kind for kind in (endpoint.answer, endpoint.body) if kind not in (None, bytes)]
    kinds = list(dict.fromkeys(kinds))
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    known = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(interface, endpoint, known)
    return {
        "openapi": "3.1.0",
        "info": {"title": interface.title, "version": interface.version},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _operation(interface: Interface, endpoint: Described, known: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    success: dict[str, Any] = {"description": endpoint.summary}
    if endpoint.answer is not None:
        success["content"] = {JSON: {"schema": _wrapped(known[endpoint.answer], interface.envelope)}}
    elif endpoint.media_type != JSON:
        success["content"] = {endpoint.media_type: {"schema": {"type": "string"}}}
    failure = {"description": "Refused", "content": {JSON: {"schema": known[ErrorBody]}}}
    operation: dict[str, Any] = {
        "operationId": endpoint.handle.__name__,
        "summary": endpoint.summary,
        "tags": [interface.tag(endpoint)],
        "parameters": _parameters(interface, endpoint),
        "responses": {str(endpoint.status): success, "default": failure},
    }
    if endpoint.body is bytes:
        operation["requestBody"] = {"required": True, "content": {NDJSON: {"schema": known[interface.line]}}}
    elif endpoint.body is not None:
        required = bool(msgspec.json.schema(endpoint.body)["$defs"][endpoint.body.__name__].get("required"))
        operation["requestBody"] = {"required": required, "content": {JSON: {"schema": known[endpoint.body]}}}
    if endpoint.is_open:
        operation["security"] = [{}]
    return operation


def _wrapped(schema: dict[str, Any], envelope: str) -> dict[str, Any]:
    if not envelope:
        return schema
    return {"type": "object", "properties": {envelope: schema}, "required": [envelope]}


def _parameters(interface: Interface, endpoint: Described) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": interface.names.get(name, {"type": "string"})}
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
