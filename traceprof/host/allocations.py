"""Allocations of device memory beside launches: whether a program keeps memory for later use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.host.thread_evidence import calls_named
from traceprof.patterns import lazy
from traceprof.structs import Record
from traceprof.trace.model.kinds import ApiCallKind, api_call_kind

if TYPE_CHECKING:
    from traceprof.run.rank import Rank, Window

_MALLOC = lazy(r"(?:cuda|hip)Malloc\Z")
_UNCACHED = 0.25
"""Allocations for each launch: a cache of memory needs one in hundreds, none of them later on."""
_MIN_ALLOCATIONS = 20


class Allocations(Record, frozen=True):
    """Calls of a process in a window.

    Attributes:
        num_allocations: calls of `cudaMalloc` or `hipMalloc`.
        num_launches: calls that launched kernels.
        is_hip: whether the program calls HIP.
    """

    num_allocations: int
    num_launches: int
    is_hip: bool

    @property
    def is_uncached(self) -> bool:
        """Whether the program allocates for most operations anew."""
        least = max(_UNCACHED * self.num_launches, _MIN_ALLOCATIONS)
        return self.num_allocations >= least


def allocations(rank: Rank, window: Window) -> Allocations:
    """Count the allocations and launches of a rank's process that begin in a window."""
    calls, names = rank.calls, rank.trace.api_names
    if calls is None:
        return Allocations(0, 0, is_hip=False)
    inside = window.holds_start(calls.start_ns)
    launches = [key for key, name in names.items() if api_call_kind(name) is ApiCallKind.LAUNCH]
    return Allocations(
        int(np.count_nonzero(inside & calls_named(rank, calls, _MALLOC))),
        int(np.count_nonzero(inside & calls.packed_name.isin(launches))),
        is_hip=any(names[key].startswith("hip") for key in calls.packed_name.distinct.tolist()),
    )
