"""The runs of a store as a list."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from traceprof.reports.tables import Escaped, name_text, new_table
from traceprof.units import duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from traceprof.store.runs import StoredRun

_UNKNOWN = "unknown"
_COMMIT_DIGITS = 10


def table(runs: Sequence[StoredRun]) -> RenderableType:
    """Return the runs as a table for people."""
    names = ("run", "labels", "commit", "recorded (UTC)", "host")
    rows = new_table(*names, "ranks", "step", left=names)
    for run in runs:
        labels = ", ".join(f"{key}={value}" for key, value in run.labels.items())
        rows.add_row(
            name_text(run.name),
            name_text(labels),
            name_text(run.git_commit[:_COMMIT_DIGITS] if run.git_commit else _UNKNOWN),
            _UNKNOWN
            if run.recorded_utc is None
            else run.recorded_utc.rstrip("Z").replace("T", " "),
            name_text(_hosts(run.hosts)),
            str(run.num_ranks),
            _UNKNOWN if run.step_ns is None else duration(run.step_ns),
        )
    return Escaped(rows)


def as_json(runs: Sequence[StoredRun]) -> str:
    """Return the runs as JSON text that ends in a newline."""
    return json.dumps([asdict(run) for run in runs], indent=1) + "\n"


def _hosts(hosts: Sequence[str]) -> str:
    others = f" and {len(hosts) - 1} more" if len(hosts) > 1 else ""
    return f"{hosts[0]}{others}" if hosts else _UNKNOWN
