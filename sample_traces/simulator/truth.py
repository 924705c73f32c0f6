"""The truth beside a simulated export: the expected results of analyses, as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from traceprof.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_SCHEMA = "traceprof.truth/1"


def new_truth(path: Path) -> Path:
    """Return the path of the truth, at which there must be no file yet.

    Raises:
        UsageError: the file exists.
    """
    truth = path.with_suffix(".truth.json")
    check_is_free(truth)
    return truth


def check_is_free(path: Path) -> None:
    """Check that there is no such file yet.

    Raises:
        UsageError: the file exists.
    """
    if path.exists():
        raise UsageError(
            f"cannot write {path}", "it exists already", "choose another name, or remove it"
        )


def check_at_least(name: str, value: int, least: int) -> None:
    """Check an argument.

    Raises:
        UsageError: it is less than the least that can be simulated.
    """
    if value < least:
        raise UsageError(
            f"cannot simulate {name} {value}", f"the least is {least}", f"give {least} or more"
        )


def write_truth(
    path: Path, scenario: str, arguments: Mapping[str, Any], facts: Mapping[str, Any]
) -> Path:
    """Write the truth about a simulated run, and return its path."""
    head = {"schema": _SCHEMA, "scenario": scenario, "arguments": arguments}
    path.write_text(json.dumps({**head, **facts}, indent=1) + "\n", encoding="utf-8")
    return path
