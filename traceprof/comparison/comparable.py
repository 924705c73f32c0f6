"""Checks that two sides are comparable, and lists their differences."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, get_args

from traceprof.comparison.series import why_unlike
from traceprof.documents.comparison import Comparable, Difference, Kind
from traceprof.errors import UsageError
from traceprof.run.completeness import is_doubtful
from traceprof.run.session_clocks import UNNAMED_MACHINES
from traceprof.units import counted, duration

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from traceprof.documents.analysis.model import Document

KINDS: tuple[Kind, ...] = get_args(Kind)
"""Of differences that make sides incomparable."""
_UNKNOWN = "unknown"
_MAX_CLOCK_RATIO = 10
_MIN_SHARED = 0.5  # of the steps: so many in two recordings at the same nanoseconds are the same


def check_allowed(names: Collection[str]) -> None:
    """Refuse unknown kinds of differences with a `UsageError`."""
    for name in names:
        if name not in KINDS:
            why = f"{name!r} is not a difference that makes sides incomparable"
            remedy = f"choose one of {', '.join(KINDS)}"
            raise UsageError("cannot allow that to differ", why, remedy)


def comparable(
    before: Sequence[Document], after: Sequence[Document], allowed: Collection[str] = ()
) -> Comparable:
    """Check whether the sides are comparable, and why not.

    `allowed`: kinds of differences, from `KINDS`, that do not matter.
    """
    reasons: list[tuple[Kind, str]] = []
    differences: list[Difference] = []

    def compare(
        what: str, values: tuple[str, str], kind: Kind | None = None, reason: str = ""
    ) -> None:
        if values[0] == values[1]:
            return
        differences.append(Difference(what, *values))
        if kind is not None and _UNKNOWN not in values:
            reasons.append((kind, f"{reason}: {values[0]} before, {values[1]} after"))

    if any(is_same(one, other) for one in before for other in after):
        reasons.append(("recording", "the same recording stands on both sides"))
    differences += _command_lines(before, after)
    differences += _environment(before, after)
    for what, say in _PROGRAM.items():
        compare(what, (say(before), say(after)))
    workers = _workers(before), _workers(after)
    if _UNKNOWN not in workers:
        compare("loader workers seen of a rank", workers)
    compare("GPU", (_gpus(before), _gpus(after)), "gpu", "other GPUs")
    compare("ranks", (_ranks(before), _ranks(after)), "world-size", "different numbers of ranks")
    compare("steps", (_steps(before), _steps(after)), "steps", "steps were found in different ways")
    unlike = why_unlike(before, after)
    if unlike is not None and not any(kind == "steps" for kind, _ in reasons):
        reasons.append(("steps", unlike))
    compare("recorded on one side only", _recorded_alone(before, after))
    compare("clocks", (_clocks(before), _clocks(after)))
    unequal = _clock_reason(before, after)
    if unequal is not None:
        reasons.append(("clocks", unequal))
    compare("profiler", (_profilers(before), _profilers(after)))
    compare("machines", (_hosts(before), _hosts(after)))
    kept = [(kind, why) for kind, why in reasons if kind not in allowed]
    return Comparable(
        is_comparable=not kept,
        reasons=[why for _, why in kept],
        kinds=[kind for kind, _ in kept],
        allowed=[why for kind, why in reasons if kind in allowed],
        differences=differences,
    )


def why_incomplete(before: Sequence[Document], after: Sequence[Document]) -> Iterator[str]:
    """Yield which side lacks so many operations that the parts of its steps are unknown."""
    for side, documents in (("before", before), ("after", after)):
        losses = [lacking for document in documents for lacking in document.completeness]
        doubtful = [
            lacking for lacking in losses if is_doubtful(lacking.num_lost, lacking.num_launches)
        ]
        if doubtful:
            worst = max(doubtful, key=lambda lacking: lacking.num_lost / lacking.num_launches)
            yield (
                f"the recording {side} is incomplete:"
                f" {worst.num_lost} of {counted(worst.num_launches, 'launch')} on rank"
                f" {worst.rank} have no operation in it"
            )


def is_same(one: Document, other: Document) -> bool:
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
    """Return the GPUs by their models: drivers before 470 name them without the maker."""
    ranks = [rank for capture in captures for rank in capture.ranks if rank.device is not None]
    return (
        _listed({(rank.gpu or "").removeprefix("NVIDIA ") for rank in ranks}) if ranks else "none"
    )


def _ranks(captures: Sequence[Document]) -> str:
    return _listed(str(len(capture.ranks)) for capture in captures)


def _steps(captures: Sequence[Document]) -> str:
    return _listed(
        capture.headline.steps_source.value if capture.steps else "not known"
        for capture in captures
    )


def _recorded_alone(before: Sequence[Document], after: Sequence[Document]) -> tuple[str, str]:
    """Return the parts that are recorded on one side only; empty if a side has no report."""
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
    """Return the uncertainty between the clocks of a recording's reports; None if unknown."""
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
    hosts = {rank.host for capture in captures for rank in capture.run.ranks}
    return _listed(None if host.startswith(UNNAMED_MACHINES) else host for host in hosts)


def _command_lines(before: Sequence[Document], after: Sequence[Document]) -> list[Difference]:
    lines = [
        [word for report in side[0].reports[:1] for word in report.command_line]
        for side in (before, after)
    ]
    if not all(lines) or lines[0] == lines[1]:
        return []
    gone = [word for word in lines[0] if word not in lines[1]]
    new = [word for word in lines[1] if word not in lines[0]]
    return [Difference("command line", " ".join(gone), " ".join(new))]


def _environment(before: Sequence[Document], after: Sequence[Document]) -> Iterator[Difference]:
    """Yield versions and variables that differ, where both sides have any."""
    first, second = (
        side[0].reports[0].environment if side[0].reports else {} for side in (before, after)
    )
    if not first or not second:
        return
    for name in sorted({*first, *second}):
        if first.get(name) != second.get(name) and not _OF_PLACE.search(name):
            yield Difference(name, first.get(name, ""), second.get(name, ""))


def _precisions(captures: Sequence[Document]) -> str:
    of_matmul: Counter[str] = Counter()
    for capture in captures:
        for row in capture.kernels:
            if row.category in _PRODUCTS and row.precision is not None:
                of_matmul[row.precision] += row.total_ns
    total = of_matmul.total()
    return (
        ", ".join(sorted(name for name, ns in of_matmul.items() if ns >= _MIN_USED * total))
        or _UNKNOWN
    )


def _compiled(captures: Sequence[Document]) -> str:
    rows = [row for capture in captures for row in capture.kernels]
    compiled_ns = sum(row.total_ns for row in rows if row.name.startswith("triton_"))
    is_used = compiled_ns > 0 and compiled_ns >= _MIN_USED * sum(row.total_ns for row in rows)
    return "used" if is_used else "not used"


def _graphs(captures: Sequence[Document]) -> str:
    num = sum(lacking.num_graphs for capture in captures for lacking in capture.completeness)
    return "used" if num else "not used"


def _workers(captures: Sequence[Document]) -> str:
    """Return how many loader workers a rank had, where all recordings tell."""
    numbers = [rank.num_workers for capture in captures for rank in capture.ranks]
    known = [number for number in numbers if number is not None]
    return _listed(map(str, known)) if known and len(known) == len(numbers) else _UNKNOWN


_MIN_USED = 0.05  # of the time of kernels
_PRODUCTS = ("matmul", "attention", "convolution")
_OF_PLACE = re.compile(r"VISIBLE_DEVICES|_(HOME|PATH|ROOT|DIR)\b|HOST|PORT")
_PROGRAM: Mapping[str, Callable[[Sequence[Document]], str]] = {
    "precision of products": _precisions,
    "kernels of torch.compile": _compiled,
    "CUDA graphs": _graphs,
}
"""What the records say of the program: how it calculates, is compiled and launches."""
