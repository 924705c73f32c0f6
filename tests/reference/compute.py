"""An independent reference for what compute consists of, for tests only.

A plain loop over the kernels of an export in order of their starts: of kernels at once the one that
began first has the time. Of those that began together it is the one that ends first, then the one
whose name, grid and block come first, and graphs last.
"""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from tests.reference.breakdown import SHAPE, default_is_communication, opened, operation_rows

Kind = tuple[str, str | None, bool | None]
Key = tuple[int, int]
Work = tuple[int, int, bool, tuple[str, ...], str]
"""Start, end, whether it is a graph, name with grid and block, and name."""


def compute_of(path: Path) -> dict[Key, list[Work]]:
    """What computes, by (process, device)."""
    work: dict[Key, list[Work]] = defaultdict(list)
    with opened(path) as (db, strings):
        present = {row[1] for row in db.execute("PRAGMA table_info(CUPTI_ACTIVITY_KIND_KERNEL)")}
        columns = ("shortName", "demangledName", *SHAPE)
        for table, start, end, process, device, *more in operation_rows(db, *columns):
            if table == "GRAPH_TRACE":
                work[process, device].append((start, end, True, (), ""))
            if table != "KERNEL":
                continue
            short, demangled, *shape = more
            if default_is_communication(strings.get(short), strings.get(demangled)):
                continue
            text = strings.get(demangled if "demangledName" in present else short, "")
            order = (text, *(f"{-1 if size is None else size:020}" for size in shape))
            work[process, device].append((start, end, False, order, text))
    return work


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
