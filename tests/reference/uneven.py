"""An independent reference for `uneven-kernels`, for tests only: plain loops over plain lists.

Of ``traceprof`` it takes which steps are steady, and what names mean, as functions.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.reference.spans import covered
from tests.reference.streams import COMMUNICATION, COMPUTE, Operation, Rank, spans_of

Steps = dict[int, tuple[int, int]]
Place = tuple[int, int, str, int, int]  # step, communication before, name, how many, which one
FOLDS = 8


class Expected(NamedTuple):
    by_step: dict[int, list[float]]  # what each rank is beyond the others, by the step's number
    constant: list[float]  # by step, of the rank that is the longest in all other steps
    changing: list[float]  # by step, of the rank that is the longest in other kernels of a part
    compared: float  # the share of compute


class Kernel(NamedTuple):
    length: int
    beside: str


def expected(
    ranks: Sequence[Rank], steps: Sequence[Steps], name_of: Callable[[str], str]
) -> Expected:
    """Return the same as `unevenness` measures, of ranks with the same steps."""
    by_place: dict[Place, dict[int, Kernel]] = defaultdict(dict)
    blocking: dict[int, list[bool]] = defaultdict(list)
    compute_ns = 0
    for number, (rank, of_rank) in enumerate(zip(ranks, steps, strict=True)):
        communicating = spans_of(rank.of_kind(COMMUNICATION))
        computing = rank.of_kind(COMPUTE)
        for step, (low, high) in of_rank.items():
            kernels = [
                op for op in rank.operations if op.table == "KERNEL" and low <= op.start < high
            ]
            kernels.sort(key=lambda op: (op.call.start if op.call else op.start, op.start))
            compute_ns += sum(op.end - op.start for op in kernels if op.kind == COMPUTE)
            for place, op in placed(step, kernels, name_of):
                by_place[place][number] = Kernel(
                    op.end - op.start, state(op, computing, communicating)
                )
            add_blocking(kernels, blocking)
    meets = {part for part, held in blocking.items() if 2 * sum(held) > len(held)}
    parts: dict[tuple[int, int], list[tuple[float, Place, dict[int, float]]]] = defaultdict(list)
    compared = 0
    for place, of_ranks in by_place.items():
        states = {kernel.beside for kernel in of_ranks.values()}
        if len(of_ranks) < 2 or len(states) > 1 or states == {"disturbed"}:
            continue
        compared += sum(kernel.length for kernel in of_ranks.values())
        mean = sum(kernel.length for kernel in of_ranks.values()) / len(of_ranks)
        part = place[0], sum(before < place[1] for before in meets)
        beyond = {rank: kernel.length - mean for rank, kernel in of_ranks.items()}
        parts[part].append((mean, place, beyond))
    by_step = {step: [0.0] * len(ranks) for step in steps[0]}
    changing = dict.fromkeys(steps[0], 0.0)
    for (step, _), places in parts.items():
        total = [sum(beyond.get(rank, 0) for _, _, beyond in places) for rank in range(len(ranks))]
        by_step[step] = [a + b for a, b in zip(by_step[step], total, strict=True)]
        places.sort(key=lambda item: -item[0])
        for fold in range(FOLDS):
            chosen = [
                beyond
                for index, (_, _, beyond) in enumerate(places)
                if min(index % (2 * FOLDS), 2 * FOLDS - 1 - index % (2 * FOLDS)) == fold
            ]
            own = [sum(beyond.get(rank, 0) for beyond in chosen) for rank in range(len(ranks))]
            others = [a - b for a, b in zip(total, own, strict=True)]
            if len(chosen) < len(places):
                changing[step] += own[others.index(max(others))]
    whole = [sum(column) for column in zip(*by_step.values(), strict=True)]
    constant = []
    for values in by_step.values():
        others = [a - b for a, b in zip(whole, values, strict=True)]
        constant.append(values[others.index(max(others))])
    return Expected(by_step, constant, [*changing.values()], compared / max(compute_ns, 1))


def placed(
    step: int, kernels: Sequence[Operation], name_of: Callable[[str], str]
) -> list[tuple[Place, Operation]]:
    groups: dict[tuple[int, str], list[Operation]] = defaultdict(list)
    before = 0
    for op in kernels:
        if op.kind == COMMUNICATION:
            before += 1
        else:
            groups[before, re.sub(r"0x[0-9a-fA-F]+|\d+", "#", name_of(op.demangled))].append(op)
    return [
        ((step, before, name, len(group), index), op)
        for (before, name), group in groups.items()
        for index, op in enumerate(group)
    ]


def state(
    op: Operation, computing: Sequence[Operation], communicating: list[tuple[int, int]]
) -> str:
    """What ran beside a kernel."""
    if any(
        other is not op and max(other.start, op.start) < min(other.end, op.end)
        for other in computing
    ):
        return "disturbed"
    beside = covered(communicating, op.start, op.end)
    if not beside:
        return "alone"
    return "beside" if 2 * beside >= op.end - op.start else "disturbed"


def add_blocking(kernels: Sequence[Operation], blocking: dict[int, list[bool]]) -> None:
    number = 0
    for index, op in enumerate(kernels):
        if op.kind != COMMUNICATION:
            continue
        after = next((later for later in kernels[index:] if later.kind == COMPUTE), None)
        if after is not None:
            blocking[number].append(after.start >= op.end)
        number += 1
