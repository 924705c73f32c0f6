"""The time of a rank before or after its training, which no finding is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.host.idle_causes import IdleCause, idle_causes
from traceprof.run.rank import Window
from traceprof.structs import Record
from traceprof.trace.model.kinds import CopyKind
from traceprof.trace.model.parts import Part

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.run.rank import Rank


class Surroundings(Record, frozen=True):
    """Copies and idle time before or after the training."""

    bytes_to_gpu: int  # what was copied to the GPU in it: the model, if it was uploaded
    idle_by_cause: Mapping[IdleCause, int]  # why the GPU idled, in ns; empty if that is unknown


def surroundings(rank: Rank, start_ns: int, end_ns: int) -> Surroundings | None:
    """Return the surroundings of a rank's training; None without any time, and without a GPU.

    Args:
        rank: the rank.
        start_ns: when the time begins.
        end_ns: when it is over.
    """
    if end_ns <= start_ns or rank.device is None:
        return None
    copies = rank.operations.copies
    inside = (copies.start_ns >= start_ns) & (copies.start_ns < end_ns)
    to_gpu = inside & (copies.kind == CopyKind.HOST_TO_DEVICE)
    causes: dict[IdleCause, int] = {}
    if rank.trace.holds(Part.API_CALLS):
        within = idle_causes(rank).within(Window(start_ns, end_ns))
        causes = {cause: idle_ns for cause, idle_ns in within.items() if idle_ns}
    return Surroundings(intervals.total(np.maximum(copies.bytes[to_gpu], 0)), causes)
