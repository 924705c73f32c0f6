"""Overlap: what communication hidden behind compute gains, and what the kernels pay for it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from dashboards.view import View
from dashboards.widgets import charts
from dashboards.widgets import components as ui
from dashboards.widgets.tables import IDENTIFIER, Column, record, table
from traceprof.analyses import overlap_slowdown
from traceprof.analyses.kernels.kernel_table import SignatureSlowdown
from traceprof.analyses.overlap_slowdown import OverlapSlowdownResult
from traceprof.errors import one_line
from traceprof.findings import Evidence
from traceprof.kernel_names import function_name
from traceprof.units import counted, duration

if TYPE_CHECKING:
    from dash.development.base_component import Component


Row = tuple[int, SignatureSlowdown]

PATH = "/overlap"
TITLE = "Overlap"

_MAX_KERNELS, _MAX_FEWER = 15, 8  # drawn; of few ranks, and of many
_MAX_ROWS = 2000  # of the table; the costliest

_BY_RANK = (
    Column("rank", "rank", IDENTIFIER, 70),
    Column("hidden_ns", "hidden (ms)", 3, 120, "communication that compute hides"),
    Column("wall_excess_ns", "cost (ms)", 3, 120, "wall time that kernels take longer"),
    Column("net_gain_ns", "net gain (ms)", 3, 120, "hidden less cost"),
    Column("slowdown", "slowdown (×)", 3, 120, "time taken ÷ time expected alone"),
    Column("num_overlapped", "kernels compared", 0, 120),
    Column("matched_fraction", "time compared (%)", 1, 120, "of the kernels beside communication"),
    Column("num_sms_taken", "SMs that communication takes", 0, 150, "the median grid"),
    Column("num_sms", "SMs of the GPU", 0, 120),
)
_BY_KERNEL = (
    Column("rank", "rank", IDENTIFIER, 70),
    Column("name", "kernel"),
    Column("shape", "grid · block", None, 190),
    Column("excess_ns", "excess (ms)", 3, 110, "how much longer than expected all of them took"),
    Column("slowdown", "slowdown (×)", 2, 110),
    Column("mean_alone_ns", "expected alone (µs)", 2, 130, "the mean of the kernels alone"),
    Column("mean_overlapped_ns", "mean overlapped (µs)", 2, 130),
    Column("num_alone", "runs alone", 0, 90, "kernels during which nothing communicated"),
    Column("num_overlapped", "runs overlapped", 0, 120, "beside communication for half of it"),
)


def layout(view: View) -> Component:
    """Return the page."""
    results: tuple[OverlapSlowdownResult, ...] = view.of(overlap_slowdown)
    lead = (
        "Communication beside compute is hidden, but takes SMs and memory bandwidth from it."
        " Kernels of one name, grid and block are compared, at the same place of a step where steps"
        " are known: alone, and beside communication."
    )
    judged = [result for result in results if result.num_communication]
    gaps = ui.missing(view.missing(*overlap_slowdown.FINDINGS))
    if not judged:
        empty = ui.nothing("No communication ran in this time: there is nothing to overlap.")
        return ui.page(TITLE, lead, ui.card("Overlap", empty), gaps)
    rows = sorted(
        ((result.rank, kernel) for result in judged for kernel in result.signatures),
        key=lambda row: -row[1].excess_ns,
    )
    return ui.page(
        TITLE,
        lead,
        _summary(judged),
        _by_rank(judged),
        _kernels(view, rows, is_overlapped=any(result.hidden_ns for result in judged)),
        gaps,
    )


def _summary(results: Sequence[OverlapSlowdownResult]) -> Component:
    known = [result for result in results if is_cost_known(result)]
    best = max(results, key=lambda result: result.hidden_ns)
    slowdowns = [result.comparison.slowdown for result in results if result.comparison.slowdown]
    cost = ("cost", ui.UNKNOWN, "kernels beside communication could not be compared")
    gain = ("net gain", ui.UNKNOWN, "without the cost it is not known")
    if known:
        worst = max(known, key=lambda result: result.wall_excess_ns)
        least = min(known, key=lambda result: result.net_gain_ns)
        cost = ("cost", duration(worst.wall_excess_ns), f"at most, on rank {worst.rank}")
        gain = ("net gain", duration(least.net_gain_ns), f"at least, on rank {least.rank}")
    return ui.numbers(
        ("hidden", duration(best.hidden_ns), f"at most, on rank {best.rank}"),
        cost,
        gain,
        (
            "slowdown",
            f"{max(slowdowns):.2f} ×" if slowdowns else ui.UNKNOWN,
            "time taken ÷ time expected, on the worst rank"
            if slowdowns
            else "no kernel ran both alone and beside communication",
        ),
    )


def _by_rank(results: Sequence[OverlapSlowdownResult]) -> Component:
    unknown = {"wall_excess_ns": None, "net_gain_ns": None}
    rows = [
        record(_BY_RANK, result, result.comparison, **({} if is_cost_known(result) else unknown))
        for result in ui.sorted_worst_first(results, lambda result: -result.net_gain_ns)
    ]
    split = ui.worst_first(results, lambda result: -result.net_gain_ns)
    label = "what overlap hides and what it costs, by rank"
    chart = charts.plots("overlap-gain", gain_and_cost(split.drawn, split.others), label)
    return ui.card(
        "What overlap gains and costs, by rank",
        chart,
        ui.with_table(table("overlap-ranks", _BY_RANK, rows), len(rows)),
        note=split.note("the least net gain"),
    )


def _kernels(view: View, rows: Sequence[Row], *, is_overlapped: bool) -> Component:
    title = "Kernels that run longer"
    if not is_overlapped:
        return ui.card(title, ui.nothing("No kernel ran beside communication."))
    if not rows:
        why = (
            "No kernel of one name, grid and block ran both alone, three times at least, and"
            " beside communication."
        )
        how = "record more steps, some without communication: under DDP's no_sync()"
        return ui.card(title, ui.nothing(why, how))
    num_ranks = len({rank for rank, _ in rows})
    worst = rows[: _MAX_KERNELS if num_ranks <= ui.MAX_DRAWN else _MAX_FEWER]
    hrefs = [
        ui.interval_address(view, rank, Evidence(*signature.longest, label="")).href()
        for rank, signature in worst
    ]
    label = "median duration of kernels alone and beside communication"
    chart = charts.plots("overlap-kernels", _alone_against_overlapped(worst, hrefs), label)
    note = f"the {len(worst)} with the largest excess; click one for its longest run"
    entries = [_entry(*row) for row in rows[:_MAX_ROWS]]
    parts: list[Any] = [
        chart,
        table("overlap-kernel-table", _BY_KERNEL, entries, "overlap.csv", in_sight=4.5),
    ]
    rest = rows[_MAX_ROWS:]
    if rest:
        excess = sum(signature.excess_ns for _, signature in rest)
        parts.append(f"{len(rest)} more, with an excess of {duration(round(excess))} together")
    return ui.card(title, *parts, note=note)


def _entry(rank: int, signature: SignatureSlowdown) -> dict[str, Any]:
    shape = (
        f"{'×'.join(map(str, signature.grid))} · {'×'.join(map(str, signature.block))}"
        if signature.grid and signature.block
        else "not known"
    )
    alone, overlapped = signature.mean_alone_ns, signature.mean_overlapped_ns
    return record(
        _BY_KERNEL,
        signature,
        rank=rank,
        name=one_line(function_name(signature.name)),
        shape=shape,
        slowdown=overlapped / alone if alone else None,
    )


_ROW, _LOW_ROW = 22, 17
_MAX_HIGH = 8  # rows


def gain_and_cost(
    results: Sequence[OverlapSlowdownResult], others: Sequence[OverlapSlowdownResult] = ()
) -> dict[str, Any]:
    """Return the hidden time of each rank, to the right, and the cost of overlap, to the left.

    Other ranks share the last row, which shows their means. Cost and net gain are of those
    whose kernels could be compared.
    """
    hidden = charts.Series("hidden behind compute", "bar", charts.BLUE)
    cost = charts.Series("cost: kernels run longer", "bar", charts.COMMUNICATION)
    gain = charts.Series("net gain", "diamond", None)
    for row, group in enumerate([*([result] for result in results), *([others] if others else [])]):
        hidden_ns = fmean(result.hidden_ns for result in group)
        hidden.add(row, hidden_ns, f"overlap hides {hidden_ns / 1e6:.3f} ms")
        known = [result for result in group if is_cost_known(result)]
        if not known:
            continue
        cost_ns = fmean(result.wall_excess_ns for result in known)
        gain_ns = fmean(result.net_gain_ns for result in known)
        cost.add(row, -cost_ns, f"kernels run {cost_ns / 1e6:.3f} ms longer")
        gain.add(row, gain_ns, f"net gain {gain_ns / 1e6:.3f} ms")
    rows = [charts.Lane(f"rank {result.rank}", f"rank {result.rank}") for result in results]
    if others:
        name = f"{counted(len(others), 'other rank')}, the mean"
        rows.append(charts.Lane(counted(len(others), "other"), name))
    row_height = _ROW if len(rows) <= _MAX_HIGH else _LOW_ROW
    shown = [series for series in (hidden, cost, gain) if series.values]
    return charts.lanes("time (ms)", rows, shown, row_height=row_height, per=1e6)


def is_cost_known(result: OverlapSlowdownResult) -> bool:
    """Return whether kernels could be compared, or there is no overlap with a cost."""
    return result.comparison.slowdown is not None or not result.hidden_ns


def _alone_against_overlapped(
    rows: Sequence[tuple[int, SignatureSlowdown]], hrefs: Sequence[str]
) -> dict[str, Any]:
    """Return the mean durations of kernels alone and overlapped, joined by a line."""
    several = len({rank for rank, _ in rows}) > 1
    alone = charts.Series("alone", "ring", charts.GREY)
    overlapped = charts.Series("beside communication", "dot", charts.COMMUNICATION)
    lines, joins = [], []
    for row, ((rank, signature), href) in enumerate(zip(rows, hrefs, strict=True)):
        name = one_line(function_name(signature.name))
        suffix = f" · rank {rank}" if several else ""
        # The number distinguishes kernels of the same name.
        lines.append(charts.Lane(f"{row + 1}. {charts.shortened(name)}{suffix}", name, href))
        before, after = signature.mean_alone_ns, signature.mean_overlapped_ns
        color = charts.COMMUNICATION if after > before else charts.BLUE
        joins.append({"row": row, "from": before, "to": after, "color": color})
        for series, mean, num in (
            (alone, before, signature.num_alone),
            (overlapped, after, signature.num_overlapped),
        ):
            series.add(
                row,
                mean,
                f"rank {rank}, grid {signature.grid}, block {signature.block}",
                f"{mean / 1e3:.2f} µs on average, {series.name}, of {num}",
                f"excess {signature.excess_ns / 1e6:.3f} ms in all",
            )
    return charts.lanes(
        "mean duration (µs, logarithmic)",
        lines,
        [alone, overlapped],
        row_height=_ROW,
        per=1e3,
        scale="log",
        joins=joins,
    )
