"""Code that the host ran: operators of a framework, functions of Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceprof.trace.model.packed_spans import PackedSpans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.trace.columns import Column


@dataclass(frozen=True, slots=True)
class HostCode(PackedSpans):
    """Operators, or functions of Python, of one process, ordered by start.

    Attributes:
        packed_thread: n threads.
        packed_name: n indices into `names`.
        external: n ids that join an operator with the calls and GPU operations inside it, NULL
            for none; None for functions of Python.
        sequence: n numbers that join operators of the forward with those of the backward, NULL for
            none; None for functions of Python.
        flops: n numbers of multiplications and additions by the operator's formula, NULL where it
            has none or its shapes are not known; None for functions of Python.
        moved: n numbers of bytes that the operator moves at least, -1 where that is not known; None
            for functions of Python.
        names: the names of the whole trace.
    """

    packed_thread: Column
    packed_name: Column
    external: Column | None
    sequence: Column | None
    flops: Column | None
    moved: Column | None
    names: Sequence[str]
