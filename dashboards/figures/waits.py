"""The matrix of waits between ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dashboards.view import MAX_NAME
from dashboards.widgets.palette import BLUE
from dashboards.widgets.worst import MAX_DRAWN
from traceprof.errors import one_line
from traceprof.units import duration, ranks_text

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from traceprof.intervals import Int64
    from traceprof.ranks.comparison import RankComparison


MAX_APART = 2
"""Machines whose many ranks are drawn by themselves, as the two of a cell are once it is opened."""
_MAX_TITLE = 24  # characters of a machine beside the matrix
_Name = dict[str, Any]  # of a row or column: title, name, and of a machine the ranks


def wait_matrix(comparison: RankComparison, shown: Collection[int]) -> dict[str, Any] | None:
    """Return the time that each rank waited in collectives for each other rank; None if none did.

    Args:
        comparison: of the ranks of the run.
        shown: the numbers of the ranks to draw; many, of over two machines, are drawn by machine.
            Of many machines, or many ranks of two, those that waited and were waited for most are
            drawn.
    """
    order = sorted(
        (number, member) for member, number in enumerate(comparison.ranks) if number in shown
    )
    members = [member for _, member in order]
    waited = comparison.matrix_ns[np.ix_(members, members)]
    if not waited.any():
        return None
    if len(order) > MAX_DRAWN:
        groups, names = _by_machine(comparison, order)
        if len(names) > MAX_APART:
            waited = np.add.reduceat(waited[groups.order], groups.first, axis=0)
            waited = np.add.reduceat(waited[:, groups.order], groups.first, axis=1)
        else:
            names = _names(comparison, order)
        # Those that waited most, and those that were waited for most.
        rows, columns = (
            np.sort(np.argsort(-waited.sum(axis=axis), kind="stable")[:MAX_DRAWN]).tolist()
            for axis in (1, 0)
        )
        return _matrix(
            waited[np.ix_(rows, columns)], [names[at] for at in rows], [names[at] for at in columns]
        )
    names = _names(comparison, order)
    return _matrix(waited, names, names)


class _Groups(NamedTuple):
    """Ranks by machine: their order, and where each machine begins in it, int64 each."""

    order: Int64
    first: Int64


def _by_machine(
    comparison: RankComparison, order: Sequence[tuple[int, int]]
) -> tuple[_Groups, list[_Name]]:
    machines = [comparison.machines[member] for _, member in order]
    distinct = list(dict.fromkeys(machines))
    number = np.array([distinct.index(machine) for machine in machines])
    sorted_ = np.argsort(number, kind="stable")
    titles = []
    for machine in distinct:
        of_machine = [rank for rank, member in order if comparison.machines[member] == machine]
        name = f"{one_line(machine, MAX_NAME)} ({ranks_text(of_machine)})"
        title = one_line(machine, _MAX_TITLE)
        titles.append({"title": title, "name": name, "ranks": of_machine})
    return _Groups(sorted_, np.searchsorted(number[sorted_], np.arange(len(distinct)))), titles


def _names(comparison: RankComparison, order: Sequence[tuple[int, int]]) -> list[_Name]:
    return [
        {
            "title": f"rank {number}",
            "name": f"rank {number} ({one_line(comparison.machines[member], MAX_NAME)})",
        }
        for number, member in order
    ]


def _matrix(waited: Int64, rows: Sequence[_Name], columns: Sequence[_Name]) -> dict[str, Any]:
    return {
        "kind": "matrix",
        "axis": "the rank that came last",
        "side": "the rank that waited",
        "color": BLUE,
        "high": float(waited.max()) / 1e6,
        "between": "waited for",
        "columns": list(columns),
        "rows": [
            name
            | {
                "values": [waited_ns / 1e6 if waited_ns else None for waited_ns in of_rank],
                "texts": [duration(waited_ns) if waited_ns else None for waited_ns in of_rank],
                "notes": None,
            }
            for name, of_rank in zip(rows, waited.tolist(), strict=True)
        ],
    }
