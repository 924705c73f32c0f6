"""What the compute of a rank consists of: in a few lines, by kernel, by module of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.analyses.compute_parts import peak_of_kind
from traceprof.analyses.kernels.launched_kernels import SEPARATOR
from traceprof.errors import one_line
from traceprof.findings import share
from traceprof.hardware import peak_memory_gb_per_s
from traceprof.kernel_names import kernel_title
from traceprof.kernel_names.categories import MAIN_COMPUTE
from traceprof.reports.blocks import MAX_NAME, section, table
from traceprof.structs import Record
from traceprof.units import counted, duration, percent, three_digits, times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.analyses.compute_parts import ComputePart, ComputeParts, SignatureUse, StepFlops
    from traceprof.analyses.kernels.kernel_table import KernelUse
    from traceprof.analyses.kernels.launched_kernels import Launcher
    from traceprof.analyses.verdict.run_result import RunResult
    from traceprof.kernel_names.categories import KernelKind
    from traceprof.reports.blocks import Section, TableBlock

_MIN_SHARE = 0.5  # of what is judged: less compute is not what a step takes
_MIN_SPOKEN = 0.01  # of the compute: less is not worth a word
_MAX_NAME = 70  # characters of a kernel's name: it stands in one line
_MATRICES = frozenset(str(category) for category in MAIN_COMPUTE)


def compute_lines(analysis: RunResult) -> list[str]:
    """Describe the compute of the rank that computes longest, in at most six lines.

    There are none if no rank computes for half of the judged time.
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
        *(_signature(use, longest.total_ns) for use in longest.largest),
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


MAX_KERNELS = 20  # of one rank; the JSON has them all
_BY_NAME = "Kernels, by name"


def kernel_section(analysis: RunResult) -> Section:
    """Return the kernels of the rank whose kernels take longest together, and what is left out."""
    tables = [(sum(kernels.total_ns), kernels) for kernels in analysis.kernels]
    if not any(total for total, _ in tables):
        return section(_BY_NAME, "No kernel ran.")
    total, kernels = max(tables, key=lambda item: (item[0], -item[1].rank))
    uses = list(kernels)
    shown, rest = uses[:MAX_KERNELS], uses[MAX_KERNELS:]
    spent = sum(use.total_ns for use in rest)
    names, fraction = counted(len(rest), "more name"), percent(share(spent, total))
    return section(
        _BY_NAME,
        f"rank {kernels.rank}, whose kernels take longest together ({duration(total)});"
        " --format json has those of all ranks"
        if len(tables) > 1
        else None,
        _kernel_categories(uses, total),
        _table(shown, total, _reaching(analysis, kernels.rank, shown)),
        f"… and {names}: {duration(spent)}, {fraction}" if rest else None,
    )


def _reaching(analysis: RunResult, rank: int, uses: Sequence[KernelUse]) -> list[str]:
    """Say what each kernel reaches of the GPU's peak; nothing if that is known of none."""
    launched = next((kernels for kernels in analysis.launched if kernels.rank == rank), None)
    gpu = next((member.gpu for member in analysis.run.ranks if member.rank == rank), None)
    if launched is None:
        return []
    texts = [_reach_text(reached(launched.of(use.name), use, gpu)) for use in uses]
    return texts if any(texts) else []


class Reached(Record, frozen=True):
    """What kernels of a name reach of the GPU's peak, by the shapes of operators."""

    rate: float  # in the unit
    unit: str  # `TFLOP/s` of multiplications of matrices, else `GB/s`
    share: float | None  # of the peak; None if that is unknown


def reached(launcher: Launcher, use: KernelUse, gpu: str | None) -> Reached | None:
    """Return what kernels reach of the GPU's peak; None if shapes do not say it."""
    flops, moved = launcher.flops_per_s(use.total_ns), launcher.gb_per_s(use.total_ns)
    if flops is not None:
        peak = peak_of_kind(gpu, use.kind)
        return Reached(flops / 1e12, "TFLOP/s", None if peak is None else flops / peak)
    if moved is None:
        return None
    peak = peak_memory_gb_per_s(gpu)
    return Reached(moved, "GB/s", None if peak is None else moved / peak)


def _reach_text(reach: Reached | None) -> str:
    if reach is None:
        return ""
    share = "" if reach.share is None else f", {percent(reach.share)}"
    return f"{three_digits(reach.rate)} {reach.unit}{share}"


def _table(uses: Sequence[KernelUse], total_ns: int, reaching: Sequence[str]) -> TableBlock:
    has_steps = any(use.per_step_ns is not None for use in uses)
    per_step, reach = ("per step",) * has_steps, ("reaches",) * bool(reaching)
    rows = [
        (
            duration(use.total_ns),
            percent(share(use.total_ns, total_ns)),
            *(() if use.per_step_ns is None else (duration(use.per_step_ns),)),
            str(use.count),
            duration(use.median_ns),
            *reaching[place : place + 1],
            str(use.kind.category),
            arithmetic_text(use.kind),
            one_line(kernel_title(use.name), MAX_NAME),
        )
        for place, use in enumerate(uses)
    ]
    numbers = ("time", "share", *per_step, "count", "median", *reach)
    headings = (*numbers, "category", "computes in", "kernel")
    return table(headings, rows, text=("kernel",), cut=("category", "computes in"))


def arithmetic_text(kind: KernelKind) -> str:
    """Return number format and tensor cores, as far as the kernel's name tells them."""
    unit = ", tensor cores" if kind.tensor_cores else ""
    if kind.precision is None:
        return unit[2:] or "-"
    return f"{kind.precision}{unit}"


def _kernel_categories(uses: Sequence[KernelUse], total_ns: int) -> str:
    spent: dict[str, int] = {}
    for use in uses:
        name = str(use.kind.category) if use.kind.is_known else "not known by name"
        spent[name] = spent.get(name, 0) + use.total_ns
    ordered = sorted(spent.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {percent(share(time, total_ns))}" for name, time in ordered)


MAX_MODULES = 30  # of one rank; the JSON has them all
_MIN_MODULE = 0.01  # of the kernels: less is not worth a line


def module_section(analysis: RunResult) -> Section | None:
    """Return the modules of the rank whose modules take longest; None if none is known."""
    ranks = [(launched.in_modules_ns, launched) for launched in analysis.launched]
    total, chosen = max(ranks, key=lambda item: (item[0], -item[1].rank), default=(0, None))
    if chosen is None or not total:
        return None
    shown = [use for use in chosen.modules if use.total_ns >= _MIN_MODULE * total][:MAX_MODULES]
    rows = []
    for use in shown:
        *around, name = use.module.split(SEPARATOR)
        rows.append(
            (
                duration(use.total_ns),
                percent(share(use.total_ns, total)),
                duration(use.own_ns),
                duration(use.backward_ns),
                str(use.num_kernels),
                one_line(f"{'  ' * len(around)}{name}", MAX_NAME),
            )
        )
    headings = ("time", "share", "own", "backward", "kernels", "module")
    more = len(chosen.modules) - len(shown)
    return section(
        "Kernels, by module",
        f"rank {chosen.rank}, whose modules take longest together ({duration(total)})"
        if len(analysis.launched) > 1
        else None,
        table(headings, rows, text=("module",)),
        f"… and {counted(more, 'more module')}: --format json has them all" if more else None,
    )
