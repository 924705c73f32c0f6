"""Checks that two sides are comparable, and lists their differences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.documents.comparison import Comparable, Difference
from traceprof.units import duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from traceprof.documents.analysis.model import Document

_UNKNOWN = "unknown"
_MAX_CLOCK_RATIO = 10
_MIN_SHARED = 0.5  # of the steps: so many in two recordings at the same nanoseconds are the same


def comparable(before: Sequence[Document], after: Sequence[Document]) -> Comparable:
    """Return what makes the sides comparable or not.

    Args:
        before: the recordings of one side.
        after: those of the other.
    """
    reasons: list[str] = []
    differences: list[Difference] = []

    def compare(what: str, values: tuple[str, str], reason: str | None = None) -> None:
        if values[0] == values[1]:
            return
        differences.append(Difference(what, *values))
        if reason is not None and _UNKNOWN not in values:
            reasons.append(f"{reason}: {values[0]} before, {values[1]} after")

    if any(_is_same(one, other) for one in before for other in after):
        reasons.append("the same recording stands on both sides")
    compare("GPU", (_gpus(before), _gpus(after)), "other GPUs")
    compare("ranks", (_ranks(before), _ranks(after)), "another number of ranks")
    compare("steps", (_steps(before), _steps(after)), "steps are known on one side only")
    compare(
        "recorded on one side only", _recorded_alone(before, after), "other parts were recorded"
    )
    compare("clocks", (_clocks(before), _clocks(after)))
    unequal = _clock_reason(before, after)
    if unequal is not None:
        reasons.append(unequal)
    compare("profiler", (_profilers(before), _profilers(after)))
    compare("machines", (_hosts(before), _hosts(after)))
    differences += _command_lines(before, after)
    return Comparable(not reasons, reasons, differences)


def _is_same(one: Document, other: Document) -> bool:
    """Say whether two analyses are of the same recording, whatever its file is called."""
    if one.steps and other.steps:
        steps = [
            {(step.rank, step.start_ns, step.end_ns, step.num_kernels) for step in document.steps}
            for document in (one, other)
        ]
        return len(steps[0] & steps[1]) >= _MIN_SHARED * min(map(len, steps))
    parts = [
        sorted(
            (rank.rank, rank.window_start_ns, rank.window_ns, rank.compute_ns, rank.idle_ns)
            for rank in document.breakdown
        )
        for document in (one, other)
    ]
    return bool(parts[0]) and parts[0] == parts[1]


def _listed(values: Iterable[str | None]) -> str:
    known = sorted({value or _UNKNOWN for value in values})
    return ", ".join(known) or _UNKNOWN


def _gpus(captures: Sequence[Document]) -> str:
    gpus = {rank.gpu for capture in captures for rank in capture.ranks if rank.device is not None}
    return _listed(gpus) if gpus else "none"


def _ranks(captures: Sequence[Document]) -> str:
    return _listed(str(len(capture.ranks)) for capture in captures)


def _steps(captures: Sequence[Document]) -> str:
    is_known = {bool(capture.steps) for capture in captures}
    return "some" if len(is_known) > 1 else "known" if is_known.pop() else "not known"


def _recorded_alone(before: Sequence[Document], after: Sequence[Document]) -> tuple[str, str]:
    """Return the parts that are recorded on one side only; nothing where a side has no report."""
    parts = [
        {part for capture in side for report in capture.reports for part in report.recorded}
        for side in (before, after)
    ]
    alone = parts[0] - parts[1], parts[1] - parts[0]
    first, second = (", ".join(sorted(some)) or "nothing" for some in alone)
    return first, second


def _clocks(captures: Sequence[Document]) -> str:
    uncertain = [_uncertainty(capture) for capture in captures]
    known = [value for value in uncertain if value is not None]
    return f"within {duration(max(known))}" if len(known) == len(uncertain) else _UNKNOWN


def _uncertainty(capture: Document) -> int | None:
    """Return how far the clocks of a recording's reports may be apart; None if that is unknown."""
    values = [clock.uncertainty_ns for clock in capture.run.clocks]
    if len(values) == 1:
        return 0
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None


def _clock_reason(before: Sequence[Document], after: Sequence[Document]) -> str | None:
    values = [[_uncertainty(capture) for capture in side] for side in (before, after)]
    is_known = [all(value is not None for value in side) for side in values]
    if is_known[0] != is_known[1]:
        side = "before" if is_known[1] else "after"
        return f"the clocks of the ranks cannot be compared {side}: waiting is in the durations"
    if not all(is_known):
        return None
    low, high = sorted(max(value or 0 for value in side) for side in values)
    if low and high > _MAX_CLOCK_RATIO * low:
        return f"clocks are {high // low} times as uncertain on one side as on the other"
    return None


def _profilers(captures: Sequence[Document]) -> str:
    return _listed(
        f"{report.format} {report.product_version or _UNKNOWN}"
        for capture in captures
        for report in capture.reports
    )


def _hosts(captures: Sequence[Document]) -> str:
    return _listed(rank.host for capture in captures for rank in capture.run.ranks)


def _command_lines(before: Sequence[Document], after: Sequence[Document]) -> list[Difference]:
    """Return the words of the command lines that only one side has."""
    lines = [
        [word for report in side[0].reports[:1] for word in report.command_line]
        for side in (before, after)
    ]
    if not all(lines) or lines[0] == lines[1]:
        return []
    gone = [word for word in lines[0] if word not in lines[1]]
    new = [word for word in lines[1] if word not in lines[0]]
    return [Difference("command line", " ".join(gone), " ".join(new))]
