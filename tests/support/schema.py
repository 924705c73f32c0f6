"""The schema that ships, checked and compiled once: doing so for each document takes longer."""

import json
from functools import cache
from importlib import resources

import jsonschema


@cache
def validator() -> jsonschema.Draft202012Validator:
    """Return what holds a document to the schema of the JSON output: `validator().validate(…)`."""
    text = resources.files("traceprof.reports").joinpath("analysis-1.schema.json").read_text()
    schema = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)
