"""The kernels of a rank by name: number, total and median time, or some as evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np
from msgspec import Struct

from traceprof.analyses.kernels.kernel_steps import InSteadyStep, in_steady_steps
from traceprof.analyses.shape.results import RankResult
from traceprof.findings import Count, Evidence
from traceprof.kernel_names.categories import KernelKind, kernel_kind
from traceprof.kernel_names.titles import short_title
from traceprof.run.steady_steps import steady_steps
from traceprof.trace.grouping import distinct_values, sorted_in_groups

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from traceprof.intervals import Int64, Mask
    from traceprof.run.rank import Rank, Window


class KernelUse(Struct, frozen=True):
    """The kernels of one name; `in_steady_step` is None of a name that occurs in none."""

    name: Annotated[str, "Demangled name, where the report has it."]
    kind: KernelKind
    count: Annotated[Count, "Kernels that start in the window."]
    total_ns: Annotated[Count, "Sum of their durations."]
    median_ns: Annotated[Count, "Median of their durations, rounded down."]
    per_step_ns: Annotated[
        Count | None, "Their time in a training step, mean over steps; null without steps."
    ]
    in_steady_step: InSteadyStep | None


class KernelTable(RankResult, frozen=True):
    """The kernels of one rank that start in a window, by name, the longest together first.

    Attributes:
        names: m demangled names.
        communicates: bool[m], by the patterns that hold for the run.
        count: int64[m].
        total_ns: m sums of durations.
        median_ns: int64[m].
        in_steps_ns: m sums over the training steps that lie in the window; None without any.
        num_steps: how many these are.
        steady: of each name, what its kernels take in a steady step.
    """

    names: tuple[str, ...]
    communicates: Mask
    count: Int64
    total_ns: tuple[int, ...]
    median_ns: Int64
    in_steps_ns: tuple[int, ...] | None
    num_steps: int
    steady: tuple[InSteadyStep | None, ...]

    def __iter__(self) -> Iterator[KernelUse]:
        """Yield each name, the one with the most time first."""
        for index, name in enumerate(self.names):
            in_steps = None if self.in_steps_ns is None else self.in_steps_ns[index]
            yield KernelUse(
                name=name,
                kind=kernel_kind(name, communicates=bool(self.communicates[index])),
                count=int(self.count[index]),
                total_ns=self.total_ns[index],
                median_ns=int(self.median_ns[index]),
                per_step_ns=None if in_steps is None else in_steps // self.num_steps,
                in_steady_step=self.steady[index],
            )


def run(rank: Rank, window: Window, judged: Window | None = None) -> KernelTable:
    """Add up the kernels that start in a window, including communication.

    Args:
        rank: the rank.
        window: what is listed.
        judged: what findings are about, whose steady steps are compared; the same where not given.
    """
    kernels = rank.operations.kernels
    chosen = np.flatnonzero(window.holds_start(kernels.start_ns))
    # Several ids may stand for the same text.
    ids = distinct_values(kernels.name_of_signature)
    names = sorted({rank.kernel_names[id_] for id_ in ids.tolist()})
    place = {name: index for index, name in enumerate(names)}
    of_id = np.array([place[rank.kernel_names[id_]] for id_ in ids.tolist()], np.int64)
    of_signature = of_id[np.searchsorted(ids, kernels.name_of_signature)]
    which = of_signature.take(kernels.packed_signature.at(chosen))
    length = kernels.packed_length.at(chosen)
    count, total, median = _by_name(which, length, len(names))
    start = kernels.start_ns.take(chosen)
    steps = _steps_within(rank, window)
    in_steps: list[int] | None = None
    if steps is not None:
        first, stop = np.searchsorted(start, steps[:2], side="left").tolist()
        in_steps = total
        if stop - first < len(chosen):
            in_steps = _by_name(which[first:stop], length[first:stop], len(names))[1]
    alike = steady_steps(rank, judged or window)
    steady = in_steady_steps(start, length, which, len(names), alike)
    order = sorted(np.flatnonzero(count).tolist(), key=lambda index: (-total[index], names[index]))
    communicates = np.zeros(len(names), np.bool_)
    for id_, index in zip(ids.tolist(), of_id.tolist(), strict=True):
        communicates[index] |= id_ in rank.communication_operations
    return KernelTable(
        rank=rank.rank,
        names=tuple(names[index] for index in order),
        communicates=communicates[order],
        count=count[order],
        total_ns=tuple(total[index] for index in order),
        median_ns=median[order],
        in_steps_ns=None if in_steps is None else tuple(in_steps[index] for index in order),
        num_steps=0 if steps is None else steps[2],
        steady=tuple(steady[index] for index in order),
    )


def kernel_evidence(rank: Rank, window: Window, texts: Mapping[int, str]) -> tuple[Evidence, ...]:
    """Show kernels of a rank within a window, each with its name.

    Args:
        rank: the rank.
        window: the time that is judged.
        texts: what is shown after the name, by the kernel's index.
    """
    kernels, chosen = rank.operations.kernels, np.array([*texts], np.int64)
    start = np.maximum(kernels.start_ns[chosen], window.start_ns).tolist()
    end = np.minimum(kernels.ends(chosen), window.end_ns).tolist()
    names = [short_title(rank.kernel_names[kernels.name_id(kernel)]) for kernel in texts]
    labels = [f"{name}{text}" for name, text in zip(names, texts.values(), strict=True)]
    return tuple(map(Evidence, start, end, labels))


def _by_name(which: Int64, length_ns: Int64, num_names: int) -> tuple[Int64, list[int], Int64]:
    """Count, add up and find the median of the durations of each name.

    Args:
        which: int64[n], the name of each kernel.
        length_ns: int64[n].
        num_names: how many names there are, m.

    Returns:
        int64[m] counts, m sums and int64[m] medians; 0 if there is no kernel.
    """
    count = np.bincount(which, minlength=num_names)
    ordered = sorted_in_groups(length_ns, which)
    used = np.flatnonzero(count)
    first = (np.cumsum(count) - count)[used]
    median = np.zeros(num_names, np.int64)
    total = [0] * num_names
    if len(used):
        low = ordered[first + (count[used] - 1) // 2]
        high = ordered[first + count[used] // 2]
        median[used] = low + (high - low) // 2
        # Exact also where a sum does not fit 64 bits.
        upper = np.add.reduceat(ordered >> 32, first).tolist()
        lower = np.add.reduceat(ordered & 0xFFFF_FFFF, first).tolist()
        for index, above, below in zip(used.tolist(), upper, lower, strict=True):
            total[index] = (above << 32) + below
    return count, total, median


def _steps_within(rank: Rank, window: Window) -> tuple[int, int, int] | None:
    """Return start, end and number of the training steps that lie in the window."""
    steps = rank.steps
    if steps is None:
        return None
    inside = (steps.start_ns >= window.start_ns) & (steps.end_ns <= window.end_ns)
    if not inside.any():
        return None
    return int(steps.start_ns[inside].min()), int(steps.end_ns[inside].max()), int(inside.sum())
