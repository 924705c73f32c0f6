"""NCCL's calls and groups, against a walk over the ranges one by one."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceprof.trace.nsight.nccl import grouped

CALL, BEGINS, CLOSES, OTHER = range(4)


@dataclass
class Walk:
    """What one after the other of a process's ranges leads to."""

    calls: list[int] = field(default_factory=list)
    launches: list[int] = field(default_factory=list)
    launch_of: dict[int, int] = field(default_factory=dict)

    def thread(self, rows: list[tuple[int, int, int, int]]) -> None:
        depth, over, group = 0, None, list[int]()
        for index, start, end, kind in rows:
            if over is not None and start < over:
                continue
            if kind == BEGINS:
                depth += 1
                group = group if depth > 1 else []
            elif kind == CLOSES:
                was_open, depth = depth > 0, max(depth - 1, 0)
                if depth == 0:
                    for call in group if was_open else ():
                        self.launch_of[call] = len(self.launches)
                    self.launches.append(index)
                    group = []
            elif kind == CALL:
                over = end
                self.calls.append(index)
                if depth:
                    group.append(index)
                else:
                    self.launch_of[index] = len(self.launches)
                    self.launches.append(index)


Tree = tuple[int, int, list[Any]]
# Ranges of a thread lie beside or inside each other.
NESTED: st.SearchStrategy[Tree] = st.recursive(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.just([])),
    lambda inside: st.tuples(st.integers(0, 3), st.integers(0, 3), st.lists(inside, max_size=4)),
    max_leaves=12,
)


def laid_out(trees: list[Tree], time: int = 0) -> list[list[int]]:
    rows = []
    for kind, length, inside in trees:
        within = laid_out(inside, time)
        end = max([time + length, *(row[1] for row in within)])
        rows += [[time, end, kind], *within]
        time = end
    return rows


@pytest.mark.long
@given(st.lists(st.lists(NESTED, max_size=8), max_size=3))
def test_as_one_walks(threads: list[list[Tree]]) -> None:
    walk, columns = Walk(), list[tuple[int, int, int, int]]()
    for number, trees in enumerate(threads):
        rows = laid_out(trees)
        walk.thread([(len(columns) + at, *row) for at, row in enumerate(rows)])  # type: ignore[misc]
        columns += [(*row, number) for row in rows]  # type: ignore[misc]
    start, end, kind, thread = np.array(columns, np.int64).reshape(-1, 4).T
    call, launch, launch_of_call = grouped(
        start, end, thread, kind == CALL, kind == BEGINS, kind == CLOSES
    )
    assert call.tolist() == walk.calls
    assert launch.tolist() == walk.launches
    assert launch_of_call.tolist() == [walk.launch_of.get(row, -1) for row in walk.calls]
