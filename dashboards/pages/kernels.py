"""Kernels: their time, their kinds, and the cost of communication at the same time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from dash import html
from dash.development.base_component import Component

from dashboards import address as addresses
from dashboards.pages.compare import sure
from dashboards.questions import PendingAnswer, questions_about
from dashboards.timeline.events import OPERATION
from dashboards.view import View
from dashboards.widgets.charts import CATEGORIES
from dashboards.widgets.components import answered_later, card, nothing, page, shares
from dashboards.widgets.tables import Column, record, table
from traceprof.analyses import overlap_slowdown
from traceprof.analyses.compute_parts import ComputeParts
from traceprof.analyses.kernels.kernel_table import KernelTable, KernelUse
from traceprof.analyses.kernels.launched_kernels import SEPARATOR, Launcher, ModuleUse
from traceprof.documents.comparison import ModuleChange
from traceprof.errors import one_line
from traceprof.findings import share
from traceprof.kernel_names import function_name, kernel_title
from traceprof.reports.ranks_text import arithmetic_text, reached, step_text
from traceprof.run.rank import Rank
from traceprof.structs import by_key
from traceprof.trace.model.parts import Part
from traceprof.units import counted, duration

PATH = "/kernels"
TITLE = "Kernels"
ANSWERS = "modules"

_UNITS = {True: "yes", False: "no", None: ""}
_MAX_ROWS = 1000  # names; the rest is added up
_MAX_NAME = 300  # characters: templates can have thousands


def _launcher(what: str, width: int, tip: str) -> Column:
    return Column(what, what, None, width, tip, has_filter=True, may_be_cut=True)


_KERNELS = (
    Column(
        "title",
        "kernel",
        tip="its function, and what it does where the function says"
        " little; links to the first one on the timeline, from where O"
        " goes to the next",
        leads=True,
    ),
    Column("category", "category", None, 110, "by its name", has_filter=True),
    Column("precision", "computes in", None, 90, "by its name", has_filter=True, may_be_cut=True),
    _launcher("operator", 140, "the innermost that launched most of its time"),
    _launcher("module", 160, "the module that launched most of its time"),
    Column("total_ns", "time (ms)", 3, 90, "the sum of durations, the mean over the ranks"),
    Column(
        "reach",
        "of peak (%)",
        1,
        80,
        "in all that was recorded, on the rank where it takes"
        " longest: of the GPU's arithmetic in this format, else of its memory, by shapes",
    ),
    Column("share", "of all (%)", 1, 80, "of the time in all kernels"),
    Column("per_step_ns", "in a step (ms)", 3, 90, "the mean over training steps and ranks"),
    Column("count", "count", 0, 80, "of all ranks"),
    Column("median_ns", "median (µs)", 1, 90, "on the rank where it takes longest"),
    Column(
        "beside_ns",
        "beside comm. (ms)",
        3,
        90,
        "ran while something communicated, compared with"
        " the same kernel alone; the mean over the ranks",
    ),
    Column("slowdown", "slower there (×)", 2, 80, "time taken beside communication ÷ alone"),
)
_BY_RANK = (
    Column("most_ns", "most (ms)", 3, 80, "on the rank where it takes longest"),
    Column("rank", "on rank", 0, 70),
)

_COMPUTE = (
    Column(
        "category",
        "category",
        None,
        110,
        "by names; graph: kernels inside CUDA graphs that were traced as a whole",
    ),
    Column("precision", "computes in", None, 110, "by names"),
    Column("unit", "on tensor cores", None, 110, "by names"),
    Column("total_ns", "time (ms)", 3, 90, "the mean over the ranks"),
    Column("share", "of compute (%)", 1, 90),
    Column("num_kernels", "kernels", 0, 80, "of all ranks"),
    Column(
        "flops_per_s", "TFLOP/s", 1, 80, "multiplications and additions by the shapes of operators"
    ),
    Column("peak_flops_per_s", "peak TFLOP/s", 1, 80, "of the GPU, in this format and unit"),
)


class KernelSum(NamedTuple):
    """The kernels of one name on all chosen ranks."""

    name: str  # the demangled name
    # their time on each rank that has any, with the rank's number
    of_ranks: list[tuple[int, KernelUse]]

    @property
    def total_ns(self) -> int:
        """The sum of their durations."""
        return sum(use.total_ns for _, use in self.of_ranks)

    @property
    def worst(self) -> tuple[int, KernelUse]:
        """The rank with the largest sum of their durations, and that sum."""
        return max(self.of_ranks, key=lambda item: (item[1].total_ns, -item[0]))


def layout(view: View) -> Component:
    """Return the page."""
    tables = view.kernels
    lead = (
        "The time in kernels, by name: what runs longest is worth the first look. Kernels that"
        " run at the same time are each counted in full."
    )
    uses = used(tables)
    if not uses:
        empty = nothing(
            "No kernel ran in this time.", view.analysis.run.how_to_collect(Part.GPU_OPERATIONS)
        )
        return page(TITLE, lead, card("Kernels", empty))
    total = sum(use.total_ns for use in uses)
    return page(
        TITLE,
        lead,
        _categories(uses, total),
        _compute(view),
        *modules_part(view),
        _table(view, uses, total, len(tables)),
    )


def used(tables: Iterable[KernelTable]) -> list[KernelSum]:
    """Return the time of the kernels of each name on all ranks, the largest sum first."""
    of_all = ((of_rank.rank, use) for of_rank in tables for use in of_rank.uses)
    by_name = by_key(of_all, lambda item: item[1].name)
    uses = [KernelSum(name, of_ranks) for name, of_ranks in by_name.items()]
    return sorted(uses, key=lambda use: (-use.total_ns, use.name))


def beside_communication(view: View) -> dict[str, tuple[float, float]]:
    """Return by name what kernels took beside communication, and what they would take alone, in ns.

    Only of kernels that also ran alone.
    """
    by_name: dict[str, tuple[float, float]] = {}
    for result in view.of(overlap_slowdown):
        for kernel in result.signatures:
            taken, alone = by_name.get(kernel.name, (0, 0))
            alone += kernel.overlapped_ns - kernel.excess_ns
            by_name[kernel.name] = taken + kernel.overlapped_ns, alone
    return by_name


def first_of_each(rank: Rank, start_ns: int, end_ns: int) -> dict[str, tuple[int, int, int]]:
    """Return start, end and index of the first kernel of each name that starts in a time span."""
    kernels = rank.operations.kernels
    places = np.arange(*np.searchsorted(kernels.start_ns, (start_ns, end_ns)))
    # Of several values for one key the last one stays, here and below: so the first one comes last.
    first_of_signature = np.full(len(kernels.name_of_signature), -1)
    first_of_signature[kernels.packed_signature.at(places)[::-1]] = places[::-1]
    first = np.sort(first_of_signature[first_of_signature >= 0])[::-1]
    names = kernels.name_of_signature[kernels.packed_signature.at(first)].tolist()
    times = kernels.start_ns[first].tolist(), kernels.ends(first).tolist(), first.tolist()
    return dict(
        zip((rank.kernel_names[name] for name in names), zip(*times, strict=True), strict=True)
    )


def _categories(uses: Sequence[KernelSum], total_ns: int) -> Component:
    spent: dict[str, int] = {}
    for use in uses:
        kind = use.of_ranks[0][1].kind
        name = str(kind.category) if kind.is_known else "not known by name"
        spent[name] = spent.get(name, 0) + use.total_ns
    ordered = sorted(spent.items(), key=lambda item: (-item[1], item[0]))
    parts = (
        (name, share(time, total_ns), CATEGORIES.get(name, CATEGORIES["other"]))
        for name, time in ordered
    )
    return card("By category", *shares(parts), note="by their names")


def _compute(view: View) -> Component:
    """Show what compute consists of: of kernels at once the one that began first counts."""
    ranks = view.compute
    by_kind = by_key(
        (part for of_rank in ranks for part in of_rank.parts),
        lambda part: (part.category, part.precision or "", _UNITS[part.tensor_cores]),
    )
    all_ns = sum(of_rank.total_ns for of_rank in ranks)
    rows: list[dict[str, Any]] = []
    for (category, precision, unit), parts in by_kind.items():
        total_ns = sum(part.total_ns for part in parts)
        flops = [part.flops for part in parts if part.flops is not None]
        is_known = len(flops) == len(parts) and total_ns > 0
        peaks = {part.peak_flops_per_s for part in parts}
        peak = peaks.pop() if len(peaks) == 1 else None
        counts = [part.num_kernels for part in parts if part.num_kernels is not None]
        rows.append(
            {
                "category": category,
                "precision": precision,
                "unit": unit,
                "total_ns": total_ns / len(ranks),
                "share": share(total_ns, all_ns),
                "num_kernels": sum(counts) if counts else None,
                "flops_per_s": 1e9 * sum(flops) / total_ns if is_known else None,
                "peak_flops_per_s": peak,
            }
        )
    rows.sort(key=lambda row: -row["total_ns"])
    note = (
        "of kernels that run at the same time, the one that began first counts: the rows add up"
        " to all compute"
    )
    shown = table("compute", _COMPUTE, rows, "compute.csv")
    return card("What compute consists of", *_of_peak(view, ranks), shown, note=note)


def _of_peak(view: View, ranks: Sequence[ComputeParts]) -> list[Component]:
    """Say what a step reaches of the GPU's peak, on the rank that computes longest."""
    if view.address.chosen.has_range or not ranks:
        return []
    longest = max(ranks, key=lambda parts: (parts.total_ns, -parts.rank))
    if longest.in_step is None:
        return []
    of_rank = f"Rank {longest.rank}: " if len(ranks) > 1 else ""
    text = step_text(longest.in_step)
    return [html.P(f"{of_rank or text[0].upper()}{text if of_rank else text[1:]}.")]


def _table(view: View, uses: Sequence[KernelSum], total_ns: int, num_ranks: int) -> Component:
    beside = beside_communication(view)
    launched = {of_rank.rank: of_rank for of_rank in view.analysis.measured.launched}
    of_all = {
        (of_rank.rank, use.name): use
        for of_rank in view.analysis.measured.kernels
        if of_rank.rank in launched and launched[of_rank.rank].has_rates
        for use in of_rank.uses
    }
    places = _places(view, uses[:_MAX_ROWS])
    rows = []
    for use in uses[:_MAX_ROWS]:
        number, worst = use.worst
        launcher = launched[number].of(use.name) if number in launched else Launcher()
        whole = of_all.get((number, use.name))
        reach = None if whole is None else reached(launcher, whole, view.rank(number).gpu)
        per_step = [one.per_step_ns for _, one in use.of_ranks if one.per_step_ns is not None]
        slowed = beside.get(use.name)
        row = {
            "title": one_line(kernel_title(use.name), _MAX_NAME),
            "category": str(worst.kind.category) if worst.kind.is_known else "not known",
            "precision": arithmetic_text(worst.kind).strip("-"),
            "operator": launcher.operator,
            "module": launcher.module,
            "total_ns": use.total_ns / num_ranks,
            "reach": None if reach is None else reach.share,
            "share": share(use.total_ns, total_ns),
            "per_step_ns": sum(per_step) / num_ranks if per_step else None,
            "count": sum(one.count for _, one in use.of_ranks),
            "median_ns": worst.median_ns,
            "beside_ns": slowed and slowed[0] / num_ranks,
            "slowdown": slowed[0] / slowed[1] if slowed and slowed[1] > 0 else None,
            "most_ns": worst.total_ns,
            "rank": number,
            "href": places[use.name],
        }
        rows.append(row)
    columns = (*_KERNELS, *(_BY_RANK if num_ranks > 1 else ()))
    note = f"the mean over {num_ranks} ranks" if num_ranks > 1 else ""
    parts: list[Any] = [table("kernels", columns, rows, "kernels.csv", in_sight=12)]
    rest = uses[_MAX_ROWS:]
    if rest:
        spent = sum(use.total_ns for use in rest) // num_ranks
        parts.append(f"{counted(len(rest), 'more name')}, {duration(spent)} together")
    return card("By name", *parts, note=note)


def _places(view: View, uses: Sequence[KernelSum]) -> dict[str, str]:
    """Return the timeline's address of the first kernel of each name, on its slowest rank."""
    first: dict[int, dict[str, tuple[int, int, int]]] = {}
    places = {}
    for use in uses:
        number = use.worst[0]
        if number not in first:
            rank = view.rank(number)
            span = view.window(number, rank.window.start_ns, rank.window.end_ns + 1)
            first[number] = first_of_each(rank, *span)
        own_start, own_end, index = first[number][use.name]
        start, end = map(view.clock.rank(number).at, (own_start, own_end))
        margin = max(end - start, 500)
        place = view.address.to_place(
            addresses.TIMELINE,
            rank=(number,),
            start_ns=start - margin,
            end_ns=end + margin,
            select=f"{number}.{OPERATION}.{index}",
            search=function_name(use.name)[:_MAX_NAME],
        )
        places[use.name] = place.href()
    return places


_MAX_MODULES = 500
_MAX_MODULE = 120  # characters
_INDENT = "\u2003"
_NOT_COMPARED = "one of the recordings has no modules to compare"

_MODULES = (
    Column("module", "module", tip="inside the module above that stands further left"),
    Column("total_ns", "time (ms)", 3, 90, "of its kernels, with those of the modules inside it"),
    Column("share", "of all (%)", 1, 80, "of the kernels of all modules"),
    Column("own_ns", "own (ms)", 3, 90, "without the modules inside it"),
    Column("backward_ns", "backward (ms)", 3, 90, "the part that the backward of its operators is"),
    Column("step_ns", "in a step (ms)", 3, 90, "the mean over the steady steps"),
    Column("num_kernels", "kernels", 0, 80),
    Column("path", "path", is_hidden=True),
)


_COMPARED = (
    Column("before_ns", "before (ms)", 3, 90, "in the mean step, over all ranks, as on Compare"),
    Column("after_ns", "after (ms)", 3, 90, "the same of this recording"),
    Column("change_ns", "change (ms)", 3, 90),
    Column("sure", "significant", None, 90),
)


def modules_part(view: View) -> list[Component]:
    """Return the card of modules, with the comparison, if there is one, once it is ready."""
    alone = modules_card(view)
    if alone is None:
        return []
    question = questions_about(view.analysis).comparison()
    if question is None:
        return [alone]
    return answered_later(ANSWERS, modules_card(view, question), question.is_over)


def answers(view: View) -> tuple[Component | None, bool]:
    """Return the card of modules once they are compared, and whether nothing is to come."""
    question = questions_about(view.analysis).comparison()
    is_over = question is None or question.is_over
    return (modules_card(view, question) if is_over else None), is_over


def modules_card(view: View, question: PendingAnswer | None = None) -> Component | None:
    """Return the modules of the rank whose modules take longest; None if none is known.

    The numbers cover the whole capture: if a time range is chosen, there is no card. A
    comparison with another recording stands beside them.
    """
    known = [of_rank for of_rank in view.analysis.measured.launched if of_rank.rank in view.numbers]
    chosen = max(known, key=lambda of_rank: (of_rank.in_modules_ns, -of_rank.rank), default=None)
    if chosen is None or not chosen.modules or view.address.chosen.has_range:
        return None
    whole = chosen.in_modules_ns
    uses = chosen.modules[:_MAX_MODULES]
    rows = [_module_row(use, whole) for use in uses]
    notes = [f"of rank {chosen.rank}, whose modules take longest together"] * (len(known) > 1)
    if len(chosen.modules) > len(uses):
        notes.append(f"{len(chosen.modules) - len(uses)} more are in JSON")
    columns: Sequence[Column] = _MODULES
    if question is not None and question.answer is not None:
        changes = {change.module: change for change in question.answer.comparison.modules}
        there = {use.module for use in chosen.modules}
        rows = [row | _change(changes.get(use.module)) for row, use in zip(rows, uses, strict=True)]
        gone = [change for path, change in changes.items() if path not in there]
        for change in gone[:_MAX_MODULES]:
            path = one_line(change.module, _MAX_MODULE)
            rows.append({"module": path, "path": path, **_change(change)})
        columns = (*_MODULES, *_COMPARED) if changes else _MODULES
        what = "at the end those of the other recording only" if changes else _NOT_COMPARED
        notes.append(what)
    elif question is not None:
        notes.append("there is no comparison" if question.is_over else "being compared …")
    return card("By module", table("modules", columns, rows, "modules.csv"), note="; ".join(notes))


def _module_row(use: ModuleUse, whole_ns: int) -> dict[str, Any]:
    *around, name = use.module.split(SEPARATOR)
    return record(
        _MODULES,
        use,
        module=f"{_INDENT * len(around)}{one_line(name, _MAX_MODULE)}",
        share=share(use.total_ns, whole_ns),
        step_ns=None if use.in_steady_step is None else use.in_steady_step.ns,
        path=one_line(use.module, 1000),
    )


def _change(change: ModuleChange | None) -> dict[str, Any]:
    if change is None:
        return {}
    return record(_COMPARED, change, sure=sure(change))
