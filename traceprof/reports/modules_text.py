"""The modules of the text report: which parts of the model take the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from traceprof.analyses.kernels.launched_modules import SEPARATOR
from traceprof.findings import share
from traceprof.reports.tables import name_text, new_table
from traceprof.units import counted, duration, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from traceprof.analyses.verdict.run_result import RunResult

MAX_MODULES = 30  # of one rank; the JSON has them all
_MIN_SHARE = 0.01  # of the kernels: less is not worth a line


def module_table(analysis: RunResult) -> Iterator[RenderableType]:
    """Yield the modules of the rank whose modules take longest; nothing if none is known."""
    ranks = [(launched.in_modules_ns, launched) for launched in analysis.launched]
    total, chosen = max(ranks, key=lambda item: (item[0], -item[1].rank), default=(0, None))
    if chosen is None or not total:
        return
    if len(analysis.launched) > 1:
        yield Text(f"rank {chosen.rank}, whose modules take longest together ({duration(total)})")
    table = new_table("time", "share", "own", "backward", "kernels", "module", left=("module",))
    shown = [use for use in chosen.modules if use.total_ns >= _MIN_SHARE * total]
    for use in shown[:MAX_MODULES]:
        *around, name = use.module.split(SEPARATOR)
        table.add_row(
            duration(use.total_ns),
            percent(share(use.total_ns, total)),
            duration(use.own_ns),
            duration(use.backward_ns),
            str(use.num_kernels),
            name_text(f"{'  ' * len(around)}{name}"),
        )
    yield table
    left_out = len(chosen.modules) - len(shown[:MAX_MODULES])
    if left_out:
        yield Text(f"… and {counted(left_out, 'more module')}: --format json has them all")
