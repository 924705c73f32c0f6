"""The main compute of a rank: the program's actual work, without uploads and set-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.kernel_names.categories import is_main_compute
from traceprof.run.launching_calls import launching_calls
from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from traceprof.intervals import Int64, Intervals, Mask
    from traceprof.trace.model.host import ApiCalls
    from traceprof.trace.model.operations import Operations, RankOperations


class MainCompute(Record, frozen=True):
    """The operations of a rank that are its main compute.

    Attributes:
        kernels: bool[kernels].
        has_graphs: whether it includes CUDA graphs that were traced as a whole.
        name: the kernel that takes most time, if main compute was not recognised by kernel names.
    """

    kernels: Mask
    has_graphs: bool
    name: str | None


def main_compute(
    operations: RankOperations, names: Mapping[int, str], communicates: Mapping[int, str]
) -> MainCompute:
    """Return the main compute: matrix multiplications, else the kernel that takes most time.

    Args:
        operations: of the rank.
        names: demangled kernel names by the ids in `operations.kernels.name`.
        communicates: communication operations by the same ids.
    """
    kernels = operations.kernels
    name_of_signature = kernels.name_of_signature.tolist()
    signature = kernels.signature
    num_signatures = len(name_of_signature)
    is_run = np.bincount(signature, minlength=num_signatures) > 0
    used = [
        index
        for index in np.flatnonzero(is_run).tolist()
        if name_of_signature[index] not in communicates
    ]
    texts = {index: names[name_of_signature[index]] for index in used}
    is_main = {text: is_main_compute(text) for text in {*texts.values()}}
    if any(is_main.values()):
        chosen = [index for index, text in texts.items() if is_main[text]]
        return MainCompute(_have(signature, chosen, num_signatures), has_graphs=False, name=None)
    time = np.bincount(signature, kernels.length_ns, minlength=num_signatures)
    time_of: dict[str, float] = {}
    if len(operations.graphs):
        time_of[""] = float(operations.graphs.length_ns.sum())
    for index, text in texts.items():
        time_of[text] = time_of.get(text, 0.0) + float(time[index])
    longest = min(time_of, key=lambda text: (-time_of[text], text), default=None)
    chosen = [index for index, text in texts.items() if text == longest]
    mask = _have(signature, chosen, num_signatures)
    return MainCompute(mask, has_graphs=longest == "", name=longest)


def first_main_compute(
    operations: RankOperations,
    names: Mapping[int, str],
    communicates: Mapping[int, str],
    launched_by: tuple[Int64, Int64],
    calls: ApiCalls | None,
    warm_up: Intervals,
) -> int | None:
    """Return the start of the main compute, after any warm-up; None if there is no main compute.

    Args:
        operations: of the rank.
        names: demangled kernel names by the ids in `operations.kernels.name`.
        communicates: communication operations by the same ids.
        launched_by: for kernels and graphs, the index of the call that launched each; -1 for none.
        calls: of the process, None if unknown.
        warm_up: when the process warmed up.
    """
    main = main_compute(operations, names, communicates)
    first: list[int] = []
    warm: list[int] = []
    groups = _groups(operations, main)
    for (group, chosen), call in zip(groups, launched_by, strict=False):
        if not chosen.any():
            continue
        start = group.start_ns[chosen]
        warm.append(int(start[0]))
        is_cold = call[chosen] >= 0
        if len(warm_up) and calls is not None and is_cold.any():
            launched = calls.start_ns[np.maximum(call[chosen], 0)]
            is_cold &= _are_outside(launched, warm_up)
        if is_cold.any():
            first.append(int(start[is_cold.argmax()]))
    return min(first or warm, default=None)


def first_launch(
    devices: Iterable[RankOperations],
    names: Mapping[int, str],
    communicates: Mapping[int, str],
    calls: ApiCalls,
    warm_up: Intervals,
) -> int | None:
    """Return when a process first launched main compute, on any device; None if it did not.

    Args:
        devices: the operations of the process on each.
        names: demangled kernel names by the ids in `kernels.name`.
        communicates: communication operations by the same ids.
        calls: of the process.
        warm_up: when the process warmed up; launches then count only if there are no others.
    """
    first: list[int] = []
    for operations in devices:
        main = main_compute(operations, names, communicates)
        groups = _groups(operations, main)
        call = np.concatenate([launching_calls(group, calls)[chosen] for group, chosen in groups])
        launched = calls.start_ns[call[call >= 0]]
        cold = launched[_are_outside(launched, warm_up)]
        launched = cold if len(cold) else launched
        if len(launched):
            first.append(int(launched.min()))
    return min(first, default=None)


def _groups(operations: RankOperations, main: MainCompute) -> list[tuple[Operations, Mask]]:
    graphs = operations.graphs
    groups: list[tuple[Operations, Mask]] = [(operations.kernels, main.kernels)]
    return groups + [(graphs, np.ones(len(graphs), np.bool_))] * main.has_graphs


def _are_outside(times_ns: Int64, covered: Intervals) -> Mask:
    mask: Mask = intervals.covered_within(covered, times_ns, times_ns + 1) == 0
    return mask


def _have(signature: npt.NDArray[np.int64], chosen: list[int], num_signatures: int) -> Mask:
    has = np.zeros(num_signatures, np.bool_)
    has[chosen] = True
    mask: Mask = has[signature]
    return mask
