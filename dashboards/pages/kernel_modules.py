"""The modules of the model that launched kernels, as a tree: a card of the page Kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dashboards.widgets.components import card
from dashboards.widgets.tables import Column, table
from traceprof.analyses.kernels.launched_modules import SEPARATOR
from traceprof.errors import one_line
from traceprof.findings import share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dash.development.base_component import Component

    from dashboards.view import View
    from traceprof.analyses.kernels.launched_modules import ModuleUse

_MAX_ROWS = 500
_MAX_NAME = 120  # characters
_INDENT = "\u2003"

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


def modules_card(view: View) -> Component | None:
    """Return the modules of the rank whose modules take longest; None where none is known.

    They are of all of the time: where a time is chosen there is no card.
    """
    known = [one for one in view.analysis.result.launched if one.rank in view.numbers]
    chosen = max(known, key=lambda one: (total_ns(one.modules), -one.rank), default=None)
    if chosen is None or not chosen.modules or view.address.chosen.has_range:
        return None
    whole = total_ns(chosen.modules)
    rows = [_row(use, whole) for use in chosen.modules[:_MAX_ROWS]]
    note = f"of rank {chosen.rank}, whose modules take longest together" if len(known) > 1 else ""
    if len(chosen.modules) > len(rows):
        note = "; ".join(
            filter(None, (note, f"{len(chosen.modules) - len(rows)} more are in JSON"))
        )
    return card("By module", table("modules", _MODULES, rows, "modules.csv"), note=note)


def total_ns(modules: Sequence[ModuleUse]) -> int:
    """Return what the kernels of the outermost modules take together."""
    return sum(use.total_ns for use in modules if SEPARATOR not in use.module)


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
