"""Series of numbers over the runs of a store, in the order in which they were recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.analyses.registry import FINDING_IDS
from traceprof.analyses.steps import COLUMNS
from traceprof.comparison.findings import costs, may_hide
from traceprof.comparison.gates import FINDING, METRICS
from traceprof.comparison.series import series
from traceprof.comparison.sides import stored
from traceprof.errors import TraceFileError, UsageError
from traceprof.store import stored_runs
from traceprof.structs import Record

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from traceprof.documents.analysis.model import Document


class StoredSeries(Record, frozen=True):
    """Numbers of stored runs."""

    columns: tuple[str, ...]  # a name for each cell of a row
    # of each run when it was recorded (else saved; ISO 8601), its name, its commit, and its
    # numbers in ns
    rows: tuple[tuple[str | int, ...], ...]
    left_out: tuple[str, ...]  # why other runs are not among them


def stored_series(path: str | os.PathLike[str], metrics: Sequence[str] = ()) -> StoredSeries:
    """Return numbers of the runs of a store, oldest first.

    `metrics`: what gates can be about: `step`, a part of it, `finding:ID` (its cost per step, 0 if
    absent); the step and its parts by default. A `TraceprofError` if there is no such store or
    metric.
    """
    chosen = list(metrics) or [*METRICS]
    for metric in chosen:
        _check(metric)
    rows: list[tuple[str | int, ...]] = []
    left_out: list[str] = []
    for run in stored_runs(path):
        try:
            document = stored(path, run.name)
        except TraceFileError as error:
            left_out.append(f"{run.name}: {error.why}")
            continue
        values = [_value(document, metric) for metric in chosen]
        unknown = [metric for metric, value in zip(chosen, values, strict=True) if value is None]
        if unknown:
            left_out.append(f"{run.name}: {', '.join(unknown)} could not be judged")
            continue
        known = [value for value in values if value is not None]
        time = run.recorded_utc or run.saved_utc
        rows.append((time, run.name, run.git_commit or "", *known))
    rows.sort(key=lambda row: str(row[0]))
    columns = ("time", "run", "commit", *map(_column, chosen))
    return StoredSeries(columns, tuple(rows), tuple(left_out))


def _check(metric: str) -> None:
    name, _, id_ = metric.partition(":")
    if (metric in METRICS) or (name == FINDING and id_ in FINDING_IDS):
        return
    known = [*METRICS, *(f"{FINDING}:{finding}" for finding in FINDING_IDS)]
    raise UsageError(
        f"cannot list {metric!r}", "there is no such metric", f"choose one of {', '.join(known)}"
    )


def _column(metric: str) -> str:
    return f"{metric.removeprefix(f'{FINDING}:').replace('-', '_')}_ns"


def _value(document: Document, metric: str) -> int | None:
    """Return a number of a run in ns; None if a finding could not be judged."""
    if metric == "step":
        return round(series([document]).step_ns)
    if metric in METRICS:
        return series([document]).means[COLUMNS[METRICS[metric]]]
    id_ = metric.removeprefix(f"{FINDING}:")
    cost = costs([document]).get(id_)
    if cost is None and may_hide(document, id_):
        return None
    return round(cost or 0)
