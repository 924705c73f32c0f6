"""The JSON schemas of the documents, made from their types and from the metrics of the analyses.

`python -m traceprof.documents.schema FOLDER` writes them: `make schema`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from inspect import cleandoc
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
from msgspec.structs import fields

from traceprof.analyses.registry import FINDING_IDS, FINDINGS
from traceprof.documents import comparison, watched, whatif
from traceprof.documents.analysis import model
from traceprof.findings import Metric

Json = dict[str, object]

DOCUMENTS: Mapping[str, type[msgspec.Struct]] = {
    model.SCHEMA: model.Document,
    comparison.SCHEMA: comparison.Comparison,
    whatif.SCHEMA: whatif.WhatIfDocument,
    watched.SCHEMA: watched.Watched,
}
"""The documents by the names of their schemas."""
_WITH_OPTIONAL = frozenset({"Answer"})  # leaves out what is not known


def schema(document: type[msgspec.Struct], name: str) -> Json:
    """Return the schema of a type of document, by the name that such documents give it."""
    _, definitions = msgspec.json.schema_components([document], ref_template="#/$defs/{name}")
    definitions = {title: entry for title, entry in definitions.items() if "properties" in entry}
    meanings = {record.__name__: model.meanings(record) for record in _records(document)}
    left_out = {
        record.__name__: {field.name for field in fields(record) if field.default is msgspec.UNSET}
        for record in _records(document)
    }
    for title, definition in definitions.items():
        definition["description"] = cleandoc(definition["description"])
        properties = definition["properties"]
        for key, meaning in meanings[title].items():
            properties[key] = {"description": meaning, **properties[key]}
        for field in properties.values():
            if "enum" in field and field.pop("$ref", None):  # an Enum: its values, in their order
                field["type"] = "string"
            elif "enum" in field and None in field["enum"]:
                field.pop("anyOf", None)
            if title not in _WITH_OPTIONAL:
                field.pop("default", None)
        if title not in _WITH_OPTIONAL:  # defaults are for Python: JSON has all fields
            definition["required"] = [name for name in properties if name not in left_out[title]]
    if "Finding" in definitions:
        _add_ids(definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": name,
        **definitions.pop(document.__name__),
        "$defs": dict(sorted(definitions.items())),
    }


def _records(kind: object) -> Iterator[type[msgspec.Struct]]:
    if get_origin(kind) is None and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
        for field in fields(kind):
            yield from _records(field.type)
    for part in get_args(kind):
        yield from _records(part)


def _add_ids(definitions: dict[str, Any]) -> None:
    definitions["findingId"] = {"enum": list(FINDING_IDS)}
    definitions["Finding"]["properties"]["id"] = {"$ref": "#/$defs/findingId"}
    of_each = definitions["Finding"]["allOf"] = []
    for id_, kind in FINDINGS.items():
        declared = kind.metrics.declared().items()
        metrics = {
            "required": [name for name, metric in declared if not metric.is_optional],
            "properties": {name: _metric(metric) for name, metric in declared},
        }
        condition = {"properties": {"id": {"const": id_}}}
        of_each.append({"if": condition, "then": {"properties": {"metrics": metrics}}})


def _metric(metric: Metric) -> Json:
    kind = msgspec.json.schema(metric.kind)
    if choices := kind.get("enum"):
        kind = {"enum": [*choices, *([None] if metric.is_nullable else [])]}
    elif metric.is_nullable:
        kind["type"] = [kind["type"], "null"]
    return {**kind, "description": metric.meaning}


def texts() -> dict[str, str]:
    """Return the schemas as they ship, by the name of the file."""
    return {
        f"{name.removeprefix('traceprof.').replace('/', '-')}.schema.json": json.dumps(
            schema(document, name), indent=1, ensure_ascii=False
        )
        + "\n"
        for name, document in DOCUMENTS.items()
    }


if __name__ == "__main__":
    for file, content in texts().items():
        Path(sys.argv[1], file).write_text(content, encoding="utf-8")
