"""A page of an API: its OpenAPI document, browsable. Made from the document alone, so it tells what that tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.markup import Child, Markup, tag
from penstock.rest.page import Site, page, table
from penstock.rest.reply import Reply

_REF = "#/components/schemas/"

#: Of types that are described in a line, this many parts are told.
PARTS_MAX = 12


def docs(site: Site, document: Mapping[str, Any], place: str) -> Reply:
    """Return the document as a page; `place` is where machines get it."""
    groups: dict[str, list[Markup]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            groups.setdefault(operation["tags"][0], []).append(_operation(method, path, operation))
    schemas = document["components"]["schemas"]
    names = [*groups, "types"]
    intro = tag(
        "p",
        "Every way to ask this node over HTTP. Requests and answers are JSON unless another type is named; whoever "
        "must show who it is sends ",
        tag("code", "Authorization: Bearer …"),
        ". An error has a code and a sentence that says what to do. The same for machines: ",
        tag("a", place, href=place),
        ".",
    )
    index = tag("nav", [tag("a", name, href=f"#{_anchor(name)}") for name in names], class_="index")
    children: list[Child] = [tag("h2", document["info"]["title"]), intro, index]
    for name, operations in groups.items():
        children += [tag("h2", name, id=_anchor(name)), operations]
    children += [tag("h2", "Types", id=_anchor("types")), [_schema(name, schemas[name]) for name in sorted(schemas)]]
    return page(site, f"Penstock: {document['info']['title']}", children)


def _anchor(name: str) -> str:
    return f"group-{name}"


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Markup:
    summary = tag(
        "summary",
        tag("span", method.upper(), class_=f"method {method}"),
        tag("code", path),
        tag("span", operation["summary"], class_="soft"),
    )
    body: list[Child] = []
    if operation["parameters"]:
        body += [
            tag("h3", "Parameters"),
            table("Name|In|Type|<", [_parameter(each) for each in operation["parameters"]], 3),
        ]
    if "requestBody" in operation:
        needed = "needed" if operation["requestBody"].get("required") else "may be left out"
        body += [tag("h3", f"Body, {needed}"), _content(operation["requestBody"]["content"])]
    for status, answer in operation["responses"].items():
        said = "Any error" if status == "default" else f"Answer {status}"
        body += [tag("h3", said), _content(answer.get("content", {}), status)]
    return tag("details", summary, tag("div", body, id=operation["operationId"]))


def _parameter(found: Mapping[str, Any]) -> Markup:
    schema = found["schema"]
    notes = ["needed"] if found.get("required") else []
    notes += [f"{said} {schema[key]}" for key, said in _LIMITS if schema.get(key) not in (None, "")]
    return tag(
        "tr",
        tag("td", tag("code", found["name"]), class_="name"),
        tag("td", found["in"], class_="name"),
        tag("td", _type(schema), class_="text"),
        tag("td", ", ".join(notes), class_="text"),
    )


_LIMITS = (("default", "default"), ("minimum", "at least"), ("maximum", "at most"), ("maxLength", "up to"))


def _content(content: Mapping[str, Any], status: str = "") -> Markup:
    if not content:
        return tag("p", "No content." if status == "204" else "A document that describes itself.", class_="soft")
    return tag("p", [[tag("code", kind), ": ", _type(found["schema"])] for kind, found in content.items()])


def _schema(name: str, schema: Mapping[str, Any]) -> Markup:
    anchor = f"schema-{name}"  # inside, so that a browser that follows a link to it opens what is around it
    head = tag("summary", tag("code", name), tag("span", _sentence(schema), class_="soft"))
    properties = schema.get("properties")
    if not properties:
        return tag("details", head, tag("div", tag("p", _type(schema)), id=anchor))
    needed = schema.get("required", ())
    rows = [
        tag(
            "tr",
            tag("td", tag("code", key), class_="name"),
            tag("td", _type(value), class_="text"),
            tag("td", "needed" if key in needed else _default(value), class_="text"),
        )
        for key, value in properties.items()
    ]
    return tag("details", head, tag("div", table("Field|Type|<", rows, 2), id=anchor))


def _sentence(schema: Mapping[str, Any]) -> str:
    return str(schema.get("description", "")).partition("\n")[0]


def _default(schema: Mapping[str, Any]) -> str:
    value = schema.get("default")
    return "" if value in (None, "", [], {}) else f"default {value}"


def _type(schema: Mapping[str, Any]) -> Markup:
    """Return a type in a few words, with a link where it has a name."""
    if "$ref" in schema:
        name = str(schema["$ref"]).removeprefix(_REF)
        return tag("a", name, href=f"#schema-{name}")
    for key, between in (("anyOf", " or "), ("oneOf", " or "), ("allOf", " and ")):
        if key in schema:
            return _joined([_type(each) for each in schema[key]], between)
    if "enum" in schema:
        return _joined([tag("code", str(each)) for each in schema["enum"]], " or ")
    kind = schema.get("type", "anything")
    if kind == "array":
        return tag("span", "list of ", _type(schema.get("items", {})))
    values = schema.get("additionalProperties")
    if kind == "object" and isinstance(values, Mapping):
        return tag("span", "object of ", _type(values))
    return tag("span", str(kind if isinstance(kind, str) else " or ".join(kind)))


def _joined(parts: list[Markup], between: str) -> Markup:
    shown: list[Child] = []
    for at, part in enumerate(parts[:PARTS_MAX]):
        shown += [between if at else None, part]
    return tag("span", shown, " …" if len(parts) > PARTS_MAX else None)
