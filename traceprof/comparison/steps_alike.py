"""Checks that steps have the same source on both sides: a period is a step on both or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.run.steps.step_ranges import StepsSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.documents.analysis.model import Document

MAX_RATIO = 2.0
"""Of the numbers of kernels: of periods that differ by more, one is a part of the other."""


def why_unlike(before: Sequence[Document], after: Sequence[Document]) -> str | None:
    """Return why periods of two sides cannot be compared; None if they can, or there are none."""
    captures = [*before, *after]
    sources = {capture.headline.steps_source for capture in captures}
    if StepsSource.PERIOD not in sources:
        return None
    if len(sources) > 1:
        return "a step is a period of the program on one side only"
    periods = [capture.headline.periods for capture in captures]
    if len({len(phases) for phases in periods}) > 1:
        return "the programs have different numbers of phases"
    for phases in zip(*periods, strict=True):
        numbers = [phase.num_kernels for phase in phases]
        if max(numbers) > MAX_RATIO * min(numbers):
            return f"periods have {min(numbers)} and {max(numbers)} kernels"
    return None
