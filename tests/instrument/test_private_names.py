"""Without any one of the private names the training goes on, and what is left out is said."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.commands import output_of

pytestmark = pytest.mark.long

TABLE = Path(__file__).parents[2] / "docs" / "private-names.md"
ROW = re.compile(r"^\| `(torch[^`]*)` \| (\S+) \| (\S*) ?\| (.*?) ?\|$", re.MULTILINE)
ROWS = ROW.findall(TABLE.read_text())


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")[:2]))


@pytest.fixture(scope="module")
def without() -> dict[str, Any]:
    """Train without each name in turn; return what came of it."""
    program = "tests.support.programs.private_names"
    names = json.dumps([name for name, *_ in ROWS])
    printed = output_of(sys.executable, "-m", program, names)
    return dict(json.loads(line) for line in printed.splitlines())


def test_the_table_has_rows() -> None:
    assert len(ROWS) > 20


@pytest.mark.parametrize(("name", "since", "until", "parts"), ROWS, ids=[row[0] for row in ROWS])
def test_a_missing_name(
    without: dict[str, Any], name: str, since: str, until: str, parts: str
) -> None:
    result = without[name]
    assert result.get("failed") is None
    installed = version(torch.__version__)
    is_known = version(since) <= installed and (not until or installed <= version(until))
    assert result["was_there"] == is_known
    assert result["loss"] == without[""]["loss"]
    if is_known:
        left_out = re.findall(r"\w+", parts)
        said = [line.partition(" is not")[0].rpartition(".")[2] for line in result["logged"]]
        assert said == left_out


def test_with_all_names_all_is_named(without: dict[str, Any]) -> None:
    assert without[""]["logged"] == []
    text = "\n".join(without[""]["events"])
    for label in ("forward", "backward", "optimizer step", "data loading", "bucket", "wait"):
        assert f" {label}" in text
