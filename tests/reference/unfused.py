"""An independent reference for `unfused-kernels`, for tests only.

Plain lists: each stream's operations in order of their starts (kernels before others), walked once.
Of ``traceprof`` it takes only what names mean, which it is given as a function.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from tests.reference.nsight_export import COMMUNICATION, Operation
from tests.reference.spans import Span, clipped, length, union, without
from tests.reference.streams import Rank

BY_MEMORY = {"elementwise", "reduction", "normalization"}
LISTS = ("multi_tensor_apply_kernel", "foreach_tensor")
OPTIMIZER_RANGE = re.compile(r"optimizer step(?: .*)?|Optimizer\.step#.*", re.DOTALL)


class Expected(NamedTuple):
    kernel_ns: int
    optimizer_ns: int
    attention_ns: int
    num_kernels: int
    num_chains: int
    longest_chain: int
    idle_ns: int
    saved_ns: int


def is_list(operation: Operation) -> bool:
    name = operation.demangled.replace("<unnamed>", "").replace("(anonymous namespace)", "")
    head = name.partition("<")[0].partition("(")[0]
    return any(word in head for word in LISTS)


def is_fused(operation: Operation) -> bool:
    return operation.demangled.startswith("triton_") or "fusion" in operation.demangled


def chains_of(
    rank: Rank, window: Span, category: Callable[[str], str], steps: Sequence[int],
    optimizer: list[Span] | None, *, is_whole: bool,
) -> list[list[Operation]]:  # fmt: skip
    """All chains of a rank, each in order."""

    def is_member(operation: Operation) -> bool:
        inside = window[0] <= operation.start < window[1] + is_whole
        return (
            inside
            and operation.table == "KERNEL"
            and operation.kind != COMMUNICATION
            and category(operation.demangled) in BY_MEMORY
            and not is_fused(operation)
        )

    def belongs(operation: Operation) -> tuple[bool, int]:
        """A chain has one kind: an optimizer's or not, of one step."""
        mine = is_list(operation) if optimizer is None else in_optimizer(operation, optimizer)
        return mine, bisect_right(steps, operation.start)

    streams: dict[int, list[Operation]] = defaultdict(list)
    for operation in rank.operations:
        streams[operation.stream].append(operation)
    chains = []
    for operations in streams.values():
        operations.sort(key=lambda op: (op.start, op.table != "KERNEL"))
        rows: list[list[Operation]] = [[]]
        for operation in operations:
            if not is_member(operation):
                rows.append([])
                continue
            if rows[-1] and belongs(rows[-1][-1]) != belongs(operation):
                rows.append([])
            rows[-1].append(operation)
        chains += [row for row in rows if len(units(row)) >= 3]
    return chains


def attention_of(
    rank: Rank, window: Span, category: Callable[[str], str], *, is_whole: bool
) -> list[Operation]:
    """All kernels of attention: multiplication, softmax, multiplication, and what lies between."""

    def role(operation: Operation) -> str:
        name = operation.demangled.lower().replace("_", "")
        inside = window[0] <= operation.start < window[1] + is_whole
        if not inside or operation.kind == COMMUNICATION:
            return "other"
        if category(operation.demangled) == "matmul":
            return "matmul"
        if "softmax" in name and "logsoftmax" not in name and not is_log(operation.demangled):
            return "back" if "backward" in name or "bwd" in name else "forth"
        makes_values = "distribution_elementwise" in operation.demangled
        return "other" if makes_values else category(operation.demangled)

    streams: dict[int, list[Operation]] = defaultdict(list)
    for operation in rank.operations:
        if operation.table == "KERNEL":
            streams[operation.stream].append(operation)
    members: dict[int, Operation] = {}
    for operations in streams.values():
        operations.sort(key=lambda op: op.start)
        roles = ["end", *map(role, operations), "end"]
        rows: list[tuple[str, int, int]] = []
        for place, its in enumerate(roles):
            if its not in {"forth", "back"}:
                continue
            low, high = place - 1, place + 1
            while roles[low] == "elementwise":
                low -= 1
            while roles[high] == "elementwise":
                high += 1
            if (roles[low], roles[high]) != ("matmul", "matmul"):
                continue
            if its == "back":
                low -= roles[low - 1] == "matmul"
                high += roles[high + 1] == "matmul"
            rows.append((its, low, high))
        for place, (its, low, high) in enumerate(rows):
            beside = [
                row for row in rows[max(place - 1, 0) : place + 2] if row[0] == its == "forth"
            ]
            is_shared = any({low, high} & {*row[1:]} for row in beside if row[1] != low)
            pairs = pairwise(operations[low - 1 : high])
            if not is_shared and all(after.start - op.end <= 1_000_000 for op, after in pairs):
                members |= {id(op): op for op in operations[low - 1 : high]}
    return [*members.values()]


def is_log(name: str) -> bool:
    """Whether PyTorch's softmax of short rows takes the logarithm: its fifth parameter."""
    _, is_short, parameters = name.partition("softmax_warp_")
    depth, parts = 0, [""]
    for letter in parameters.partition("<")[2] if is_short else "":
        depth += (letter == "<") - (letter == ">")
        if depth < 0:
            break
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return len(parts) > 4 and parts[4].strip() == "true"


def in_optimizer(operation: Operation, spans: list[Span]) -> bool:
    call = operation.call
    return call is not None and any(low <= call.start < high for low, high in spans)


def units(row: list[Operation]) -> list[list[Operation]]:
    """Kernels one by one; those of one list of tensors together."""
    result: list[list[Operation]] = []
    for name, group in groupby(row, key=lambda op: op.demangled):
        kernels = [*group]
        result += [kernels] if name and is_list(kernels[0]) else [[kernel] for kernel in kernels]
    return result


def kept_of(row: list[Operation]) -> list[Operation]:
    """The longest pass of a chain."""
    passes: list[list[Operation]] = []
    by_name: dict[str, dict[tuple[object, ...], Operation]] = defaultdict(dict)
    for unit in units(row):
        if is_list(unit[0]):
            passes.append(unit)
            continue
        (kernel,) = unit
        longest = by_name[kernel.demangled].get(kernel.shape)
        if longest is None or spent([kernel]) > spent([longest]):
            by_name[kernel.demangled][kernel.shape] = kernel
    passes += [[*grids.values()] for grids in by_name.values()]
    return max(passes, key=spent)


def spent(operations: list[Operation]) -> int:
    return sum(op.end - op.start for op in operations)


def expected(
    rank: Rank, window: Span, category: Callable[[str], str], steps: Sequence[int],
    optimizer: list[Span] | None, *, is_whole: bool,
) -> Expected:  # fmt: skip
    chains = chains_of(rank, window, category, steps, optimizer, is_whole=is_whole)

    def measure(operations: list[Operation]) -> int:
        return length(clipped(union([(op.start, op.end) for op in operations]), *window))

    def is_optimizers(row: list[Operation]) -> bool:
        if optimizer is not None:
            return in_optimizer(row[0], optimizer)
        return any(is_list(op) or "addcdiv" in op.demangled for op in row)

    attention = attention_of(rank, window, category, is_whole=is_whole)
    kept = {id(op) for row in chains for op in kept_of(row)}
    every = [op for row in chains for op in row]
    between = [
        (one.end, other.start)
        for row in chains
        for one, other in pairwise(row)
        if other.start > one.end
    ]
    busy = union([(op.start, op.end) for op in rank.operations])
    return Expected(
        kernel_ns=measure(every),
        optimizer_ns=measure([op for row in chains if is_optimizers(row) for op in row]),
        attention_ns=measure(attention),
        num_kernels=len(every),
        num_chains=len(chains),
        longest_chain=max(map(len, chains), default=0),
        idle_ns=length(without(union(between), busy)),
        saved_ns=measure([*attention, *(op for op in every if id(op) not in kept)]),
    )
