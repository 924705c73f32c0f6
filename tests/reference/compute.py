"""An independent reference for what compute consists of, for tests only.

A plain loop over the kernels of an export in order of their starts: of kernels at once the one that
began first has the time. Of those that began together it is the one that ends first, then the one
whose name, grid and block come first, and graphs last.
"""

from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.reference.breakdown import default_is_communication, integers, rows
from tests.reference.streams import connect

Kind = tuple[str, str | None, bool | None]
Key = tuple[int, int]
Work = tuple[int, int, bool, tuple[str, ...], str]
"""Start, end, whether it is a graph, name with grid and block, and name."""


def compute_of(path: Path) -> dict[Key, list[Work]]:
    """What computes, by (process, device)."""
    work: dict[Key, list[Work]] = defaultdict(list)
    with closing(connect(path)) as db:
        strings: dict[Any, str] = dict(rows(db, "StringIds", "id", "value"))
        table = "CUPTI_ACTIVITY_KIND_KERNEL"
        present = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
        columns = ("start", "end", "globalPid", "deviceId", "shortName", "demangledName", "gridX",
                   "gridY", "gridZ", "blockX", "blockY", "blockZ")  # fmt: skip
        for row in rows(db, table, *columns):
            start, end, process, device, short, demangled, *shape = integers(*row)
            if start is None or end is None or process is None or device is None or end < start:
                continue
            if default_is_communication(strings.get(short), strings.get(demangled)):
                continue
            text = strings.get(demangled if "demangledName" in present else short, "")
            order = (text, *(f"{-1 if size is None else size:020}" for size in shape))
            work[process, device].append((start, end, False, order, text))
        for row in rows(db, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", *columns[:4]):
            start, end, process, device = integers(*row)
            if start is None or end is None or process is None or device is None or end < start:
                continue
            work[process, device].append((start, end, True, (), ""))
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
