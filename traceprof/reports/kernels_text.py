"""The kernels of the text report: those that take the time, and what their names say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from traceprof.analyses.compute.compute_parts import peak_of_kind
from traceprof.findings import share
from traceprof.hardware import peak_memory_gb_per_s
from traceprof.kernel_names.titles import kernel_title
from traceprof.reports.tables import name_text, new_table
from traceprof.structs import Record
from traceprof.units import counted, duration, percent, three_digits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from traceprof.analyses.kernels.kernel_table import KernelUse
    from traceprof.analyses.kernels.launched_kernels import Launcher
    from traceprof.analyses.verdict.run_result import RunResult
    from traceprof.kernel_names.categories import KernelKind

MAX_KERNELS = 20  # of one rank; the JSON has them all
_LEFT = ("kernel", "category", "computes in")


def kernel_tables(analysis: RunResult) -> Iterator[RenderableType]:
    """Yield the table of the rank whose kernels take longest together, and what is left out."""
    tables = [(sum(table.total_ns), table) for table in analysis.kernels]
    if not any(total for total, _ in tables):
        yield Text("No kernel ran.")
        return
    total, table = max(tables, key=lambda item: (item[0], -item[1].rank))
    uses = list(table)
    if len(tables) > 1:
        yield Text(
            f"rank {table.rank}, whose kernels take longest together ({duration(total)});"
            " --format json has those of all ranks"
        )
    yield Text(_categories(uses, total))
    yield _table(uses[:MAX_KERNELS], total, _reaching(analysis, table.rank, uses[:MAX_KERNELS]))
    rest = uses[MAX_KERNELS:]
    if rest:
        spent = sum(use.total_ns for use in rest)
        names, fraction = counted(len(rest), "more name"), percent(share(spent, total))
        yield Text(f"… and {names}: {duration(spent)}, {fraction}")


def _reaching(analysis: RunResult, rank: int, uses: Sequence[KernelUse]) -> list[str]:
    """Say what each kernel reaches of the GPU's peak; nothing if that is known of none."""
    launched = next((kernels for kernels in analysis.launched if kernels.rank == rank), None)
    gpu = next((member.gpu for member in analysis.run.ranks if member.rank == rank), None)
    if launched is None:
        return []
    texts = [_reach_text(reached(launched.of(use.name), use, gpu)) for use in uses]
    return texts if any(texts) else []


class Reached(Record, frozen=True):
    """What kernels of a name reach of the GPU's peak, by the shapes of operators.

    Attributes:
        rate: in the unit.
        unit: `TFLOP/s` of multiplications of matrices, else `GB/s`.
        share: of the peak; None if that is unknown.
    """

    rate: float
    unit: str
    share: float | None


def reached(launcher: Launcher, use: KernelUse, gpu: str | None) -> Reached | None:
    """Return what kernels reach of the GPU's peak; None if shapes do not say it.

    Args:
        launcher: of all kernels of the name.
        use: what all of them take.
        gpu: the name of the GPU.
    """
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


def _table(uses: Sequence[KernelUse], total_ns: int, reaching: Sequence[str]) -> RenderableType:
    has_steps = any(use.per_step_ns is not None for use in uses)
    per_step = ("per step",) if has_steps else ()
    reach = ("reaches",) if reaching else ()
    headings = (
        "time", "share", *per_step, "count", "median", *reach, "category", "computes in", "kernel",
    )  # fmt: skip
    table = new_table(*headings, left=_LEFT)
    for place, use in enumerate(uses):
        step = () if use.per_step_ns is None else (duration(use.per_step_ns),)
        table.add_row(
            duration(use.total_ns),
            percent(share(use.total_ns, total_ns)),
            *step,
            str(use.count),
            duration(use.median_ns),
            *reaching[place : place + 1],
            Text(str(use.kind.category), no_wrap=True),
            Text(arithmetic_text(use.kind), no_wrap=True),
            name_text(kernel_title(use.name)),
        )
    return table


def arithmetic_text(kind: KernelKind) -> str:
    """Return number format and unit, as far as the name has them."""
    unit = ", tensor cores" if kind.tensor_cores else ""
    if kind.precision is None:
        return unit[2:] or "-"
    return f"{kind.precision}{unit}"


def _categories(uses: Sequence[KernelUse], total_ns: int) -> str:
    """Say what share of the time each category takes, and how much no row of the table knows."""
    spent: dict[str, int] = {}
    for use in uses:
        name = str(use.kind.category) if use.kind.is_known else "not known by name"
        spent[name] = spent.get(name, 0) + use.total_ns
    ordered = sorted(spent.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {percent(share(time, total_ns))}" for name, time in ordered)
