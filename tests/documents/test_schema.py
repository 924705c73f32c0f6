"""The schemas that ship, and the types that they are made from."""

import json
from importlib import resources

import jsonschema
import pytest
from msgspec import Struct

from traceprof.documents.analysis.model import record
from traceprof.documents.schema import texts


@pytest.mark.parametrize("file", texts())
def test_the_schema_that_ships_is_the_one_that_is_made_from_the_types(file: str) -> None:
    shipped = resources.files("traceprof.reports").joinpath(file)
    assert shipped.read_text(encoding="utf-8") == texts()[file], "run `make schema`"


@pytest.mark.parametrize("file", texts())
def test_a_field_may_be_left_out_of_answers_or_without_phases(file: str) -> None:
    schema = json.loads(texts()[file])
    jsonschema.Draft202012Validator.check_schema(schema)
    for name, definition in schema["$defs"].items():
        if name not in {"Answer", "findingId"}:
            may_lack = {"Headline": ["phases"], "Finding": ["in_phase"]}.get(name, [])
            assert [*definition["required"], *may_lack] == [*definition["properties"]], name


def test_every_field_of_a_record_has_its_place() -> None:
    class Declared(Struct):
        count: int
        name: str

    with pytest.raises(TypeError, match="does not list name"):
        record("count", ...)(Declared)
