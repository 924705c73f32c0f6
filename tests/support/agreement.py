"""Holds the analyzer to the reference implementation, field by field."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from tests.reference.breakdown import RankEvents, measured, read
from traceprof.analyses import breakdown
from traceprof.analysis import Options, analyze
from traceprof.run.rank import Rank
from traceprof.run.windows import time_window

TimeRange = tuple["int | None", "int | None"]
Row = tuple[int, int, dict[str, int], list[tuple[int, dict[str, int]]]]


def analyzed(path: Path, **options: Any) -> list[Row]:
    """Return (pid, device, whole, steps) of each rank, by the analyzer."""
    analysis = analyze(path, options=Options(**options, savings=False, period=False))
    try:
        ranks = {rank.rank: rank for rank in analysis.run.ranks}
        rows = [
            (
                ranks[result.rank].pid,
                ranks[result.rank].key.device,
                asdict(result.whole),
                [(step.number, asdict(step.measures)) for step in result.steps],
            )
            for result in analysis.result.breakdown
        ]
    finally:
        analysis.close()
    return sorted(rows, key=lambda row: row[:2])


def measured_in(ranks: Sequence[Rank], time_range: TimeRange) -> list[Row]:
    """Return the same of ranks that are open, within a time range."""
    rows = []
    for rank in ranks:
        if rank.device is None:
            continue
        result = breakdown.run(rank, time_window(rank, time_range))
        marked = () if result.periods else result.steps  # the reference knows no periods
        steps = [(step.number, asdict(step.measures)) for step in marked]
        rows.append((rank.pid, rank.device, asdict(result.whole), steps))
    return sorted(rows, key=lambda row: row[:2])


def referenced(events: Sequence[RankEvents], time_range: TimeRange | None = None) -> list[Row]:
    """Return the same, by the reference, of what it read."""
    rows = [
        (
            rank.pid,
            rank.device,
            dataclasses.asdict(rank.whole),
            [(step.number, dataclasses.asdict(step.measures)) for step in rank.steps],
        )
        for rank in (measured(event, time_range) for event in events)
    ]
    return sorted(rows, key=lambda row: row[:2])


def assert_agreement(
    path: Path, *, time_range: TimeRange | None = None, step_pattern: str | None = None
) -> list[Row]:
    """Compare both on one export and return what they agree on."""
    events = read(path, step_pattern=step_pattern)
    rows = analyzed(path, time_range=time_range, step_pattern=step_pattern)
    assert_agrees(rows, events, time_range)
    return rows


def assert_agrees(
    rows: list[Row], events: Sequence[RankEvents], time_range: TimeRange | None = None
) -> None:
    """Hold what the analyzer says to what the reference measures of its own reading."""
    assert rows == referenced(events, time_range)
    for _, _, whole, steps in rows:
        for measures in (whole, *(step for _, step in steps)):
            parts = ("compute_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns")
            assert sum(measures[part] for part in parts) == measures["window_ns"]
