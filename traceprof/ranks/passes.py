"""Passes of a rank: its compute between messages.

A pass is what one rank launches between two sends, receives or peer copies, and within one range of
a forward or a backward. On a rank without any of these, which is no pipeline stage, it is what it
launches between two collectives.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from traceprof import intervals, labels
from traceprof.communication.messages import BETWEEN_TWO, are_one_of, messages
from traceprof.communication.readiness import Readiness, readiness, stream_waits
from traceprof.intervals import NO_NUMBERS, Int64, Intervals
from traceprof.run.rank import Rank, Window
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values
from traceprof.trace.model.operations import Operations
from traceprof.trace.model.special_values import NULL, UNKNOWN

OTHER, FORWARD, BACKWARD, WEIGHTS = range(4)
"""Kinds of passes: `WEIGHTS` is the part of a backward that no other stage waits for."""
# `instrument`; torch.distributed.pipelining (`Forward 3`, `PP:0F3`); Megatron-LM; DeepSpeed.
BACKWARD_NAMES = rf"{labels.BACKWARD}|Backward \d+|PP:\d+[BI]\d*|backward_step|_exec_backward_pass"
FORWARD_NAMES = rf"{labels.FORWARD}|Forward \d+|PP:\d+F\d*|forward_step|_exec_forward_pass"
_RANGES = {FORWARD: FORWARD_NAMES, BACKWARD: BACKWARD_NAMES, WEIGHTS: r"PP:\d+W\d*"}
_ANY_RANGE = re.compile(rf"\A(?:{'|'.join(_RANGES.values())})\Z")
_COMPILED = {kind: re.compile(rf"\A(?:{text})\Z") for kind, text in _RANGES.items()}


class RankPasses(Record, frozen=True):
    """The n passes of a rank by launch, and its m copies to other GPUs, in the report's time."""

    rank: int  # the rank's number
    report: int  # index of its report
    process: int  # of the rank
    device: int | None  # the CUDA ordinal as the process sees it; None without a GPU
    window_ns: int  # the length of the window
    launched_ns: Int64  # int64[n], when the launch of its first kernel began
    start_ns: Int64  # int64[n], when its first kernel started, after the pass before
    end_ns: Int64  # int64[n], when its last kernel was over
    kind: Int64  # int64[n], of `OTHER`, `FORWARD`, `BACKWARD`, `WEIGHTS`
    step: Int64  # int64[n], index of the step it was launched in, -1 for none
    stream: Int64  # int64[n], of its first kernel
    compute_ns: Int64  # int64[n], what its kernels take, summed
    copying_ns: Int64  # int64[n], how long other copies took since the pass before
    called_ns: Int64  # int64[k], ascending, when the calls of its messages began
    input_ns: Int64  # int64[k], when what each message waited for on the GPU ended; -1 if unknown
    copy_called_ns: Int64  # int64[m], when the call of a copy to another GPU began
    copy_start_ns: Int64  # int64[m]
    copy_end_ns: Int64  # int64[m]
    copy_to: Int64  # int64[m], the CUDA ordinal of the other GPU

    def __len__(self) -> int:
        return len(self.start_ns)


def rank_passes(rank: Rank, window: Window) -> RankPasses:
    """Return the passes of a rank within a window."""
    copies = _copies(rank, window)
    called, inputs = _messages(rank)
    rows, copying = np.empty((7, 0), np.int64), NO_NUMBERS
    if len(called):
        rows = _passes(rank, window, called)
        others = intervals.subtract(rank.copy, rank.communication)
        others = intervals.subtract(others, rank.compute)
        before = np.append(rows[1, :1], rows[2, :-1])
        copying = intervals.covered_within(others, before, rows[1])
    launched, start, end, stream, compute, kind, step = rows
    return RankPasses(
        rank=rank.rank,
        report=rank.report,
        process=rank.process,
        device=rank.device,
        window_ns=window.length_ns,
        launched_ns=launched,
        start_ns=start,
        end_ns=end,
        kind=kind,
        step=step,
        stream=stream,
        compute_ns=compute,
        copying_ns=copying,
        called_ns=called,
        input_ns=inputs,
        copy_called_ns=copies[0],
        copy_start_ns=copies[1],
        copy_end_ns=copies[2],
        copy_to=copies[3],
    )


def _messages(rank: Rank) -> tuple[Int64, Int64]:
    """When calls of sends, receives, peer copies began, ascending, and inputs ended; else -1."""
    if rank.device is None or rank.calls is None:
        return NO_NUMBERS, NO_NUMBERS
    sent = messages(rank)
    chosen = are_one_of(sent.operation, sent.operations, BETWEEN_TWO)
    chosen &= sent.called_ns != UNKNOWN
    if not chosen.any() and not rank.is_peer_copy.any():
        chosen = sent.called_ns != UNKNOWN  # no stage: collectives divide its compute
    ready = readiness(rank)
    wanted = ready.call >= 0
    wanted[: ready.num_kernels] &= chosen
    called = rank.calls.start_ns[ready.call[wanted]]
    order = np.argsort(called, kind="stable")
    return called[order], _own_inputs(rank, ready)[wanted][order]


def _own_inputs(rank: Rank, ready: Readiness) -> Int64:
    """When the input of each operation ended, int64[n], -1 if that is unknown.

    Only what the stream waited for since its operation before counts: the input of an earlier send
    on the stream is not that of a later one.
    """
    waits, inputs = stream_waits(rank), np.full(len(ready), UNKNOWN, np.int64)
    if waits is None:
        return inputs
    for stream in distinct_values(ready.stream).tolist():
        rows = np.flatnonzero((ready.stream == stream) & (ready.place >= 0))
        rows = rows[np.argsort(ready.place[rows], kind="stable")]
        of_stream = waits.stream == stream
        place, end = waits.place[of_stream], waits.end_ns[of_stream]
        stop = np.searchsorted(place, ready.place[rows])
        some = np.flatnonzero(stop > np.append(0, stop[:-1]))
        if len(some):
            first = np.append(0, stop[:-1])[some]
            inputs[rows[some]] = np.maximum.reduceat(end[: stop[-1]], first)
    return inputs


def _copies(rank: Rank, window: Window) -> Int64:
    """Call, start, end and destination of the copies to other GPUs, int64[4, m]."""
    if rank.device is None or rank.calls is None:
        return np.empty((4, 0), np.int64)
    copies, launched_by = rank.operations.copies, rank.launched_by[1]
    chosen = rank.is_peer_copy & (copies.destination_device != NULL) & (launched_by >= 0)
    chosen &= (copies.destination_device != rank.device) & window.holds_start(copies.start_ns)
    rows = np.flatnonzero(chosen)
    called = rank.calls.start_ns[launched_by[rows]]
    order = np.argsort(called, kind="stable")
    rows = rows[order]
    return np.stack(
        (called[order], copies.start_ns[rows], copies.ends(rows), copies.destination_device[rows])
    )


def _passes(rank: Rank, window: Window, called: Int64) -> Int64:
    """Launch, start, end, stream, compute, kind, step of the passes, int64[7, n].

    `called`: int64[m], ascending, when its messages were called.
    """
    calls = rank.calls
    assert calls is not None  # noqa: S101  (else no call is known)
    kernels, graphs = rank.operations.kernels, rank.operations.graphs
    groups = []
    for group, launched_by, chosen in (
        (kernels, rank.launched_by[0], ~rank.is_communication_kernel),
        (graphs, rank.launched_by[3], np.ones(len(graphs), np.bool_)),
    ):
        rows = np.flatnonzero(chosen & (launched_by >= 0) & window.holds_start(group.start_ns))
        groups.append((group, launched_by, rows))
    launch = np.concatenate([calls.start_ns.take(by.take(rows)) for _, by, rows in groups])
    order = np.argsort(launch, kind="stable")
    if not len(order):
        return np.empty((7, 0), np.int64)
    launch = launch.take(order)
    ranges = _ranges(rank)
    limits = [called, *(spans.start_ns for spans in ranges.values())]
    limits += [spans.end_ns for spans in ranges.values()]
    steps = rank.host_steps
    begins = NO_NUMBERS if steps is None else steps.start_ns
    limits.append(begins)
    part = np.searchsorted(distinct_values(np.concatenate(limits)), launch, "right")
    first = np.flatnonzero(np.append(True, part[1:] != part[:-1]))
    launch = launch[first]

    def column(read: Callable[[Operations, Int64], Int64]) -> Int64:
        return np.concatenate([read(group, rows) for group, _, rows in groups]).take(order)

    # Each is let go of before the next is made.
    begun = np.minimum.reduceat(column(lambda group, rows: group.start_ns.take(rows)), first)
    ended = np.maximum.reduceat(column(lambda group, rows: group.ends(rows)), first)
    compute = np.add.reduceat(column(lambda group, rows: group.packed_length.at(rows)), first)
    stream = column(lambda group, rows: group.packed_stream.at(rows))[first]
    reached = np.maximum.accumulate(ended)
    begun[1:] = np.minimum(np.maximum(begun[1:], reached[:-1]), reached[1:])
    kind = np.full(len(first), OTHER, np.int64)
    for number, spans in ranges.items():
        kind[intervals.holder(spans.start_ns, spans.end_ns, launch) >= 0] = number
    step = np.searchsorted(begins, launch, side="right") - 1
    return np.stack((launch, begun, reached, stream, compute, kind, step))


def _ranges(rank: Rank) -> dict[int, Intervals]:
    named = rank.trace.ranges(_ANY_RANGE, rank.process).get(rank.process)
    if named is None:
        return {}
    ranges = {}
    for kind, pattern in _COMPILED.items():
        chosen = named.named(pattern.match)
        if len(chosen):
            end_ns = np.minimum(chosen.end_ns, intervals.BEYOND_NS)
            ranges[kind] = intervals.union(chosen.start_ns, end_ns)
    return ranges
