"""The schemas that ship, and the types that they are made from."""

import ast
import json
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
from msgspec import Struct

from traceprof.documents.analysis.rows import record
from traceprof.documents.schema import texts

ROOT = Path(__file__).parents[2]
ONCE = {"Attribution", "Document", "Finding", "Gate", "Saving"}


@pytest.mark.parametrize("file", texts())
def test_the_schema_that_ships_is_the_one_that_is_made_from_the_types(file: str) -> None:
    shipped = resources.files("traceprof.reports").joinpath(file)
    assert shipped.read_text(encoding="utf-8") == texts()[file], "run `make schema`"


@pytest.mark.parametrize("file", texts())
def test_a_field_may_be_left_out_of_no_record_but_answers(file: str) -> None:
    schema = json.loads(texts()[file])
    jsonschema.Draft202012Validator.check_schema(schema)
    for name, definition in schema["$defs"].items():
        if name not in {"Answer", "findingId"}:
            assert definition["required"] == [*definition["properties"]], name


def test_what_documents_and_results_share_is_defined_once() -> None:
    defined = [
        node.name
        for package in ("traceprof", "instrument", "dashboards")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    assert sorted(name for name in defined if name in ONCE) == sorted(ONCE)


def test_every_field_of_a_record_has_its_place() -> None:
    class Declared(Struct):
        count: int
        name: str

    with pytest.raises(TypeError, match="does not list name"):
        record("count", ...)(Declared)
