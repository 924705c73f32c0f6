"""An independent reference for what compute consists of, for tests only.

A plain loop over the kernels of an export in order of their starts: of kernels at once the one that
began first has the time. Of those that began together it is the one that ends first, then the one
whose name, grid and block come first, and graphs last.
"""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from tests.reference.nsight_export import COMPUTE, Operation
from tests.reference.streams import read

Kind = tuple[str, str | None, bool | None]
Key = tuple[int, int]
Work = tuple[int, int, bool, tuple[str, ...], str]
"""Start, end, whether it is a graph, name with grid and block, and name."""


def compute_of(path: Path) -> dict[Key, list[Work]]:
    """What computes, by (process, device)."""
    return {
        (rank.process, rank.device): [_work(op) for op in rank.of_kind(COMPUTE)]
        for rank in read(path)
    }


def _work(op: Operation) -> Work:
    if op.table == "GRAPH_TRACE":
        return op.start, op.end, True, (), ""
    sizes = (f"{-1 if size is None else size:020}" for size in op.shape)
    return op.start, op.end, False, (op.name or "", *sizes), op.name or ""


def parts(
    work: list[Work], window: tuple[int, int], kind_of: Callable[[str], Kind]
) -> dict[Kind, int]:
    """Time of each kind in a window; kinds without any are left out."""
    spent: dict[Kind, int] = defaultdict(int)
    reached = window[0]
    for start, end, is_graph, _, name in sorted(work):
        begin, stop = max(start, reached), min(end, window[1])
        if begin < stop:
            spent[("graph", None, None) if is_graph else kind_of(name)] += stop - begin
            reached = stop
    return dict(spent)
