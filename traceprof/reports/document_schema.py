"""The JSON schema of a document, made from its types."""

from __future__ import annotations

import json
from inspect import cleandoc
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    Json = dict[str, object]


def schema_text(document: type[msgspec.Struct], name: str) -> str:
    """Return the schema of a document as it ships.

    Args:
        document: its type.
        name: what the document calls its schema.
    """
    _, definitions = msgspec.json.schema_components([document], ref_template="#/$defs/{name}")
    for definition in definitions.values():
        definition["description"] = cleandoc(definition["description"])
    whole = definitions.pop(document.__name__)
    schema: Json = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": name,
        **whole,
        "$defs": dict(sorted(definitions.items())),
    }
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
