"""The modules of the model that launched kernels, as a tree: a card of the page Kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dash import dcc, html

from dashboards.asking.questions import questions_about
from dashboards.pages.compare import sure
from dashboards.widgets.components import card
from dashboards.widgets.tables import Column, table
from traceprof.analyses.kernels.launched_modules import SEPARATOR
from traceprof.errors import one_line
from traceprof.findings import share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dash.development.base_component import Component

    from dashboards.asking.questions import PendingAnswer
    from dashboards.view import View
    from traceprof.analyses.kernels.launched_modules import ModuleUse
    from traceprof.documents.comparison import ModuleChange

_MAX_ROWS = 500
_MAX_NAME = 120  # characters
_INDENT = "\u2003"
_POLL_MS = 700
_NOT_COMPARED = "one of the recordings has no modules to compare"

_MODULES = (
    Column("module", "module", tip="inside the module above that stands further left"),
    Column("time", "time (ms)", 3, 90, "of its kernels, with those of the modules inside it"),
    Column("share", "of all (%)", 1, 80, "of the kernels of all modules"),
    Column("own", "own (ms)", 3, 90, "without the modules inside it"),
    Column("backward", "backward (ms)", 3, 90, "the part that the backward of its operators is"),
    Column("step", "in a step (ms)", 3, 90, "the mean over the steady steps"),
    Column("count", "kernels", 0, 80),
    Column("path", "path", is_hidden=True),
)


_COMPARED = (
    Column("before", "before (ms)", 3, 90, "in the mean step, over all ranks, as on Compare"),
    Column("after", "after (ms)", 3, 90, "the same of this recording"),
    Column("change", "change (ms)", 3, 90),
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
    poll = dcc.Interval(id="modules-poll", interval=_POLL_MS, disabled=question.is_over)
    return [html.Div(modules_card(view, question), id="modules-answers"), poll]


def modules_card(view: View, question: PendingAnswer | None = None) -> Component | None:
    """Return the modules of the rank whose modules take longest; None if none is known.

    The numbers cover the whole capture: if a time range is chosen, there is no card.

    Args:
        view: what is looked at.
        question: the comparison with another recording, whose changes stand beside them.
    """
    known = [of_rank for of_rank in view.analysis.result.launched if of_rank.rank in view.numbers]
    chosen = max(known, key=lambda of_rank: (of_rank.in_modules_ns, -of_rank.rank), default=None)
    if chosen is None or not chosen.modules or view.address.chosen.has_range:
        return None
    whole = chosen.in_modules_ns
    uses = chosen.modules[:_MAX_ROWS]
    rows = [_row(use, whole) for use in uses]
    notes = [f"of rank {chosen.rank}, whose modules take longest together"] * (len(known) > 1)
    if len(chosen.modules) > len(uses):
        notes.append(f"{len(chosen.modules) - len(uses)} more are in JSON")
    columns: Sequence[Column] = _MODULES
    if question is not None and question.answer is not None:
        changes = {change.module: change for change in question.answer.comparison.modules}
        there = {use.module for use in chosen.modules}
        rows = [row | _change(changes.get(use.module)) for row, use in zip(rows, uses, strict=True)]
        gone = [change for path, change in changes.items() if path not in there]
        rows += [_gone(change) for change in gone[:_MAX_ROWS]]
        columns = (*_MODULES, *_COMPARED) if changes else _MODULES
        what = "at the end those of the other recording only" if changes else _NOT_COMPARED
        notes.append(what)
    elif question is not None:
        notes.append("there is no comparison" if question.is_over else "being compared …")
    return card("By module", table("modules", columns, rows, "modules.csv"), note="; ".join(notes))


def _row(use: ModuleUse, whole_ns: int) -> dict[str, Any]:
    *around, name = use.module.split(SEPARATOR)
    steady = use.in_steady_step
    return {
        "module": f"{_INDENT * len(around)}{one_line(name, _MAX_NAME)}",
        "time": use.total_ns / 1e6,
        "share": 100 * share(use.total_ns, whole_ns),
        "own": use.own_ns / 1e6,
        "backward": use.backward_ns / 1e6,
        "step": None if steady is None else steady.ns / 1e6,
        "count": use.num_kernels,
        "path": one_line(use.module, 1000),
    }


def _change(change: ModuleChange | None) -> dict[str, Any]:
    """Return what became of a module, in the columns of a comparison."""
    if change is None:
        return {}
    spent = (change.before_ns, change.after_ns)
    before, after = (None if ns is None else ns / 1e6 for ns in spent)
    return {
        "before": before,
        "after": after,
        "change": change.change_ns / 1e6,
        "sure": sure(change.p_adjusted, is_significant=change.is_significant),
    }


def _gone(change: ModuleChange) -> dict[str, Any]:
    """Return the row of a module that the tree does not have."""
    path = one_line(change.module, _MAX_NAME)
    return {"module": path, "path": path, **_change(change)}
