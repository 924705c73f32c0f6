"""Holds the analyzer to the reference implementation, field by field."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tests.reference.breakdown import reference
from traceprof.analysis import Options, analyze

if TYPE_CHECKING:
    from pathlib import Path

Row = tuple[int, int, dict[str, int], list[tuple[int, dict[str, int]]]]


def analyzed(path: Path, **options: Any) -> list[Row]:
    """Return (pid, device, whole, steps) of each rank, by the analyzer."""
    analysis = analyze(path, options=Options(**options))
    try:
        ranks = {rank.rank: rank for rank in analysis.run.ranks}
        rows = [
            (
                ranks[result.rank].pid,
                ranks[result.rank].key.device,
                asdict(result.whole),
                [(step.number, asdict(step.measures)) for step in result.steps],
            )
            for result in analysis.breakdown
        ]
    finally:
        analysis.close()
    return sorted(rows, key=lambda row: row[:2])


def referenced(path: Path, **options: Any) -> list[Row]:
    """Return the same, by the reference."""
    rows = [
        (
            rank.pid,
            rank.device,
            asdict(rank.whole),
            [(step.number, asdict(step.measures)) for step in rank.steps],
        )
        for rank in reference(path, **options)
    ]
    return sorted(rows, key=lambda row: row[:2])


def assert_agreement(path: Path, **options: Any) -> list[Row]:
    """Compare both on one export and return what they agree on."""
    rows = analyzed(path, **options)
    assert rows == referenced(path, **options)
    for _, _, whole, steps in rows:
        for measures in (whole, *(step for _, step in steps)):
            parts = ("compute_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns")
            assert sum(measures[part] for part in parts) == measures["window_ns"]
    return rows
