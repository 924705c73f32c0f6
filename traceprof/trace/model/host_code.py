"""Code that the host ran: operators of a framework, functions of Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.trace.model.packed_spans import PackedSpans
from traceprof.trace.model.special_values import NULL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.intervals import Int64
    from traceprof.trace.columns import Column


class HostCode(PackedSpans, frozen=True):
    """Operators, or functions of Python, of one process, ordered by start.

    Attributes:
        packed_thread: n threads.
        packed_name: n indices into `names`.
        external: n ids that join an operator with the calls and GPU operations inside it, NULL
            for none; None for functions of Python.
        sequence: n numbers that join operators of the forward with those of the backward, NULL for
            none; None for functions of Python.
        packed_work: n indices into `work`; None for functions of Python.
        work: int64[m, 3], multiplications and additions by the operator's formula, NULL if it
            has none or its shapes are not known; and the bytes that it moves at least, and those of
            them that it reads, negative where that is unknown.
        names: the names of the whole trace.
    """

    packed_thread: Column
    packed_name: Column
    external: Column | None
    sequence: Column | None
    packed_work: Column | None
    work: Int64
    names: Sequence[str]

    def work_of(self, index: Int64 | slice) -> Int64:
        """Return the work of some operators, int64[3, k], as in `work`; unknown for functions."""
        if self.packed_work is None:
            return np.full((3, len(self.starts.at(index))), NULL)
        return self.work[self.packed_work.at(index)].T
