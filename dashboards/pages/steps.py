"""Steps: how long each training step took on each rank, and where its time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from dash import html
from dash.development.base_component import Component

from dashboards import address as addresses
from dashboards.clock import Clock
from dashboards.view import View
from dashboards.widgets import components as ui
from dashboards.widgets.charts import BLUE, PARTS, group_starts, offsets, plots, rounded
from dashboards.widgets.tables import IDENTIFIER, Column, record, table
from traceprof import intervals
from traceprof.analyses import breakdown
from traceprof.analyses.breakdown import BreakdownResult, step_times
from traceprof.analyses.steps import (
    SlowStep,
    cause_text,
    counted_steps,
    judged_steps,
    slowest_rank,
    step_lengths,
)
from traceprof.intervals import Float64, Int64
from traceprof.ranks.comparison import RankComparison
from traceprof.ranks.lateness import Lateness
from traceprof.reports.time_text import about_steps, slow_steps_lines
from traceprof.run.periods import about_periods
from traceprof.trace.model.parts import Part
from traceprof.units import counted, duration

PATH = addresses.STEPS
TITLE = "Steps"

_MAX_STACKS = 5  # of many ranks
_COLUMNS = (
    Column("rank", "rank", IDENTIFIER, 60),
    Column("num_steps", "steps", 0, 60),
    Column("window_ns", "step (ms)", 3, 90),
    *(Column(measure, f"{name} (ms)", 3, 90) for measure, name, _ in PARTS),
    Column("slowest_ns", "slowest step (ms)", 3, 90),
    Column("number", "its number", IDENTIFIER, 70, "leads to it on the timeline", leads=True),
)


_SLOW = (
    Column("number", "step", IDENTIFIER, 60, "leads to it on the timeline", leads=True),
    Column("host_number", "host's step", IDENTIFIER, 70, "the mark in which it happened"),
    Column("rank", "rank", IDENTIFIER, 60),
    Column("step_ns", "took (ms)", 3, 90),
    Column("extra_ns", "beyond the median (ms)", 3, 90),
    Column("cause", "what ran in it, or grew", None, 300, may_be_cut=True),
    Column("cause_ns", "that took (ms)", 3, 90),
    Column("counts", "counts in the mean", None, 80),
)
_MAX_SLOW = 5  # that are listed at once


def layout(view: View) -> Component:
    """Return the page."""
    results: list[BreakdownResult] = [result for result in view.of(breakdown) if result.steps]
    lead = (
        "A step begins on the GPU with the first operation launched inside its range and ends where"
        " the next one begins. Click a step to see it on the timeline."
    )
    if not results:
        no_steps = ui.nothing(
            "No training step was found.",
            "instrument.step, or a range of your own and --step-pattern REGEX; record with"
            f" {view.analysis.run.how_to_collect(Part.RANGES)}",
        )
        return ui.page(TITLE, lead, ui.card("Steps", no_steps))
    slowest = slowest_rank(results)
    if slowest.periods:
        what = about_periods(slowest.periods, slowest.unit.layers)
        lead = f"{what} Click a step to see it on the timeline."
    split = ui.worst_first(results, _mean_ns)
    return ui.page(
        TITLE,
        lead,
        _slow_steps(view, results),
        _heat(view, results),
        _stacked(view, split),
        _table(view, ui.sorted_worst_first(results, _mean_ns)),
    )


def _slow_of(view: View) -> dict[int, tuple[SlowStep, ...]]:
    """Return the slow steps by rank; none with a time chosen, which has other steps."""
    if view.address.chosen.has_range:
        return {}
    return {of_rank.rank: of_rank.steps for of_rank in view.analysis.measured.slow_steps}


def _slow_steps(view: View, results: Sequence[BreakdownResult]) -> Component | None:
    slow = _slow_of(view)
    rows = [
        record(
            _SLOW,
            step,
            rank=result.rank,
            cause=cause_text(step.cause, step.label),
            counts="yes" if step.counts else "no",
            href=_place(view, result, step.index),
        )
        for result in results
        for step in slow.get(result.rank, ())
    ]
    if not rows:
        return None
    rows.sort(key=lambda row: -row["extra_ns"])
    parts = [table("slow-steps", _SLOW, rows, "slow-steps.csv", in_sight=4.5)]
    if len(rows) > _MAX_SLOW:
        lines = [html.P(line) for line in slow_steps_lines(view.analysis.result)]
        parts = [*lines, ui.folded(f"All {len(rows)} slow steps", *parts)]
    return ui.card("Slow steps", *parts, note="over 1.5 times the median, the slowest first")


def _mean_ns(result: BreakdownResult) -> float:
    steady = counted_steps(result) or result.steps
    return mean(step.measures.window_ns for step in steady)


def _heat(view: View, results: Sequence[BreakdownResult]) -> Component | None:
    """Return who came late, and when; step times where no operation tells."""
    if len(results) < 2:
        return None
    compared = view.analysis.ranks
    late = {compared.ranks[one.member]: one for one in compared.lateness if one.num_last}
    is_late = any(result.rank in late for result in results)
    late_ns = {number: one.total_ns for number, one in late.items()}
    split = ui.worst_first(
        results, lambda row: late_ns.get(row.rank, 0) if is_late else _mean_ns(row)
    )
    grid = step_grid([*split.drawn, *split.others])
    if is_late:
        shown = _late_heat(view, split, grid, late)
        title, label = "Late ranks", "how late each rank came, by rank and step"
        note = (
            "of all operations that ranks wait in, how much later than the median of the others a"
            " rank came last, at most in each step; a click shows that"
        )
    else:
        hrefs = [_place(view, result, 0) for result in split.drawn]
        shown = heat(split, grid, hrefs, view.clock)
        title, label = "Step time by rank", "how long each step took, by rank and step"
        note = (
            "a strong column is a slow step; of ranks that wait for each other all rows are alike"
        )
    drawn = split.note("most waiting for them" if is_late else "the longest steps")
    notes = "; ".join(filter(None, (note, drawn)))
    return ui.card(title, plots("steps-heat", shown, label), note=notes)


_MAX_TOGETHER = 4  # ranks that fit below each other on the timeline


def _stacked(view: View, split: ui.Split[BreakdownResult]) -> Component:
    results, rest = split.drawn, split.others
    if rest:  # bars take more room than cells
        results, rest = results[:_MAX_STACKS], [*results[_MAX_STACKS:], *rest]
    bars = [step_bars([result]) for result in results]
    note = "all rows have the same scale; a click on “compute” leaves it out; drag to zoom in"
    band = None
    if rest:
        band = f"{counted(len(rest), 'other')}, the mean", step_bars(rest)
        note += f"; the {len(results)} ranks with the longest steps, and the others together"
    hrefs = [_place(view, result, 0) for result in results]
    stacks = stacked(results, bars, hrefs, view.clock, band, _slow_of(view))
    chart = plots("steps-bars", stacks, "where the time of each step went, by rank")
    return ui.card("Where each step's time went", chart, note=note)


def _place(view: View, result: BreakdownResult, step: int) -> str:
    clock, time = view.clock.rank(result.rank), result.steps[step].measures
    start_ns = clock.at(time.window_start_ns)
    end_ns = max(clock.at(time.window_end_ns), start_ns + 1)
    place = {"rank": (result.rank,), "start_ns": start_ns, "end_ns": end_ns}
    return view.address.to_place(addresses.TIMELINE, **place).href()


def _table(view: View, results: Sequence[BreakdownResult]) -> Component:
    slowest = slowest_rank(results)
    lengths = step_lengths(slowest)
    notes = [] if lengths is None else about_steps(slowest, lengths)
    about = [html.P(note, className="note") for note in notes]
    rows = [_row(view, result) for result in results]
    return ui.card(
        "Means over the steady steps",
        ui.with_table(table("steps", _COLUMNS, rows, "steps.csv"), len(results)),
        *about,
        note="what the training pays for a step",
    )


def _row(view: View, result: BreakdownResult) -> dict[str, Any]:
    steady = counted_steps(result) or result.steps
    slowest = max(judged_steps(result) or steady, key=lambda step: step.measures.window_ns)
    place = next(at for at, step in enumerate(result.steps) if step is slowest)
    return {
        "rank": result.rank,
        "num_steps": len(steady),
        **{
            measure: mean(getattr(step.measures, measure) for step in steady)
            for measure in ("window_ns", *(part[0] for part in PARTS))
        },
        "slowest_ns": slowest.measures.window_ns,
        "number": slowest.number,
        "href": _place(view, result, place),
    }


MAX_BARS = 300  # of one rank: more would be thinner than three pixels
_MAX_CELLS = 48_000  # of the grid of steps and ranks


class StepBars(NamedTuple):
    """The steps of a rank as bars, or the mean of several ranks."""

    grid: StepGrid  # a column for each of n bars
    parts_ns: Float64  # float64[4, n], the mean over ranks and steps, in the order of `PARTS`
    longest_ns: Float64  # float64[n], the longest step of each bar
    shortest_ns: Float64  # float64[n], the shortest


def step_bars(results: Sequence[BreakdownResult]) -> StepBars:
    """Group the steps of ranks, which must have some, into at most MAX_BARS bars."""
    grid = step_grid(results)
    shape = len(results), len(grid.position)
    parts, shortest = np.full((len(PARTS), *shape), np.nan), np.full(shape, np.nan)
    for row, result in enumerate(results):
        taken = np.flatnonzero(grid.first[row] >= 0)
        first, size = grid.first[row, taken], grid.last[row, taken] - grid.first[row, taken] + 1
        for place, (measure, *_) in enumerate(PARTS):
            values = [float(getattr(step.measures, measure)) for step in result.steps]
            parts[place, row, taken] = np.add.reduceat(values, first) / size
        shortest[row, taken] = np.minimum.reduceat(step_times(result.steps)[1], first)
    mean, longest = np.nanmean(parts, axis=1), np.nanmax(grid.longest_ns, axis=0)
    return StepBars(grid, mean, longest, np.nanmin(shortest, axis=0))


def stacked(
    results: Sequence[BreakdownResult],
    bars: Sequence[StepBars],
    hrefs: Sequence[str],
    clock: Clock,
    others: tuple[str, StepBars] | None = None,
    slow: Mapping[int, Sequence[SlowStep]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the steps of each rank as stacked bars, one row for each rank, on one scale.

    The browser puts the time of a bar in the address of its rank. A last row is of other ranks.
    """
    band = [] if others is None else [_stack(others[0], None, others[1])]
    return {
        "kind": "stacks",
        "axis": "step",
        "base": str(clock.base_ns),
        # From the bottom: compute on top, so that what is lost stands on the axis.
        "parts": [
            {"field": field, "name": name, "color": color} for field, name, color in reversed(PARTS)
        ],
        "rows": [
            *(
                _stack(f"rank {result.rank}", href, rank_bars)
                | _times(result, rank_bars.grid, 0, clock)
                | {"slow": _slow_bars(rank_bars, slow.get(result.rank, ()))}
                for result, rank_bars, href in zip(results, bars, hrefs, strict=True)
            ),
            *band,
        ],
    }


def _slow_bars(bars: StepBars, slow: Sequence[SlowStep]) -> list[dict[str, Any]]:
    """Return the bars with slow steps: index, the slowest's number, and why it is slow."""
    worst: dict[int, SlowStep] = {}
    for step in slow:
        bar = int(np.searchsorted(bars.grid.first[0], step.index, side="right")) - 1
        if bar not in worst or worst[bar].extra_ns < step.extra_ns:
            worst[bar] = step
    return [
        {
            "bar": bar,
            "number": str(step.number),
            "why": f"{duration(step.extra_ns)} more than usual: "
            f"{cause_text(step.cause, step.label)}, {duration(step.cause_ns)}",
        }
        for bar, step in worst.items()
    ]


def _stack(title: str, href: str | None, bars: StepBars) -> dict[str, Any]:
    return {
        "title": title,
        "href": href,
        "step": bars.grid.position.tolist(),
        "labels": [label.replace("longest", "mean") for label in bars.grid.label],
        **{field: rounded(bars.parts_ns[at], 0) for at, (field, *_) in enumerate(PARTS)},
        "shortest_ns": rounded(bars.shortest_ns, 0),
        "longest_ns": rounded(bars.longest_ns, 0),
        "slow": [],
        "start_ns": [],
        "end_ns": [],
    }


def _times(result: BreakdownResult, grid: StepGrid, row: int, clock: Clock) -> dict[str, list[int]]:
    own, length = step_times(result.steps)
    first, last = grid.first[row], grid.last[row]
    to_run = clock.rank(result.rank).to_run
    begin, end = to_run(own), to_run(own + length)
    return {
        "start_ns": offsets(begin[first], clock.base_ns),
        "end_ns": offsets(np.maximum(end[last], begin[first] + 1), clock.base_ns),
    }


class StepGrid(NamedTuple):
    """The steps of several ranks in columns: of one step each, or of several that follow."""

    # float64[columns], where on the axis: the step's number, or the steps' middle
    position: Float64
    label: list[str]  # the steps of each column
    # float64[ranks, columns], the longest step of each; NaN where there is none
    longest_ns: Float64
    first: Int64  # int64[ranks, columns], index of the rank's first step of each; -1 if none
    last: Int64  # int64[ranks, columns], of the last


def step_grid(results: Sequence[BreakdownResult]) -> StepGrid:
    """Group the steps of ranks by number into at most MAX_BARS columns.

    Many ranks have fewer columns, as a reply limits the number of all cells. If step numbers of a
    rank repeat, they do not identify steps, and the order in which steps ran counts for all ranks.
    """
    numbers = [np.array([step.number for step in result.steps], np.int64) for result in results]
    if any((np.diff(row) <= 0).any() for row in numbers):
        numbers = [np.arange(len(row)) for row in numbers]
    known = np.unique(np.concatenate(numbers))
    most = min(MAX_BARS, max(_MAX_CELLS // len(results), 1))
    starts = group_starts(len(known), most)
    stops = np.append(starts[1:], len(known))[: len(starts)]
    begin, end = known[starts], known[stops - 1]
    shape = len(results), len(starts)
    longest, first, last = np.full(shape, np.nan), np.full(shape, -1), np.full(shape, -1)
    for row, (result, of_rank) in enumerate(zip(results, numbers, strict=True)):
        column = np.searchsorted(begin, of_rank, side="right") - 1  # ascending, as the steps are
        columns, place = np.unique(column, return_index=True)
        first[row, columns] = place
        last[row, columns] = np.append(place[1:], len(column)) - 1
        longest[row, columns] = np.maximum.reduceat(step_times(result.steps)[1], place)
    label = [
        f"step {a}" if a == b else f"longest of steps {a}-{b}"
        for a, b in zip(begin.tolist(), end.tolist(), strict=True)
    ]
    return StepGrid((begin + end) / 2, label, longest, first, last)


def heat(
    split: ui.Split[BreakdownResult], grid: StepGrid, hrefs: Sequence[str], clock: Clock
) -> dict[str, Any]:
    """Return the time of each step, one row for each rank; the longest steps are dark.

    The grid is of all ranks, `hrefs` are of those drawn one by one.
    """
    rows = [
        heat_row(f"rank {result.rank}", href, _times(result, grid, row, clock))
        for row, (result, href) in enumerate(zip(split.drawn, hrefs, strict=True))
    ]
    return heat_map(rows, grid, grid.longest_ns, clock, split.rest) | _scale(grid.longest_ns)


def _late_heat(
    view: View, split: ui.Split[BreakdownResult], grid: StepGrid, late: Mapping[int, Lateness]
) -> dict[str, Any]:
    """Return how late each rank came last to an operation, at most in each step.

    `late` are the ranks that did, by number. A cell leads to its latest arrival, with the rank and
    some of those that waited for it.
    """
    clock, numbers = view.clock, [result.rank for result in split.drawn]
    late_ns, rows = np.where(np.isnan(grid.longest_ns), np.nan, 0.0), []
    for row, result in enumerate((*split.drawn, *split.others)):
        times, lateness = _times(result, grid, row, clock), late.get(result.rank)
        if lateness is not None:
            column = _columns_of(result, grid, row, lateness.start_ns)
            cells, latest = np.unique(column, return_index=True)  # the first of each is the latest
            cells, latest = cells[cells >= 0], latest[cells >= 0]
            late_ns[row, cells] = own_ns = _late_ns(view.analysis.ranks, lateness)[latest]
            start = clock.rank(result.rank).to_run(lateness.start_ns[latest])
            for name, when in (
                ("start_ns", start - own_ns * 3 // 2),
                ("end_ns", start + own_ns // 2),
            ):
                whole = np.array(times[name], np.int64)
                whole[cells] = offsets(when, clock.base_ns)
                times[name] = whole.tolist()
        if row < len(numbers):
            others = [other for other in numbers if other != result.rank][: _MAX_TOGETHER - 1]
            together = tuple(sorted((result.rank, *others)))
            href = view.address.to_place(addresses.TIMELINE, rank=together).href()
            rows.append(heat_row(f"rank {result.rank}", href, times))
    return heat_map(rows, grid, late_ns, clock, split.rest) | late_scale(late_ns, "not the last")


def _late_ns(comparison: RankComparison, late: Lateness) -> Int64:
    """Return how late after the median of the others a rank came to operations, int64[k]."""
    late_ns = np.empty(len(late.operations), np.int64)
    for number, waits in enumerate(comparison.waits):
        chosen = late.operations[:, 0] == number
        late_ns[chosen] = waits.late_ns[late.operations[chosen, 1], late.operations[chosen, 2]]
    return late_ns


def late_scale(late_ns: Float64, zero: str) -> dict[str, Any]:
    """Return the scale of a map of lateness, and what stands in cells of ranks that were not."""
    return _scale(late_ns[late_ns > 0]) | {"low": 0.0, "before": "late by ", "zero": zero}


def _scale(values: Float64) -> dict[str, Any]:
    low, high = color_range(values)
    return {"low": low, "high": high, "before": "", "zero": ""}


def _columns_of(result: BreakdownResult, grid: StepGrid, row: int, time_ns: Int64) -> Int64:
    """Return the column of the step at each time of a rank's report; -1 for none."""
    starts, lengths = step_times(result.steps)
    order = np.argsort(starts, kind="stable")
    place = intervals.holder(starts[order], (starts + lengths)[order], time_ns)
    columns = np.flatnonzero(grid.first[row] >= 0)
    column = columns[np.searchsorted(grid.first[row, columns], order[place], side="right") - 1]
    return np.where(place >= 0, column, -1)


def heat_row(title: str, href: str | None, times: Mapping[str, list[int]]) -> dict[str, Any]:
    """Return a row for `heat_map`; empty times lead nowhere."""
    return {"title": title, "href": href, "start_ns": [], "end_ns": [], **times}


def heat_map(
    rows: Sequence[dict[str, Any]], grid: StepGrid, length_ns: Float64, clock: Clock, others: str
) -> dict[str, Any]:
    """Return a row for each of these ranks, and one of the median of others below them.

    The browser puts the time of a cell in the address of its rank.
    """
    middle = heat_row(f"{others}, median", None, {})
    lengths = [*length_ns[: len(rows)], *([_medians(length_ns[len(rows) :])] if others else [])]
    return {
        "kind": "heat",
        "axis": "step",
        "base": str(clock.base_ns),
        "color": BLUE,
        "step": grid.position.tolist(),
        "labels": grid.label,
        "rows": [
            row | {"length_ns": rounded(length, 0)}
            for row, length in zip((*rows, middle), lengths, strict=False)
        ],
    }


def _medians(values: Float64) -> Float64:
    """Return the median of each column, NaN where it holds no value."""
    is_known = ~np.isnan(values).all(axis=0)
    medians = np.full(values.shape[1], np.nan)
    medians[is_known] = np.nanmedian(values[:, is_known], axis=0)
    return medians


def color_range(values: Float64) -> tuple[float, float]:
    """Return the first and the last value of a colour scale; NaN is no value.

    These are the extremes, but none that lies further outside of the middle half of the values
    than 1.5 times its width: one step that takes a hundred times as long would leave one colour to
    all others. The scale is no narrower than 2 % of the median, or noise would look like much.
    """
    known = values[~np.isnan(values)]
    if len(known) == 0:
        return 0.0, 1.0
    lower, median, upper = np.percentile(known, (25, 50, 75))
    margin = max(1.5 * (upper - lower), 0.01 * abs(median))
    low = max(float(known.min()), lower - margin)
    high = min(float(known.max()), upper + margin)
    narrowest = 0.02 * abs(median)
    return float(low), float(max(high, low + narrowest, np.nextafter(low, np.inf)))
