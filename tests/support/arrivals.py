"""Arrivals of ranks, written by hand: what happened on each is lists of numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from traceprof.intervals import Int64
from traceprof.ranks.arrivals import TIME_CATEGORIES, Arrivals
from traceprof.trace.model.communication_calls import OPERATIONS
from traceprof.trace.model.trace import Session


def column(values: object, num: int) -> Int64:
    """Return int64[n] of a list, or of one number for all."""
    filled: Int64 = np.broadcast_to(np.asarray(values, np.int64), (num,)).copy()
    return filled


def arrivals(
    rank: int, start: Sequence[int], end: Sequence[int], *, report: int | None = None,
    operation: str = "AllReduce", communicator: str | None = None, group: str | None = None,
    num_kernels: int | None = None, blocked: Sequence[int] | None = None,
    spent: Mapping[str, Sequence[int]] | None = None, **columns: Any,
) -> Arrivals:  # fmt: skip
    """Return a rank's communication kernels, or, beyond `num_kernels`, its calls of MPI.

    `spent` gives, by name, what each part of the time took up to each start; between a start and
    its end nothing is spent.
    """
    num = len(start)
    given = {name: column(values, num) for name, values in columns.items()}
    unknown = np.full(num, -1, np.int64)
    parts = np.zeros((num, len(TIME_CATEGORIES)), np.int64)
    for name, values in (spent or {}).items():
        parts[:, TIME_CATEGORIES.index(name)] = values
    stalled, kernels = given.pop("stalled", unknown * 0), given.pop("kernels", unknown * 0)
    inside = given.pop("inside", np.ones(num, np.int64)) > 0
    names = ("bytes", "sequence", "peer", "root", "peer_in_communicator", "direction")
    defaults = dict.fromkeys((*names, "world_size", "called_ns", "launch_ns"), unknown)
    return Arrivals(
        rank=rank,
        report=rank if report is None else report,
        device=0,
        start_ns=column(start, num),
        end_ns=column(end, num),
        blocked_ns=column(start if blocked is None else blocked, num),
        is_inside=inside,
        is_judged=inside,
        operation=column(OPERATIONS.index(operation), num),
        communicator=column(-1 if communicator is None else 0, num),
        group=column(-1 if group is None else 0, num),
        stream=given.pop("stream", column(7, num)),
        **(defaults | given),
        cumulative_ns_at_start=parts,
        spent_at_end_ns=parts.copy(),
        stalled_at_start_ns=stalled,
        stalled_at_end_ns=stalled,
        kernels_at_start=kernels,
        kernels_at_end=kernels,
        window_ns=1_000_000,
        operations=OPERATIONS,
        communicators=() if communicator is None else (communicator,),
        groups=() if group is None else (group,),
        num_kernels=num if num_kernels is None else num_kernels,
    )


def session(host: str | None, start: int | None = 0, *, is_utc: bool = False) -> Session:
    """Return a session that began so many ns after some time in 2026."""
    utc = None if start is None else 1_767_225_600_000_000_000 + start
    return Session(host, None, utc, is_utc, (), {})
