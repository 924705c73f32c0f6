"""An independent reference for `exposed-copy`, for tests only: plain lists, one copy at a time.

* copy: memcpy and memset that are not communication
* fraction: exposed ÷ the time in which copies run (as that of `exposed-communication`)
* exposed: where copies run, and neither compute nor communication does; clipped to the window
* owner: each exposed nanosecond belongs to the copy that began first of those that run; of those
  that began together, to the one that ends first, then memcpy before memset, then by copyKind,
  stream, bytes and the kinds of memory (the order of rows means nothing)
* kind: HtoD, HtoA and UVM HtoD are h2d; DtoH, AtoH and UVM DtoH are d2h; a row of MEMSET is memset;
  all other copies are d2d (within the device, and the few that name no direction: unknown, HtoH),
  so that the four always sum to what is exposed
* pageable: one side is pageable host memory by ENUM_CUDA_MEM_KIND (0 where the table is missing)
* same stream: the first compute operation that starts at or after the copy's end runs on the copy's
  stream (of several that start at once, any of them)
* bytes, num_copies: of the copies that own an exposed nanosecond, whole
* gradient copies: in each step (a marked range; what the rank's process launched in it) that has an
  AllReduce and, launched after its last one, an optimizer kernel: between these two the longest row
  of device-to-device memcpys on the compute stream, with no other operation of that stream launched
  between them. Every such step must have a row of at least 4, the sizes (sorted) must be the same
  in all of them, and there must be two such steps or more; else nothing is taken for gradients.
* compute stream: the stream with the most compute time (sum of durations); of equal ones the lowest
* optimizer kernel: by its name (`OPTIMIZER`), or launched inside a range `optimizer step` of
  `instrument` or `Optimizer.step#…` of PyTorch
"""

import re
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from tests.reference.breakdown import Numbered, step_ranges
from tests.reference.late_allreduce import operation_of, step_of
from tests.reference.nsight_export import COMMUNICATION, COMPUTE, COPY, Key, Operation, export_of
from tests.reference.spans import Span, clipped, covered, length, without
from tests.reference.streams import Rank, owned, read, spans_of

KINDS = ("h2d", "d2h", "d2d", "memset")
OPTIMIZER = re.compile(r"multi_tensor_apply|adam|sgd|lamb|lars|adagrad|rmsprop|lion", re.IGNORECASE)
OPTIMIZER_RANGE = re.compile(r"optimizer step\b|Optimizer\.step#")
MIN_GRADIENT_COPIES, MIN_STEPS = 4, 2


@dataclass
class ExposedCopy:
    """What the finding says of one rank; ns and bytes."""

    window_ns: int = 0
    copy_ns: int = 0
    exposed_ns: int = 0
    by_kind: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    pageable_ns: int = 0
    same_stream_ns: int = 0
    bytes: int = 0
    num_copies: int = 0
    gradient_ns: int = 0
    gradient_bytes: int = 0
    num_gradient_copies: int = 0

    @property
    def fraction(self) -> float:
        return self.exposed_ns / self.copy_ns if self.copy_ns else 0.0


def kind_of(copy: Operation) -> str:
    if copy.table == "MEMSET":
        return "memset"
    return {1: "h2d", 3: "h2d", 11: "h2d", 2: "d2h", 4: "d2h", 12: "d2h"}.get(
        copy.copy_kind if copy.copy_kind is not None else 0, "d2d"
    )


@dataclass
class Prepared:
    """A rank as it was read, of which any number of windows can be measured."""

    rank: Rank
    pageable: set[int]
    gradients: list[Operation]

    def measured(self, window: Span | None = None) -> ExposedCopy:
        return measured(self.rank, window, self.pageable, self.gradients)


def prepare(path: Path) -> dict[Key, Prepared]:
    """Read each (process, device) of an export."""
    export = export_of(path)
    labels = export.rows("ENUM_CUDA_MEM_KIND", "id", "name", "label")
    pageable = {
        number for number, name, label in labels if "pageable" in f"{name} {label}".lower()
    } or {0}
    ranks = {}
    for rank in read(path):
        of_process = export.ranges.get(rank.process, [])
        updates = [(range_.start, range_.end) for range_ in of_process
                   if OPTIMIZER_RANGE.search(range_.name)]  # fmt: skip
        gradients = gradient_copies(rank, step_ranges(of_process, None), updates)
        ranks[rank.process, rank.device] = Prepared(rank, pageable, gradients)
    return ranks


def reference(path: Path, window: Span | None = None) -> dict[Key, ExposedCopy]:
    """What must be found for each (process, device) of an export."""
    return {key: prepared.measured(window) for key, prepared in prepare(path).items()}


def measured(
    rank: Rank, window: Span | None, pageable: set[int], gradients: list[Operation]
) -> ExposedCopy:
    low, high = window or rank.window
    hidden = spans_of(rank.of_kind(COMPUTE, COMMUNICATION))
    compute = rank.of_kind(COMPUTE)
    starts = [op.start for op in compute]
    result = ExposedCopy(window_ns=high - low)
    for copy, spans in owned(sorted(rank.of_kind(COPY), key=tie), low, high):
        exposed = length(without(spans, hidden))
        if not exposed:
            continue
        result.exposed_ns += exposed
        result.by_kind[kind_of(copy)] += exposed
        if pageable & {*(copy.memory or ())}:
            result.pageable_ns += exposed
        follows = bisect_left(starts, copy.end)
        after = [op for op in compute[follows:] if op.start == starts[follows]]
        if any(op.stream == copy.stream for op in after):
            result.same_stream_ns += exposed
        result.bytes += copy.bytes
        result.num_copies += 1
        if any(copy is gradient for gradient in gradients):
            result.gradient_ns += exposed
            result.gradient_bytes += copy.bytes
            result.num_gradient_copies += 1
    copies = clipped(spans_of(rank.of_kind(COPY)), low, high)
    result.copy_ns = length(copies)
    assert result.exposed_ns == length(without(copies, hidden))
    assert result.exposed_ns == sum(result.by_kind.values())
    return result


def tie(copy: Operation) -> tuple[int, ...]:
    """Which of copies that are equal in time and kind comes first."""
    memory = (-1 if kind is None else kind for kind in copy.memory or (None, None))
    return (copy.stream, copy.bytes, *memory)


def compute_stream(rank: Rank) -> int | None:
    time: dict[int, int] = defaultdict(int)
    for op in rank.of_kind(COMPUTE):
        time[op.stream] += op.end - op.start
    return min(time, key=lambda stream: (-time[stream], stream)) if time else None


def gradient_copies(
    rank: Rank, steps: list[Numbered], updates: list[Span]
) -> list[Operation]:  # fmt: skip
    """The copies of gradients out of DDP's buckets, of all steps; none if they are not sure."""
    stream = compute_stream(rank)
    of_step: dict[int, list[Operation]] = defaultdict(list)
    for op in sorted((op for op in rank.operations if op.call), key=lambda op: op.order):
        assert op.call is not None
        step = step_of(op.call.start, steps)
        if step is not None:
            of_step[step].append(op)
    runs: list[list[Operation]] = []
    for operations in of_step.values():
        names = [operation_of(op.short, op.demangled) for op in operations]
        reduces = [at for at, name in enumerate(names) if name == "allreduce"]
        if not reduces:
            continue
        rest = operations[reduces[-1] + 1 :]
        first = next((at for at, op in enumerate(rest) if is_optimizer(op, updates)), None)
        if first is None:
            continue
        here = [op for op in rest[:first] if op.stream == stream]
        runs.append(longest_run(here))
    sizes = {tuple(sorted(op.bytes for op in run)) for run in runs}
    sure = len(runs) >= MIN_STEPS and len(sizes) == 1
    if not sure or min(len(run) for run in runs) < MIN_GRADIENT_COPIES:
        return []
    return [op for run in runs for op in run]


def is_optimizer(op: Operation, updates: list[Span]) -> bool:
    if op.kind != COMPUTE or op.call is None:
        return False
    inside = any(covered([span], op.call.start, op.call.start + 1) for span in updates)
    return inside or OPTIMIZER.search(op.demangled or op.short) is not None


def longest_run(operations: list[Operation]) -> list[Operation]:
    """The longest row of device-to-device copies; of equally long ones the first."""
    best: list[Operation] = []
    run: list[Operation] = []
    for op in operations:
        if op.table == "MEMCPY" and op.kind == COPY and op.copy_kind == 8:
            run.append(op)
        else:
            run = []
        if len(run) > len(best):
            best = list(run)
    return best
