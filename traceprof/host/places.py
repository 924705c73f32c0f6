"""Places: the innermost framework range around a launch or a time.

`KINDS` is the table of the ranges that frameworks open. Any other range of the
program is a place, too; ranges of single operators, of libraries and of whole steps are not. A
thread without a range at some time is where another thread of its process is: the backward runs on
a thread of PyTorch's autograd, and the range around it is open on the thread that called it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from traceprof import intervals, labels
from traceprof.host import host_code as evidence
from traceprof.host.host_code import line_text, nested
from traceprof.intervals import BEYOND_NS, NO_NUMBERS, Int32, Int64, Intervals
from traceprof.run.guard import optional
from traceprof.run.rank import Rank
from traceprof.run.steady_steps import MIN_STEPS
from traceprof.run.step_ranges import PATTERNS, StepRanges
from traceprof.structs import Record, by_key
from traceprof.trace.columns import Rows
from traceprof.trace.grouping import distinct_values, named_sums
from traceprof.trace.model.ranges import OF_CALL, NamedRanges
from traceprof.trace.model.trace import Trace


class PlaceKind(str, Enum):
    """What a framework does in a range."""

    LOADER = "data loading"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    COLLECTION = "garbage collection"
    COMPILE = "compilation"
    CAPTURE = "graph capture"
    LOGGING = "logging"
    GRAD_SCALER = "gradient scaler"
    OPTIMIZER = "optimizer"
    FSDP = "FSDP"
    DDP = "DDP"
    DEEPSPEED = "DeepSpeed"
    PREFILL = "prefill"
    DECODE = "decode"
    BACKWARD = "backward"
    FORWARD = "forward"
    MODULE = "module"
    OTHER = "range"


_COMPILED = r"torch/_dynamo/convert_frame\.py\(\d+\): "
_SCALED = r"torch/(?:cuda/)?amp/grad_scaler\.py\(\d+\): "
OPTIMIZED = r"torch/optim/\w+\.py\(\d+\): step\Z"
# With who opens such ranges.
_PATTERNS = {
    # instrument; torch/utils/data/dataloader.py and datapipes (a range per class); Lightning's
    # train_dataloader_next; Megatron's batch-generator; NVIDIA DALI
    PlaceKind.LOADER: (
        rf"(?i:{evidence.DATA_LOADING.pattern})|{evidence.PYTHON_LOADING.pattern}"
        r"|\Aenumerate\(Data(?:Loader|Pipe)\)#|\A\[DALI\]"
    ),
    # instrument, the garbage collections that a recorder names, gc.collect by name
    PlaceKind.COLLECTION: evidence.GARBAGE_COLLECTION.pattern,
    # instrument; torch.save and torch.distributed.checkpoint by their file and line; Megatron's
    # save-checkpoint; Lightning's [Callback]ModelCheckpoint
    PlaceKind.CHECKPOINT: (
        evidence.HOST_WORK.pattern
        + r"|(?i:(?:\A|[^a-z])(?:save|load|saving|loading)[ _-]?(?:model|state|weights)"
        r"|\bcheckpoint(?:ing)?\Z|(?:save|load)[ _-]?checkpoint)"
    ),
    # programs' own ranges; Lightning's validation_step and run_evaluation; Megatron's evaluate; HF
    # Trainer.evaluate
    PlaceKind.EVALUATION: (
        r"(?i:(?<![a-z])(?:eval(?:uat\w+)?|validat\w*|val[ _]step|test[ _]step)(?![a-z]))"
    ),
    # CompileEventLogger of torch/_dynamo and torch/_inductor; triton/compiler/compiler.py
    PlaceKind.COMPILE: (
        evidence.PYTHON_SETUP.pattern
        + r"|compile_fx|dynamo_timed|\A_?compile\b|(?i:\b(?:jit[ _-]?)?compil(?:e|ation|ing)\b)"
        rf"|{_COMPILED}"
    ),
    # vLLM's capture_model, SGLang's CudaGraphRunner, Megatron's CUDA graphs
    PlaceKind.CAPTURE: r"(?i:(?:cuda)?[ _]?graph[ _]?capture|capture[ _](?:model|graph|cuda))",
    # programs' own ranges; TorchRec's metrics:publish; Megatron's interval-time logging
    PlaceKind.LOGGING: (
        r"(?i:(?<![a-z])(?:log(?:ging|_metrics|ger)?|metrics?)(?![a-z])|tensorboard|wandb)"
    ),
    # torch/amp/grad_scaler.py
    PlaceKind.GRAD_SCALER: rf"(?i:grad_?scaler)|{_SCALED}",
    # instrument; torch/optim/optimizer.py (Optimizer.step#NAME.step, Optimizer.zero_grad#…);
    # Lightning's optimizer_step; Megatron's optimizer
    PlaceKind.OPTIMIZER: (
        rf"\A{labels.OPTIMIZER_STEP}(?: |\Z)|\AOptimizer\.|(?i:(?<![a-z])(?:optimi[sz]er"
        rf"|zero_grad|clip_grad\w*|lr_scheduler)(?![a-z]))|{OPTIMIZED}"
    ),
    # torch/distributed/fsdp: FSDP::pre_forward (MODULE) of fully_shard,
    # FullyShardedDataParallel._pre_forward of FSDP1
    PlaceKind.FSDP: r"\AFSDP::|\AFullyShardedDataParallel\.|\A_?fsdp[ _.]",
    # torch/nn/parallel/distributed.py
    PlaceKind.DDP: r"\ADistributedDataParallel\.|\Atorch\.distributed\.ddp",
    # deepspeed/utils/nvtx.py: instrument_w_nvtx around its functions, by qualified name
    PlaceKind.DEEPSPEED: (
        r"\A(?:DeepSpeed\w*|PartitionedParameterCoordinator|Init|ZeRO\w*|PipelineEngine)\."
    ),
    # SGLang: step[DECODE bs=…]; vLLM: execute_context_0(0)_generation_…; TensorRT-LLM
    PlaceKind.DECODE: (
        r"\Astep\[(?:DECODE|TARGET_VERIFY) |\Aexecute_(?:\d+_)?context_0\("
        r"|(?i:\bdecode(?:r?_step)?\b)"
    ),
    # SGLang: step[EXTEND bs=…]; vLLM: execute_context_N(…)_generation_…; TensorRT-LLM
    PlaceKind.PREFILL: (
        r"\Astep\[(?:EXTEND|MIXED|PREFILL)\w* |\Aexecute_(?:\d+_)?context_[1-9]"
        r"|(?i:\bprefill\b)"
    ),
    # instrument; Megatron's backward-compute; Lightning's backward
    PlaceKind.BACKWARD: rf"\A{labels.BACKWARD}\b|(?i:(?<![a-z])backward(?:-compute)?(?![a-z]))",
    # instrument; Megatron's forward-compute; HTA's examples
    PlaceKind.FORWARD: (
        rf"\A{labels.FORWARD}\b|(?i:(?<![a-z])forward(?:-compute|[ _]pass)?(?![a-z]))"
    ),
    # torch.profiler, with_modules or with_stack; instrument.modules
    PlaceKind.MODULE: rf"\Ann\.Module: |\A{labels.MODULE} ",
}
KINDS = {kind: re.compile(pattern) for kind, pattern in _PATTERNS.items()}
"""The ranges that frameworks open, by the first pattern that their name holds."""

# No digits stand here: a report keeps texts without them, and only what matches is read again.
_NO_PLACE = (
    r"(?!FSDP::)[\w.<> ]+::[\w:.~<>]"  # operators of PyTorch, functions of C++
    r"|\w+Backward\d|detach_?(?:\Z|,)|record_param_comms|_NoopSaveInputs|RegisterPostBackward"
    r"|nccl|gloo:|ucp_|uct_|MPI_|cublas|cudnn|cusolver|cusparse|cufft"
    r"|\{"  # of PyProf
    r"|[\w ]+ (?:bytes|dtype|group|size|op|peer)="  # communication and waits by `instrument`
    rf"|{labels.BUCKET}\b|{labels.WAIT}\b|{labels.CUT}\b"
    r"|ProfilerStep|PyTorch Profiler"
)
PLACES = re.compile(rf"\A(?!{_NO_PLACE})(?s:.)")
_FUNCTIONS = re.compile(
    rf"{evidence.PYTHON_LOADING.pattern}|{evidence.PYTHON_SETUP.pattern}"
    rf"|{evidence.HOST_WORK.pattern}|{_COMPILED}|{_SCALED}|{OPTIMIZED}|\Ann\.Module: "
)
"""Functions of Python that are places: modules, and those of PyTorch by file."""
_NUMBER = re.compile(r"\d+")
_MAX_DIGITS = 10
# An indexed module (`blocks.7`, `layers[7]`, `TransformerLayer_7`), in names without numbers:
# tokens, batches and requests count up as well, and hold all layers.
_INDEXED = re.compile(r"[A-Za-z_]\w*\.#|(?i:layer|block|module|encoder|decoder)s?[\[ _:-]*#")
MIN_COVERED = 0.8
"""Of a rank's periods: so many hold a numbered range each where they are layers."""


def kind_of(name: str) -> PlaceKind:
    """Return the kind of a range."""
    found = (kind for kind, pattern in KINDS.items() if pattern.search(name))
    return next(found, PlaceKind.OTHER)


def unnumbered(name: str) -> str:
    """Return a name with `#` for each number: `step 7` and `step 8` are one kind of range."""
    return _NUMBER.sub("#", name)


class PlaceRanges(Rows, frozen=True):
    """All places of a process, ordered by start, longer ones first."""

    start_ns: Int64  # int64[n]
    end_ns: Int64  # int64[n]
    thread: Int64  # int64[n]
    name: Int32  # int32[n], indices into `names`
    names: Sequence[str]

    def intervals_of(self, chosen: Int64) -> Intervals:
        """Return when any of some ranges was open; `chosen` has their rows."""
        return intervals.union(self.start_ns[chosen], self.end_ns[chosen])


class _Stretches(NamedTuple):
    start_ns: Int64
    end_ns: Int64
    name: Int32


class Places(Record, frozen=True):
    """The place of each thread of a process at each time."""

    names: Sequence[str]
    kinds: Sequence[PlaceKind]  # of the names
    by_thread: dict[int, _Stretches]  # those with most time in places first
    ranges: PlaceRanges

    @property
    def tells_of_others(self) -> list[bool]:
        """Whether a name tells what other threads do: a thread that loads data says nothing."""
        return [kind is not PlaceKind.LOADER for kind in self.kinds]

    def at(self, thread: Int64, time_ns: Int64) -> Int32:
        """Place of threads, int64[n], at times: int32[n] indices into `names`, -1 for none."""
        found = np.full(len(time_ns), -1, np.int32)
        for number in distinct_values(thread).tolist():
            if number in self.by_thread:
                rows = np.flatnonzero(thread == number)
                found[rows] = _at(self.by_thread[number], time_ns[rows])
        tells = np.array([*self.tells_of_others, False], np.bool_)
        for stretches in self.by_thread.values():  # few threads open ranges
            rows = np.flatnonzero(found < 0)
            others = _at(stretches, time_ns[rows])
            found[rows] = np.where(tells[others], others, -1)
        return found

    def within(self, threads: Sequence[int], spans: Intervals) -> dict[str, int]:
        """Time in each place, in ns by name, from these threads' ranges or else those of others."""
        spent: Counter[str] = Counter()
        tells = np.array(self.tells_of_others, np.bool_)
        order = [*threads, *(thread for thread in self.by_thread if thread not in threads)]
        for thread in order:
            stretches = self.by_thread.get(thread)
            if stretches is None or not len(spans):
                continue
            covered = intervals.covered_within(spans, stretches.start_ns, stretches.end_ns)
            if thread not in threads:
                covered *= tells[stretches.name]
            spent += named_sums(stretches.name.astype(np.int64), covered, self.names.__getitem__)
            rows = np.flatnonzero(covered)
            spans = intervals.subtract(
                spans, intervals.union(stretches.start_ns[rows], stretches.end_ns[rows])
            )
        return spent

    def most_of(self, at: Int32, weight: Int64) -> str | None:
        """Place of over half of the weights; None if none has it."""
        chosen = at >= 0
        numbers = at[chosen].astype(np.int64)
        spent = named_sums(numbers, weight[chosen], self.names.__getitem__)
        return over_half(spent, int(weight.sum()))


def over_half(spent: Mapping[str, int], total: int) -> str | None:
    """Name with over half of a total; with `#` for its numbers where several share it."""
    kinds = by_key(spent, unnumbered)
    largest = max(kinds, key=lambda kind: sum(spent[name] for name in kinds[kind]), default=None)
    if largest is None or 2 * sum(spent[name] for name in kinds[largest]) <= total:
        return None
    return kinds[largest][0] if len(kinds[largest]) == 1 else largest


def places_of_calls(rank: Rank, call: Int64) -> Int32:
    """Place of each call, int32[n]: indices into the names of its process's places.

    `call`: indices into the rank's calls, -1 for unknown ones, which have none.
    """
    at = np.full(len(call), -1, np.int32)
    if rank.calls is None:
        return at
    known, found = np.flatnonzero(call >= 0), places(rank)
    thread, start = rank.calls.packed_thread.at(call[known]), rank.calls.start_ns[call[known]]
    at[known] = found.at(thread, start)
    return at


def kinds_of_places(rank: Rank, call: Int64) -> tuple[Int32, Sequence[str]]:
    """Place of each call, int32[n], -1 for none, and the names with `#` for numbers."""
    names = [unnumbered(name) for name in places(rank).names]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    of_name = np.array([*(numbers[name] for name in names), -1], np.int32)
    return of_name[places_of_calls(rank, call)], [*numbers]


def _at(stretches: _Stretches, time_ns: Int64) -> Int32:
    place = intervals.holder(stretches.start_ns, stretches.end_ns, time_ns)
    return np.append(stretches.name, np.int32(-1))[place]


_NO_RANGES = PlaceRanges(NO_NUMBERS, NO_NUMBERS, NO_NUMBERS, NO_NUMBERS.astype(np.int32), ())
NO_PLACES = Places((), (), {}, _NO_RANGES)


# Read once, while the report still holds its ranges in memory.
_READ: WeakKeyDictionary[Trace, dict[int, PlaceRanges]] = WeakKeyDictionary()


@optional("places", otherwise=lambda _: NO_PLACES)
def places(rank: Rank) -> Places:
    """Return the places of a rank's process; kept for all ranks of the process."""
    return rank.process_cache.get(_places, rank)


@optional("places", otherwise=lambda _: _NO_RANGES)
def place_ranges(rank: Rank) -> PlaceRanges:
    """Return the ranges that are places of a rank's process; kept as long as the report."""
    of_trace = _READ.setdefault(rank.trace, {})
    if rank.process not in of_trace:
        if not of_trace:  # all at once: a report is searched as a whole
            named = rank.trace.ranges(PLACES, None, OF_CALL)
            for process in {key.process for key in rank.trace.operations} | {rank.process}:
                of_trace[process] = _read(rank.trace, process, named.get(process))
        if rank.process not in of_trace:
            of_trace[rank.process] = _NO_RANGES
    return of_trace[rank.process]


def _places(rank: Rank) -> Places:
    ranges = place_ranges(rank)
    by_thread: dict[int, tuple[int, _Stretches]] = {}
    for thread in distinct_values(ranges.thread).tolist():
        rows = np.flatnonzero(ranges.thread == thread)
        nest = nested(ranges.start_ns[rows], ranges.end_ns[rows])
        start, end, span = nest.innermost()
        stretches = _Stretches(start, end, ranges.name[rows][span])
        by_thread[thread] = int((end - start).sum()), stretches
    order = sorted(by_thread, key=lambda thread: -by_thread[thread][0])
    return Places(
        ranges.names,
        [kind_of(name) for name in ranges.names],
        {thread: by_thread[thread][1] for thread in order},
        ranges,
    )


def _read(trace: Trace, process: int, ranges: NamedRanges | None) -> PlaceRanges:
    numbers: dict[str, int] = {}
    parts: list[tuple[Int64, Int64, Int64, Int64]] = []
    if ranges is not None:
        own = ranges.named(lambda name: not any(pattern.match(name) for pattern in PATTERNS))
        named = [numbers.setdefault(name, len(numbers)) for name in own.texts]
        parts.append((own.start_ns, own.end_ns, own.end_thread, np.array(named, np.int64)))
    functions = trace.python_functions(process)
    if functions is not None:
        chosen = {
            key: numbers.setdefault(line_text(functions.names[key]), len(numbers))
            for key in functions.packed_name.distinct.tolist()
            if _FUNCTIONS.search(functions.names[key])
        }
        rows_of = np.flatnonzero(functions.packed_name.isin(list(chosen)))
        number_of = [chosen[key] for key in functions.packed_name.at(rows_of).tolist()]
        spans = functions.start_ns[rows_of], functions.ends(rows_of)
        thread = functions.packed_thread.at(rows_of)
        parts.append((*spans, thread, np.array(number_of, np.int64)))
    if not parts:
        return _NO_RANGES
    start, end, thread, name = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    end = np.minimum(end, BEYOND_NS)
    order = np.lexsort((-end, start))
    return PlaceRanges(
        start[order], end[order], thread[order], name[order].astype(np.int32), [*numbers]
    )


def _telling(rank: Rank) -> PlaceRanges:
    """Places that say what a thread without events does: none around whole steps."""
    ranges, steps = place_ranges(rank), rank.step_ranges
    if steps is None or len(steps.start_ns) < MIN_STEPS:
        # All ranks of the process share what its threads did.
        spans = [
            operations.span_ns for _, operations in rank.operations_of_process if len(operations)
        ]
        worked_ns = max((end for _, end in spans), default=0) - min(
            (start for start, _ in spans), default=0
        )
        is_around = 2 * (ranges.end_ns - ranges.start_ns) > worked_ns
    else:
        # Steps of a process do not overlap.
        first = np.searchsorted(steps.start_ns, ranges.start_ns, side="left")
        last = np.minimum(first, len(steps.end_ns) - 1)
        is_around = (first == last) & (steps.end_ns[last] <= ranges.end_ns)
    return ranges.chosen(np.flatnonzero(~is_around))


def silence_of(rank: Rank, thread: int) -> Intervals:
    """Times at which a place, of this thread or of another one, says what the thread did.

    Threads that load data on their own say nothing of others.
    """
    ranges = rank.cache.get(_telling, rank)
    loads = np.array([kind_of(name) is PlaceKind.LOADER for name in ranges.names], np.bool_)
    chosen = (ranges.thread == thread) | ~loads[ranges.name]
    return ranges.intervals_of(np.flatnonzero(chosen))


class Layers(Record, frozen=True):
    """The layers of a model that the periods of a rank are."""

    first: int  # the number of the first one
    last: int
    kinds: frozenset[str]  # the names of their ranges, with `#` for numbers


@optional("layers", otherwise=lambda _: None)
def layers_of(rank: Rank) -> Layers | None:
    """Layers of a model that a rank's periods are; None if they are none.

    Each period's launches hold one range whose name has the index of a module: it counts up, or
    down, by one from a period to the next.
    """
    periods, steps = rank.periods, rank.host_steps
    if rank.step_ranges is not None or periods is None or steps is None:
        return None
    ranges = place_ranges(rank)
    if len(steps.start_ns) < MIN_STEPS or not len(ranges.start_ns):
        return None
    spans = {
        kind: span
        for kind, numbers in _numbers(ranges.names).items()
        if (span := _counts_up(ranges, numbers, steps)) is not None
    }
    if not spans:
        return None
    first, last = max(spans.values(), key=lambda span: span[1] - span[0])
    return Layers(first, last, frozenset(spans))


def _numbers(names: Sequence[str]) -> dict[str, Int64]:
    """Indices in names with one number each, by the rest of the name; -1 for other names."""
    by_kind: dict[str, Int64] = {}
    for place, name in enumerate(names):
        found = _NUMBER.findall(name)
        if len(found) == 1 and len(found[0]) < _MAX_DIGITS:
            kind = unnumbered(name)
            if not _INDEXED.search(kind):
                continue
            if kind not in by_kind:
                by_kind[kind] = np.full(len(names), -1, np.int64)
            by_kind[kind][place] = int(found[0])
    return by_kind


def _counts_up(ranges: PlaceRanges, numbers: Int64, steps: StepRanges) -> tuple[int, int] | None:
    number = numbers[ranges.name]
    rows = np.flatnonzero(number >= 0)
    period = np.searchsorted(steps.start_ns, ranges.start_ns[rows], side="right") - 1
    inside = (period >= 0) & (ranges.start_ns[rows] < steps.end_ns[-1])
    number, period = number[rows[inside]], period[inside]
    is_one_each = len(distinct_values(period)) == len(period)
    if not is_one_each or len(period) < max(MIN_STEPS, MIN_COVERED * len(steps.start_ns)):
        return None
    is_next = np.abs(np.diff(number)) == np.diff(period)
    if is_next.mean() < MIN_COVERED:
        return None
    return int(number.min()), int(number.max())
