"""Types of fields that several records of the JSON document share."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta


def one_of(*values: str) -> Meta:
    """Return what the schema says of a text that is one of these."""
    return Meta(extra_json_schema={"enum": list(values)})


Count = Annotated[int, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Number = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Text = Annotated[str, Meta(min_length=1)]
FindingId = str  # the schema names them all
