"""What the compute of a rank consists of, in a few lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.errors import one_line
from traceprof.findings import share
from traceprof.kernel_names.categories import MAIN_COMPUTE
from traceprof.kernel_names.titles import kernel_title
from traceprof.reports.detail import WHOLE
from traceprof.units import duration, percent, three_digits, times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.analyses.compute.compute_parts import ComputePart, ComputeParts, SignatureUse
    from traceprof.analyses.compute.step_flops import StepFlops
    from traceprof.analyses.verdict.run_result import RunResult
    from traceprof.reports.detail import Detail

_MIN_SHARE = 0.5  # of what is judged: less compute is not what a step takes
_MIN_SPOKEN = 0.01  # of the compute: less is not worth a word
_MAX_NAME = 70  # characters of a kernel's name: it stands in one line
_MATRICES = frozenset(str(category) for category in MAIN_COMPUTE)


def compute_lines(analysis: RunResult, detail: Detail = WHOLE) -> list[str]:
    """Return at most six lines; none where no rank computes for half of what is judged.

    They are about the rank that computes longest.
    """
    busy = {
        result.rank: result
        for result in analysis.breakdown
        if result.judged.compute_ns >= _MIN_SHARE * result.judged.window_ns
    }
    ranks = [parts for parts in analysis.compute if parts.rank in busy and parts.total_ns]
    if not ranks:
        return []
    longest = max(ranks, key=lambda parts: (parts.total_ns, -parts.rank))
    measured = busy[longest.rank]
    of_rank = f"rank {longest.rank}, " if len(analysis.breakdown) > 1 else ""
    is_all = measured.whole.compute_ns == measured.judged.compute_ns
    recorded = "" if is_all else " in all that was recorded"
    return [
        f"{of_rank}{duration(longest.total_ns)}{recorded}: {_categories(longest)}",
        *_tensor_cores(longest),
        *([step_text(longest.in_step)] if longest.in_step is not None else []),
        *(_signature(use, longest.total_ns) for use in longest.largest if detail.has_kernels),
    ]


def by_category(parts: ComputeParts) -> list[tuple[str, list[ComputePart]]]:
    """Return the parts of each category, both the longest first."""
    by_name: dict[str, list[ComputePart]] = {}
    for part in parts.parts:
        by_name.setdefault(part.category, []).append(part)
    return sorted(by_name.items(), key=lambda item: -_total(item[1]))


def _categories(parts: ComputeParts) -> str:
    words = [
        f"{category} {percent(share(total, parts.total_ns))}{_formats(category, rows, parts)}"
        for category, rows in by_category(parts)
        if (total := _total(rows)) >= _MIN_SPOKEN * parts.total_ns
    ]
    return ", ".join(words)


def _formats(category: str, rows: Sequence[ComputePart], parts: ComputeParts) -> str:
    """Return the number formats of what multiplies matrices."""
    if category not in _MATRICES:
        return ""
    spent: dict[str, int] = {}
    for row in rows:
        name = row.precision or "format not known"
        spent[name] = spent.get(name, 0) + row.total_ns
    if len(spent) == 1:
        return f" ({next(iter(spent))})"
    ordered = sorted(spent.items(), key=lambda item: -item[1])
    shares = [
        f"{name} {percent(share(total, parts.total_ns))}"
        for name, total in ordered
        if total >= _MIN_SPOKEN * parts.total_ns
    ]
    return f" ({', '.join(shares)})" if shares else ""


def _tensor_cores(parts: ComputeParts) -> list[str]:
    """Say what share of the multiplications of matrices runs on tensor cores."""
    matrices = [part for part in parts.parts if part.category in _MATRICES]
    total = _total(matrices)
    if total < _MIN_SPOKEN * parts.total_ns:
        return []
    on = _total([part for part in matrices if part.tensor_cores])
    unknown = _total([part for part in matrices if part.tensor_cores is None])
    known, of = "runs on tensor cores", "of matrix multiplication"
    if unknown < _MIN_SPOKEN * total:
        words = f"{percent(share(on, total))} {of} {known}"
    elif total - unknown < _MIN_SPOKEN * total:
        words = f"kernel names do not show whether matrix multiplication {known}"
    else:
        part = on or total - unknown
        known = known if on else "does not run on tensor cores"
        words = f"at least {percent(share(part, total))} {of} {known}:"
        words += f" kernel names do not show it for {percent(share(unknown, total))}"
    return [words + _rate(matrices)]


def _rate(matrices: Sequence[ComputePart]) -> str:
    """Say what is multiplied per second by the part that takes longest, if that is known."""
    longest = max(matrices, key=lambda part: part.total_ns)
    rate, peak = longest.flops_per_s, longest.peak_flops_per_s
    if rate is None:
        return ""
    of_peak = "" if peak is None else f" of {three_digits(peak / 1e12)} ({percent(rate / peak)})"
    return f"; {longest.category} reaches {three_digits(rate / 1e12)}{of_peak} TFLOP/s"


def step_text(of_step: StepFlops) -> str:
    """Say what share of the GPU's peak a step reaches."""
    at_least = "at least " if of_step.coverage < 1 else ""
    rate, peak = of_step.flops_per_s, of_step.peak_flops_per_s
    of_peak = "" if peak is None else f" of {three_digits(peak / 1e12)} ({of_step.precision})"
    why = "by the shapes of operators"
    if of_step.source == "given":
        why = "by --flops-per-step"
    elif at_least:
        why += f", known of {percent(of_step.coverage)} of matrix multiplication"
    mfu = "" if of_step.mfu is None else f", an MFU of {at_least}{percent(of_step.mfu)}"
    reached = f"a step reaches {at_least}{three_digits(rate / 1e12)}{of_peak} TFLOP/s{mfu}"
    return f"{reached}: {of_step.flops:.3g} FLOPs in {duration(of_step.step_ns)}, {why}"


def _signature(use: SignatureUse, total_ns: int) -> str:
    grid = "" if use.grid is None else f", grid {' x '.join(map(str, use.grid))}"
    name = one_line(kernel_title(use.name), _MAX_NAME)
    return f"{percent(share(use.total_ns, total_ns))} {name}{grid}, {times(use.num_kernels)}"


def _total(parts: Sequence[ComputePart]) -> int:
    return sum(part.total_ns for part in parts)
