"""What may be assumed of a run, and what that changes in it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.errors import UsageError, closest
from traceprof.host.idle_causes import IdleCause, idle_causes
from traceprof.host.thread_evidence import host_evidence
from traceprof.replay.assumptions.slowdown import with_shorter_communication, without_slowdown
from traceprof.replay.graph.columns import COMMUNICATION, COPY
from traceprof.trace.model.kinds import ApiCallKind, api_call_kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceprof.host.thread_evidence import HostEvidence
    from traceprof.intervals import Int64
    from traceprof.replay.graph.graph import Process
    from traceprof.replay.graph.weights import Durations

    Change = Callable[[Process, Durations], Durations]

MIN_CAP_MIB, MAX_CAP_MIB = 1, 100_000
SEND_ORDERS = ("ready-first", "best")
# A thread whose calls lie no further apart launches; what lies further apart is work of its own.
MAX_LAUNCHING_NS = 500_000


@dataclass(frozen=True)
class Assumption:
    """Something that is assumed.

    Attributes:
        text: as it was written: `no-sync`, `link=2x`.
        change: what it changes in a process.
        is_bound: whether the answer is a limit that no change of a program can reach as it is.
        why: what the answer leaves out.
        is_at_least_communication: whether a step takes at least as long as its communication.
        of_run: what of it changes how ranks meet and not what one process does, as written: see
            `run_assumptions`.
    """

    text: str
    change: Change
    is_bound: bool
    why: str
    is_at_least_communication: bool = False
    of_run: tuple[str, ...] = ()

    @property
    def atoms(self) -> tuple[str, ...]:
        """The assumptions that it is made of, as written."""
        return tuple(self.text.split(" + "))


@dataclass(frozen=True)
class _Kind:
    """A kind of assumption: how it is written, and what it means."""

    name: str
    value: str | None  # an example; None where it has none
    meaning: str
    is_bound: bool
    why: str
    make: Callable[[str], Change]
    is_of_run: bool = False


def parse(text: str) -> Assumption:
    """Read an assumption: `NAME` or `NAME=VALUE`, several joined by `+`.

    Raises:
        UsageError: there is no such assumption, or its value is none.
    """
    parts = [_parse_one(part.strip()) for part in text.split("+")]
    if len(parts) == 1:
        return parts[0]
    return combined(parts)


def combined(parts: list[Assumption]) -> Assumption:
    """Return what assumes all of several assumptions."""

    def change(process: Process, durations: Durations) -> Durations:
        for part in parts:
            durations = part.change(process, durations)
        return durations

    return Assumption(
        text=" + ".join(part.text for part in parts),
        change=change,
        is_bound=any(part.is_bound for part in parts),
        why="; ".join(dict.fromkeys(part.why for part in parts if part.why)),
        is_at_least_communication=any(part.is_at_least_communication for part in parts),
        of_run=tuple(text for part in parts for text in part.of_run),
    )


def singles() -> list[Assumption]:
    """Return every assumption that needs no value of the user's."""
    return [parse(text) for text in _ALONE]


def names() -> dict[str, str]:
    """Return how each assumption is written, and what it means."""
    return {
        kind.name if kind.value is None else f"{kind.name}={kind.value}": kind.meaning
        for kind in _KINDS
    }


@dataclass(frozen=True)
class Variant:
    """How a run is weighed.

    Attributes:
        assumption: None for what was measured.
        keeps_unexplained: whether delays without a known reason stay.
        has_gpu_time: whether the GPU takes any time.
        has_possible_waits: whether streams wait for all that they may have waited for.
        has_whole_streams: whether who waits for communication waits for all before it.
    """

    assumption: Assumption | None = None
    keeps_unexplained: bool = True
    has_gpu_time: bool = True
    has_possible_waits: bool = True
    has_whole_streams: bool = False

    def assumed(self, process: Process, measured: Durations) -> Durations:
        """Return what the actions of a process take under the assumption; the same if nothing."""
        return measured if self.assumption is None else self.assumption.change(process, measured)

    def durations(self, assumed: Durations) -> Durations:
        """Return this way to take what is not known of them."""
        one = replace(
            assumed, possible_waits=self.has_possible_waits, whole_streams=self.has_whole_streams
        )
        if not self.keeps_unexplained:
            one = replace(one, unexplained=0.0)
        if not self.has_gpu_time:
            nothing = one.length_ns * 0
            one = replace(one, length_ns=nothing, transfer=nothing, latency=0.0)
        return one


# -- what each one changes ------------------------------------------------------------------------


def _no_sync(process: Process, durations: Durations) -> Durations:
    del process
    return replace(durations, waits_for_gpu=False)


def _no_kernel_sync(process: Process, durations: Durations) -> Durations:
    del process
    return replace(durations, waits_for_kernels=False)


def _no_stall(process: Process, durations: Durations) -> Durations:
    del process
    return replace(durations, stalls=False)


def _no_serialization(process: Process, durations: Durations) -> Durations:
    """Let no communication wait for communication before it on its stream."""
    work = process.work
    is_kernel = (work.kind == COMMUNICATION) & (work.group == 0)
    free = durations.is_free_of_stream.copy()
    free[1:] |= is_kernel[1:] & is_kernel[:-1] & (work.chain[1:] == work.chain[:-1])
    return replace(durations, is_free_of_stream=free)


def _no_data_loading(process: Process, durations: Durations) -> Durations:
    """Take the time in which the GPU idled because data were loaded out of the host's time."""
    before = durations.before_call_ns.copy()
    calls = process.calls
    for _, rank in process.ranks:
        causes = idle_causes(rank)
        gaps = causes.gaps
        late = intervals.Intervals(gaps.gaps.start_ns[gaps.late], gaps.gaps.end_ns[gaps.late])
        lost = intervals.covered_within(
            causes.of(IdleCause.DATA_LOADING), late.start_ns, late.end_ns
        )
        place = calls.place_of(gaps.launch)
        known = place >= 0
        np.maximum.at(before, calls.outer[place[known]], lost[known].astype(np.float64))
    if not before.any():
        return durations
    outer = np.flatnonzero(calls.is_outer)
    free = np.zeros(len(calls))
    follows = calls.thread[outer[1:]] == calls.thread[outer[:-1]]
    free[outer[1:][follows]] = (calls.start_ns[outer[1:]] - calls.end_ns[outer[:-1]])[follows]
    return replace(durations, before_call_ns=np.minimum(before, np.maximum(free, 0)))


def _no_launch_time(process: Process, durations: Durations) -> Durations:
    """Let the host launch at once: no time in launches and between calls close to each other.

    What a graph leaves is left: MPI, and what is done once, such as to load a kernel.
    """
    calls = process.calls
    rank = process.ranks[0][1]
    inside, before = durations.in_call_ns.copy(), durations.before_call_ns.copy()
    ids = [key for key, name in rank.trace.api_names.items() if api_call_kind(name) in _LAUNCHING]
    columns, evidence = rank.calls, host_evidence(rank)
    assert columns is not None  # noqa: S101
    assert evidence is not None  # noqa: S101
    launches = columns.packed_name.isin(ids) & ~evidence.is_setup
    launches = launches[calls.index] & calls.is_outer & ~process.is_held
    inside[launches] = (calls.end_ns - calls.start_ns)[launches]
    outer = np.flatnonzero(calls.is_outer)
    gap = calls.start_ns[outer[1:]] - calls.end_ns[outer[:-1]]
    is_short = (calls.thread[outer[1:]] == calls.thread[outer[:-1]]) & (gap < MAX_LAUNCHING_NS)
    short = outer[1:][is_short]
    before[short] = gap[is_short] - _busy_ns(evidence, calls.index[short], gap[is_short])
    return replace(durations, in_call_ns=inside, before_call_ns=before)


def _busy_ns(evidence: HostEvidence, call: Int64, gap_ns: Int64) -> Int64:
    """Return how long threads did what is no launching in gaps right before calls, int64[n]."""
    busy = np.zeros(len(call), np.int64)
    threads = evidence.calls.packed_thread.at(call)
    until_ns = evidence.calls.start_ns[call]
    for thread in np.unique(threads).tolist():
        rows, of_thread = np.flatnonzero(threads == thread), evidence.thread(thread)
        spans = intervals.merge(of_thread.mpi, of_thread.setup)
        since_ns = until_ns[rows] - gap_ns[rows]
        busy[rows] = intervals.covered_within(spans, since_ns, until_ns[rows])
    return busy


_LAUNCHING = (
    ApiCallKind.LAUNCH,
    ApiCallKind.MEMORY_SET,
    ApiCallKind.EVENT_RECORD,
    ApiCallKind.STREAM_WAIT,
)


def _no_communication(process: Process, durations: Durations) -> Durations:
    """Let communication take no time, so that it slows nothing down."""
    return _hidden_communication(process, without_slowdown(process, durations))


def _hidden_communication(process: Process, durations: Durations) -> Durations:
    return _faster(process, durations, process.work.kind == COMMUNICATION, 0.0)


def _no_copies(process: Process, durations: Durations) -> Durations:
    """Let copies take no time of the stream they are on; a host that waits for one waits on."""
    return _faster(process, durations, process.work.kind == COPY, 0.0)


def _links(factor: float) -> Change:
    def change(process: Process, durations: Durations) -> Durations:
        durations = with_shorter_communication(process, durations, min(1 / factor, 1.0))
        return _faster(process, durations, process.work.kind == COMMUNICATION, 1 / factor)

    return change


def _kernels(expression: re.Pattern[str], factor: float) -> Change:
    def change(process: Process, durations: Durations) -> Durations:
        work = process.work
        chosen = np.zeros(len(work), np.bool_)
        for index, rank in process.ranks:
            ids = [key for key, name in rank.kernel_names.items() if expression.search(name)]
            is_named = rank.operations.kernels.are_named(ids)
            rows = np.flatnonzero((work.rank == index) & (work.group == 0))
            chosen[rows] = is_named[work.place[rows]]
        return _faster(process, durations, chosen, factor)

    return change


def _faster(
    process: Process,
    durations: Durations,
    chosen: np.ndarray[tuple[int], np.dtype[np.bool_]],
    factor: float,
) -> Durations:
    del process
    if not chosen.any():
        return durations
    return replace(
        durations,
        length_ns=np.where(chosen, durations.length_ns * factor, durations.length_ns),
        transfer=np.where(chosen, durations.transfer * factor, durations.transfer),
    )


# -- how they are written -------------------------------------------------------------------------


def _factor(name: str, text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)x", text)
    if match is None or (name == "link" and float(match[1]) == 0):
        raise UsageError(
            f"cannot assume {name}={text}",
            "the value is no factor",
            f"write it as a number and x, such as {name}=2x" if name == "link" else
            "write it as a number and x, such as kernel:gemm=0.5x",
        )  # fmt: skip
    return float(match[1])


def _fixed(change: Change) -> Callable[[str], Change]:
    return lambda _: change


def _bucket_cap(text: str) -> Change:
    if (
        re.fullmatch(r"\d+(?:\.\d+)?", text) is None
        or not MIN_CAP_MIB <= float(text) <= MAX_CAP_MIB
    ):
        raise UsageError(
            f"cannot assume bucket-cap-mb={text}",
            f"the size is no number from {MIN_CAP_MIB} to {MAX_CAP_MIB}",
            "write it in MiB, as DistributedDataParallel takes it: bucket-cap-mb=100",
        )
    return _unchanged(text)


def _send_order(text: str) -> Change:
    if text not in SEND_ORDERS:
        raise UsageError(
            f"cannot assume send-order={text}", f"only {' and '.join(SEND_ORDERS)} are known",
            "write send-order=ready-first or send-order=best",
        )  # fmt: skip
    return _unchanged(text)


def _unchanged(text: str) -> Change:
    del text  # what changes is how ranks meet
    return lambda _, durations: durations


_KINDS = (
    _Kind("no-serialization", None, "no communication waits behind other communication", False,
          "two transfers at a time are taken to be as fast as one", _fixed(_no_serialization)),
    _Kind("no-overlap-slowdown", None, "kernels beside communication are as fast as alone", False,
          "", _fixed(without_slowdown)),
    _Kind("no-launch-stall", None, "the launch queue is never full", False, "", _fixed(_no_stall)),
    _Kind("no-sync", None, "the host never waits for the GPU", False,
          "results are taken to be read later, but for those that the host, as far as is recorded,"
          " sends, writes, works on or copies back at once", _fixed(_no_sync)),
    _Kind("no-kernel-sync", None, "the host waits for copies, whose data it may need, and not for"
          " kernels", False, "kernels are taken to be as fast as they were, also where the change"
          " compiles them anew", _fixed(_no_kernel_sync)),
    _Kind("no-data-loading", None, "the next batch is always there", False,
          "", _fixed(_no_data_loading)),
    _Kind("no-straggler", None, "no rank is late again and again", False,
          "the late rank is taken to be as fast as the others", _unchanged,
          is_of_run=True),
    _Kind("send-order", "ready-first", "streams run the sends first that are ready first", False,
          "sends are launched when they were", _send_order, is_of_run=True),
    _Kind("bucket-cap-mb", "100", "gradients are reduced in buckets of so many MiB", False,
          "gradients are taken to become ready evenly between two buckets", _bucket_cap,
          is_of_run=True),
    _Kind("launch", "0", "launching takes no time, as in a CUDA graph", True,
          "what a graph costs is left out", _fixed(_no_launch_time)),
    _Kind("link", "2x", "communication is so many times as fast", False,
          "latency is taken to shrink as well", lambda text: _links(_factor("link", text))),
    _Kind("communication", "0", "communication takes no time", True,
          "", _fixed(_no_communication)),
    _Kind("perfect-overlap", None, "all communication hides behind compute", True,
          "", _fixed(_hidden_communication)),
    _Kind("copies-hidden", None, "copies take no time of the stream that they are on", True,
          "", _fixed(_no_copies)),
)  # fmt: skip
_BY_NAME = {kind.name: kind for kind in _KINDS}
_ALONE = (
    "no-serialization", "no-overlap-slowdown", "no-launch-stall", "no-sync", "no-data-loading",
    "no-straggler", "send-order=ready-first", "send-order=best",
    "launch=0", "link=2x", "communication=0", "perfect-overlap", "copies-hidden",
)  # fmt: skip
_FIXED_VALUES = {"launch": "0", "communication": "0"}


def _parse_one(text: str) -> Assumption:
    if text.startswith("kernel:"):
        return _kernel_assumption(text)
    name, has_value, value = text.partition("=")
    kind = _BY_NAME.get(name)
    if kind is None:
        known = [*names(), "kernel:REGEX=0.5x"]
        meant = closest(name, [*_BY_NAME])
        raise UsageError(
            f"there is no assumption {text!r}",
            f"this version knows {', '.join(known)}",
            "choose among them" if meant is None else f"did you mean {meant!r}?",
        )
    if bool(has_value) != (kind.value is not None):
        raise UsageError(
            f"cannot assume {text!r}",
            "it needs a value" if kind.value else "it takes no value",
            f"write {name}={kind.value}" if kind.value else f"write {name}",
        )
    if value != _FIXED_VALUES.get(name, value):
        raise UsageError(
            f"cannot assume {text!r}",
            f"only {name}={kind.value} can be assumed",
            f"write {name}={kind.value}",
        )
    of_run = (text,) if kind.is_of_run else ()
    is_least = text == "perfect-overlap"
    return Assumption(text, kind.make(value), kind.is_bound, kind.why, is_least, of_run)


def _kernel_assumption(text: str) -> Assumption:
    pattern, has_value, value = text.removeprefix("kernel:").rpartition("=")
    if not has_value or not pattern:
        raise UsageError(
            f"cannot assume {text!r}", "it needs a regular expression and a factor",
            "write it as kernel:gemm=0.5x",
        )  # fmt: skip
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise UsageError(
            f"cannot assume {text!r}",
            f"{pattern!r} is not a regular expression ({error})",
            "write it as Python's re module reads it",
        ) from error
    return Assumption(text, _kernels(expression, _factor("kernel", value)), False, "")
