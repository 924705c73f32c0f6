"""The truth beside a simulated export: the expected results of analyses, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SCHEMA = "traceprof.truth/1"


def write_truth(
    path: Path, scenario: str, arguments: Mapping[str, Any], facts: Mapping[str, Any]
) -> Path:
    """Write the truth about a simulated run, and return its path."""
    head = {"schema": _SCHEMA, "scenario": scenario, "arguments": arguments}
    path.write_text(json.dumps({**head, **facts}, indent=1) + "\n", encoding="utf-8")
    return path
