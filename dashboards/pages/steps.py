"""Steps: how long each training step took on each rank, and where its time went."""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING, Any

from dash import html

from dashboards import address as addresses
from dashboards.figures import steps as figures
from dashboards.view import View
from dashboards.widgets.components import card, nothing, page
from dashboards.widgets.palette import PARTS
from dashboards.widgets.plots import plots
from dashboards.widgets.tables import IDENTIFIER, Column, table
from dashboards.widgets.worst import sorted_worst_first, with_table, worst_first
from traceprof.analyses import breakdown
from traceprof.analyses.steps.step_lengths import slowest_rank, steady_steps, step_lengths
from traceprof.reports.time_text import about_steps
from traceprof.run.steps.period_steps import about_periods
from traceprof.trace.model.parts import Part
from traceprof.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dash.development.base_component import Component

    from dashboards.address import Address
    from dashboards.widgets.worst import Split
    from traceprof.analyses.breakdown import BreakdownResult
    from traceprof.analysis import Analysis

PATH = "/steps"
TITLE = "Steps"

_MAX_STACKS = 5  # of many ranks
_COLUMNS = (
    Column("rank", "rank", IDENTIFIER, 60),
    Column("steps", "steps", 0, 60),
    Column("window_ns", "step (ms)", 3, 90),
    *(Column(measure, f"{name} (ms)", 3, 90) for measure, name, _ in PARTS),
    Column("slowest", "slowest step (ms)", 3, 90),
    Column("number", "its number", IDENTIFIER, 70, "leads to it on the timeline", leads=True),
)


def layout(analysis: Analysis, address: Address) -> Component:
    """Return the page."""
    view = View(analysis, address)
    results: list[BreakdownResult] = [result for result in view.of(breakdown) if result.steps]
    lead = (
        "A step begins on the GPU with the first operation launched inside its range and ends where"
        " the next one begins. Click a step to see it on the timeline."
    )
    if not results:
        return page(TITLE, lead, card("Steps", _no_steps(view)))
    periods = slowest_rank(results).periods
    if periods:
        lead = f"{about_periods(periods)} Click a step to see it on the timeline."
    split = worst_first(results, _mean_ns)
    return page(
        TITLE,
        lead,
        _heat(view, split),
        _stacked(view, split),
        _table(view, sorted_worst_first(results, _mean_ns)),
    )


def _mean_ns(result: BreakdownResult) -> float:
    """Return how long the steps of a rank take, by the mean of those that count."""
    steady = steady_steps(result) or result.steps
    return mean(step.measures.window_ns for step in steady)


def _heat(view: View, split: Split[BreakdownResult]) -> Component | None:
    results, others = split
    if len(results) < 2:
        return None
    grid = figures.step_grid([*results, *others])
    heat = figures.heat(results, grid, _hrefs(view, results), view.clock, _others(split))
    return card(
        "Step time by rank",
        plots("steps-heat", heat, "how long each step took, by rank and step"),
        note="; ".join(
            filter(
                None,
                (
                    "a strong row is a slow rank, a strong column a slow step",
                    split.note("the longest steps"),
                ),
            )
        ),
    )


def _others(split: Split[BreakdownResult]) -> str:
    return counted(len(split.others), "other") if split.others else ""


def _stacked(view: View, split: Split[BreakdownResult]) -> Component:
    results, rest = split.drawn, split.others
    if rest:  # bars take more room than cells
        results, rest = results[:_MAX_STACKS], [*results[_MAX_STACKS:], *rest]
    bars = [figures.step_bars(result) for result in results]
    note = "all rows have the same scale; a click on “compute” leaves it out; drag to zoom in"
    band = None
    if rest:
        of_others = [figures.step_bars(result) for result in rest]
        band = f"{counted(len(rest), 'other')}, the mean", figures.mean_bars(of_others)
        note += f"; the {len(results)} ranks with the longest steps, and the others together"
    stacks = figures.stacked(results, bars, _hrefs(view, results), view.clock, band)
    chart = plots("steps-bars", stacks, "where the time of each step went, by rank")
    return card("Where each step's time went", chart, note=note)


def _hrefs(view: View, results: Sequence[BreakdownResult]) -> list[str]:
    """Return for each rank where on the timeline it is; the browser puts the time in."""
    return [_place(view, result, 0, 0).href() for result in results]


def _place(view: View, result: BreakdownResult, first: int, last: int) -> Address:
    begin, end = result.steps[first].measures, result.steps[last].measures
    clock = view.clock.rank(result.rank)
    start_ns = clock.at(begin.window_start_ns)
    return view.address.to_place(
        addresses.TIMELINE,
        rank=(result.rank,),
        start_ns=start_ns,
        end_ns=max(clock.at(end.window_start_ns + end.window_ns), start_ns + 1),
    )


def _table(view: View, results: Sequence[BreakdownResult]) -> Component:
    slowest = slowest_rank(results)
    lengths = step_lengths(slowest)
    notes = [] if lengths is None else about_steps(slowest, lengths)
    about = [html.P(note, className="note") for note in notes]
    rows = [_row(view, result) for result in results]
    return card(
        "Means over the steady steps",
        with_table(table("steps", _COLUMNS, rows, "steps.csv"), len(results)),
        *about,
        note="what the training pays for a step",
    )


def _row(view: View, result: BreakdownResult) -> dict[str, Any]:
    steady = steady_steps(result) or result.steps
    slowest = max(steady, key=lambda step: step.measures.window_ns)
    place = next(at for at, step in enumerate(result.steps) if step is slowest)
    return {
        "rank": result.rank,
        "steps": len(steady),
        **{
            measure: mean(getattr(step.measures, measure) for step in steady) / 1e6
            for measure in ("window_ns", *(part[0] for part in PARTS))
        },
        "slowest": slowest.measures.window_ns / 1e6,
        "number": slowest.number,
        "href": _place(view, result, place, place).href(),
    }


def _no_steps(view: View) -> Component:
    how = view.analysis.run.how_to_collect(Part.RANGES)
    return nothing(
        "No training step was found.",
        f"instrument.step, or a range of your own and --step-pattern REGEX; record with {how}",
    )
