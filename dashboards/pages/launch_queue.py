"""The launch queue: its depth, when it was full, what filled it, and what became late."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from dash import html
from dash.development.base_component import Component

from dashboards.view import View
from dashboards.widgets import charts
from dashboards.widgets import components as ui
from dashboards.widgets.tables import IDENTIFIER, Column, record, table
from traceprof import intervals
from traceprof.analyses import launch_queue
from traceprof.analyses.launch_queue import LaunchQueueResult
from traceprof.findings import Evidence
from traceprof.intervals import Int64, even_limits
from traceprof.run.opening import Rank
from traceprof.trace.model.parts import Part
from traceprof.units import duration

PATH = "/launch-queue"
TITLE = "Launch queue"

_MAX_ROWS = 8
_MAX_LISTED = 4  # ranks whose stalls are listed
_MAX_HOLDERS = 5  # of a rank

_QUEUES = (
    Column("rank", "rank", IDENTIFIER, 70),
    Column("max_queue_depth", "most pending", 0, 110, "launches pending at once"),
    Column("queue_cap", "limit", 0, 90, "pending launches at which a launch blocks, learned"),
    Column("queue_cap_scope", "limit of", None, 100),
    Column("num_stalls", "stalls", 0, 90, "launches that were blocked"),
    Column("blocked_ns", "host blocked (ms)", 3, 130, "the union of the stalls"),
    Column("num_late_launches", "late launches", 0, 110, "operations started late by it"),
    Column("cost_ns", "cost (ms)", 3, 110, "when something waited for the blocked thread"),
    Column("source", "stalls from", None, 170, "CUPTI's records, or inferred from the launches"),
    Column("holder", "mostly filled by"),
)
_HOLDERS = (
    Column("rank", "rank", IDENTIFIER, 70),
    Column("name", "operation"),
    Column("held_ns", "time (ms)", 3, 130, "a sum: operations that overlap count more than once"),
    Column("share", "of the stalls (%)", 1, 130),
)
_lock = threading.Lock()


def layout(view: View) -> Component:
    """Return the page."""
    results: tuple[LaunchQueueResult, ...] = view.of(launch_queue)
    lead = (
        "Operations that a process has launched and its GPU has not finished. A launch into a"
        " full queue blocks the host: healthy run-ahead, unless something else waits for the"
        " blocked thread."
    )
    gaps = ui.missing(view.missing(*launch_queue.FINDINGS))
    if not results:
        empty = ui.nothing(
            "No chosen report has CUDA API calls: the times of launches are unknown.",
            view.analysis.run.how_to_collect(Part.API_CALLS),
        )
        return ui.page(TITLE, lead, ui.card("Depth over time", empty), gaps)
    worst = sorted(results, key=_cost, reverse=True)
    rows = [_row(result) for result in ui.sorted_worst_first(results, _cost)]
    listed = [result for result in worst[:_MAX_LISTED] if result.longest or result.late]
    return ui.page(
        TITLE,
        lead,
        _depth(view, results),
        ui.card("Queues", ui.with_table(table("queues", _QUEUES, rows), len(rows))),
        _holders(worst),
        html.Div([_stalls(view, result) for result in listed], className="columns"),
        gaps,
    )


def _cost(result: LaunchQueueResult) -> tuple[float, float, float]:
    metrics = result.metrics
    return result.costly.measure_ns, metrics.blocked_ns, metrics.max_queue_depth


def _depth_over_window(rank: Rank) -> tuple[Int64, npt.NDArray[np.int32]]:
    return launch_queue.depth_over_time(rank, rank.window)


def _depth(view: View, results: Sequence[LaunchQueueResult]) -> Component:
    split = ui.worst_first(results, _cost, _MAX_ROWS)
    note = ui.time_note(view.address)
    if split.others:
        deepest = max(result.metrics.max_queue_depth for result in split.others)
        blocked = max(result.metrics.blocked_ns for result in split.others)
        has_stalls = any(result.metrics.num_stalls for result in split.drawn)
        subject = "the costliest stalls" if has_stalls else "the deepest queues"
        note += f"; {split.note(subject)}: at most {deepest} pending"
        note += f", and blocked for at most {duration(blocked)}" if blocked else ", never blocked"
    drawn = {
        "kind": "depth",
        "axis": view.clock.title,
        "base": str(view.clock.base_ns),
        "rows": [_drawn_row(view, result) for result in split.drawn],
    }
    label = "launches pending over time, and when the host was blocked, by rank"
    chart = charts.plots("queue-depth", drawn, label)
    return ui.card("Depth over time", chart, note=note)


def _row(result: LaunchQueueResult) -> dict[str, Any]:
    metrics = result.metrics
    return record(
        _QUEUES,
        metrics,
        rank=result.rank,
        queue_cap_scope=f"a {metrics.queue_cap_scope}" if metrics.queue_cap_scope else None,
        cost_ns=result.costly.measure_ns,
        source=metrics.source if metrics.num_stalls else None,
    )


def _holders(results: Sequence[LaunchQueueResult]) -> Component:
    rows = []
    for result in results:
        blocked_ns = result.metrics.blocked_ns
        for holder in result.holders[:_MAX_HOLDERS]:
            part = holder.held_ns / blocked_ns if blocked_ns else None
            rows.append(record(_HOLDERS, holder, rank=result.rank, share=part))
    never = "No launch was blocked: the queue was never full, or nothing was launched then."
    shown = table("queue-holders", _HOLDERS, rows) if rows else ui.nothing(never)
    return ui.card("What the GPU ran while launches were blocked", shown)


def _stalls(view: View, result: LaunchQueueResult) -> Component:
    late = [
        Evidence(
            operation.idle_since_ns,
            max(operation.start_ns, operation.idle_since_ns),
            f"stream {operation.stream} idle until {operation.name} was launched,"
            f" {duration(operation.late_ns)} late",
        )
        for operation in result.late
    ]
    parts: list[Any] = []
    for title, entries in (("Launched late", late), ("Longest stalls", result.longest)):
        if entries:
            parts += [html.H4(title), ui.evidence_list(view, result.rank, entries)]
    return ui.card(f"Stalls of rank {result.rank}", *parts)


def _drawn_row(view: View, result: LaunchQueueResult) -> dict[str, Any]:
    """Return the depth of a rank's queue over the time chosen, with the stalls behind it."""
    base_ns, to_run = view.clock.base_ns, view.clock.rank(result.rank).to_run
    start, end = view.window(result.rank, result.window.start_ns, result.window.end_ns)
    first, last = to_run(np.array([start, end], np.int64)).tolist()
    rank = view.rank(result.rank)
    with _lock:
        times, depth = rank.cache.get_alone(_depth_over_window, rank, rank.release)
    pieces = charts.envelope(times, depth, start, end)
    stalls = result.stalls
    limits = even_limits(start, end, charts.MAX_POINTS)
    share = charts.covered_share(intervals.union(stalls.start_ns, stalls.end_ns), limits)
    hit = np.flatnonzero(share > 0)
    whose = "a stream" if stalls.cap_scope == "stream" else "the process"
    return {
        "title": f"rank {result.rank}",
        "unit": "launches",
        "color": charts.BLUE,
        "start": first - base_ns,
        "end": last - base_ns,
        "times": charts.offsets(to_run(np.append(pieces.start_ns, end)), base_ns),
        "least": pieces.least.tolist(),
        "most": pieces.most.tolist(),
        "limit": stalls.cap,
        "limit_text": None if stalls.cap is None else f"limit of {whose}: {stalls.cap}",
        "blocked": {
            "starts": charts.offsets(to_run(limits[hit]), base_ns),
            "ends": charts.offsets(to_run(limits[hit + 1]), base_ns),
            "shares": charts.rounded(share[hit], 6),
        },
        "blocked_color": charts.COMMUNICATION,
    }
