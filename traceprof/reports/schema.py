"""The JSON schema of the document, made from its types and from the metrics of the analyses.

`python -m traceprof.reports.schema` writes it to stdout: `make schema`.
"""

from __future__ import annotations

import json
import sys
from inspect import cleandoc
from typing import TYPE_CHECKING

import msgspec

from traceprof.analyses.registry import FINDING_IDS, METRICS
from traceprof.documents.analysis.model import SCHEMA, Document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.findings import Metric

    Json = dict[str, object]


def schema() -> Json:
    """Return the schema, to be written as JSON."""
    _, definitions = msgspec.json.schema_components([Document], ref_template="#/$defs/{name}")
    for definition in definitions.values():
        definition["description"] = cleandoc(definition["description"])
    document, finding = definitions.pop("Document"), definitions["Finding"]
    definitions["findingId"] = {"enum": list(FINDING_IDS)}
    for name in ("Finding", "NotApplicable"):
        definitions[name]["properties"]["id"] = {"$ref": "#/$defs/findingId"}
    finding["allOf"] = [
        {
            "if": {"properties": {"id": {"const": id_}}},
            "then": {"properties": {"metrics": _metrics(metrics.declared())}},
        }
        for id_, metrics in METRICS.items()
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        **document,
        "$defs": dict(sorted(definitions.items())),
    }


def _metrics(metrics: Mapping[str, Metric]) -> Json:
    return {
        "required": [name for name, metric in metrics.items() if not metric.is_optional],
        "properties": {name: _metric(metric) for name, metric in metrics.items()},
    }


def _metric(metric: Metric) -> Json:
    kind = msgspec.json.schema(metric.kind)
    if choices := kind.get("enum"):
        kind = {"enum": [*choices, *([None] if metric.is_nullable else [])]}
    elif metric.is_nullable:
        kind["type"] = [kind["type"], "null"]
    return {**kind, "description": metric.meaning}


def text() -> str:
    """Return the schema as it ships."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
