"""Summaries of reports and their ranks without their events, and of reports that failed.

They are small and picklable: a report may be measured by another process or on another machine.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
from msgspec import field

from traceprof.errors import REPORT_IT, TraceprofError, UsageError, internal_error
from traceprof.run.guard import optional
from traceprof.run.recognition import ReportIdentity
from traceprof.run.recording_cost import TimedSteps
from traceprof.run.session_clocks import UNNAMED_MACHINES, Clocks
from traceprof.structs import Record
from traceprof.trace.model.communication_calls import OPERATIONS, CommunicationCalls
from traceprof.trace.model.parts import HowToCollect, Part
from traceprof.trace.model.special_values import OPEN_END
from traceprof.trace.model.trace import Content, Session, Trace
from traceprof.units import duration, size_text


class OpenCall(Record, frozen=True):
    """A communication call that had not returned when the capture ended."""

    text: str  # the call in prose, such as `AllReduce (26.2 MB, group 0)`
    start_ns: int  # when it was called, in the report's own time
    length_ns: int | None  # from its start to the end of the capture, None if unknown

    def sentence(self, ranks: str) -> str:
        """Return a sentence that says so of ranks, which are given in prose (`rank 3`)."""
        since = f"{self.start_ns // 10**9}.{self.start_ns % 10**9 // 1000:06d} s"
        length = "" if self.length_ns is None else f", for {duration(self.length_ns)}"
        return (
            f"{ranks}: the last open call is {self.text}, since {since}{length}: it had not"
            " returned when the capture ended. Where other ranks went on, this one hangs in it"
        )


@optional("open-calls", otherwise=lambda *_: None)
def last_open_call(trace: Trace, process: int) -> OpenCall | None:
    """Return the last communication call that a process had not left at the end; None without."""
    calls = trace.communication_calls(process)
    sources = (calls.labelled, calls.nccl)
    end_ns = trace.session.end_ns
    if end_ns is not None and any((source.start_ns >= end_ns).any() for source in sources):
        end_ns = None  # the capture went on after the end that the report gives
    candidates = [
        (*last, source)
        for source in sources
        if (last := _last_open(source, OPEN_END if end_ns is None else end_ns)) is not None
    ]
    if not candidates:
        return None
    start_ns, call, source = max(candidates, key=lambda candidate: candidate[0])
    length_ns = None if end_ns is None else max(end_ns - start_ns, 0)
    return OpenCall(_text(source, call), start_ns, length_ns)


def _last_open(calls: CommunicationCalls, end_ns: int) -> tuple[int, int] | None:
    """Start and index of the last call that was open at a time.

    Nsight ends ranges that are open when the capture ends at that time, or later.
    """
    unfinished = np.flatnonzero(calls.end_ns >= end_ns)
    # The end of a group launches the calls in it, and waits for the other ranks.
    has_members = calls.first_member[1:] > calls.first_member[:-1]
    launch = np.flatnonzero((calls.launch_end_ns >= end_ns) & has_members)
    start = np.concatenate((calls.start_ns[unfinished], calls.launch_start_ns[launch]))
    call = np.concatenate((unfinished, calls.members[calls.first_member[1:][launch] - 1]))
    if len(start) == 0:
        return None
    last = int(np.argmax(start))
    return int(start[last]), int(call[last])


def _text(calls: CommunicationCalls, call: int) -> str:
    facts = []
    if calls.bytes[call] >= 0:
        facts.append(size_text(int(calls.bytes[call])))
    if calls.communicator[call] >= 0:
        name = calls.communicators[int(calls.communicator[call])]
        facts.append(f"communicator {name}" if name.startswith("0x") else f"group {name}")
    if calls.sequence[call] >= 0:
        facts.append(f"call {calls.sequence[call]} of its group")
    operation = OPERATIONS[int(calls.operation[call])]
    return f"{operation} ({', '.join(facts)})" if facts else operation


class RankInfo(Record, frozen=True):
    """The identity of a rank: its report, process and device."""

    rank: int  # the global rank if the report contains it, else a running number
    report: int  # index of the report in the run
    process: int  # the process within its report (a number of the trace's own)
    pid: int  # the operating system's process id
    device: int | None  # the CUDA ordinal in the process; None without GPU work
    gpu: str | None  # the GPU's name, None if unknown
    gpu_id: str | None  # the GPU's uuid, else its place on the PCI bus, None if unknown

    @property
    def place(self) -> tuple[int, int, int | None]:
        """Its report, process and device, which identify it in the run."""
        return self.report, self.process, self.device


class CpuRankGaps(Record, frozen=True):
    """Gaps in the ranges of a process without GPU work."""

    used_gpu: bool  # whether they include copies to or from a GPU
    num_open: int  # number of ranges that were open when the capture ended


class ReportSummary(Record, frozen=True):
    """The origin of a report, and its notes."""

    path: Path  # as it was given
    format: str  # such as `nsight-sqlite`
    origin: str  # the program that wrote it, in prose, as it follows `exported by`
    product_version: str | None  # of the program that wrote it, None if unknown
    schema_version: str | None  # of the file, None if unknown
    how_to_collect: HowToCollect  # how to record each part that it may lack
    notes: tuple[str, ...]  # remarks about its data
    contents: Sequence[Content]  # its tables of events, if it has no rank
    identity: ReportIdentity  # the facts by which it is assigned to a run
    rank_numbers: Mapping[str, tuple[int | None, ...]]  # numbers of its ranks, by source
    cpu_rank_gaps: Mapping[int, CpuRankGaps]  # of each rank without GPU work, by process
    # communication calls that were open at the end, by process
    open_calls: Mapping[int, OpenCall] = field(default_factory=dict)
    recorded: tuple[Part, ...] = ()  # the parts that it holds, of those that distinguish recordings
    gpus: tuple[str, ...] = ()  # the names of the GPUs that its processes see
    # launches without an operation by pid, if other processes have some
    launches_in_vain: Mapping[int, int] = field(default_factory=dict)
    # workers of a data loader by process, if known
    num_workers: Mapping[int, int] = field(default_factory=dict)
    timed: tuple[TimedSteps, ...] = ()  # steps with and without the recorder, by rank

    @property
    def session(self) -> Session:
        """The session in which it was captured."""
        return self.identity.session


class RunSummary(Record, frozen=True, dict=True):
    """The reports of one training run, open or not."""

    reports: Sequence[ReportSummary]  # in the order given
    ranks: Sequence[RankInfo]  # in order of their numbers
    clocks: Clocks  # of the reports, by their sessions' starts
    run_numbers: Sequence[int]  # of each report; 0, unless reports of several runs were given
    # where the ranks' numbers are from: `labels`, `torch`, `nccl`, `mpi`, `environment`,
    # `file name`, or `order` if no source has them
    rank_source: str

    def rank_beside(self, rank: int, device: int, gpu_id: str | None) -> int | None:
        """Number of the rank on another GPU; None if none or several are there.

        The GPU is known by its uuid, or by its ordinal in the process of a rank that sees it.
        """
        report, process, machine = self._homes[rank]
        ranks = self._ranks_at.get((report, process, device))
        if ranks is None and gpu_id is not None:
            ranks = self._ranks_at.get((machine, gpu_id))
        return ranks[0] if ranks is not None and len(ranks) == 1 else None

    @cached_property
    def on_one_gpu(self) -> list[tuple[int, list[int]]]:
        """Reports, with the numbers of their ranks of several processes on one GPU."""
        on_gpu: defaultdict[tuple[int, str], dict[int, int]] = defaultdict(dict)
        for rank in self.ranks:
            if rank.gpu_id is not None:
                on_gpu[rank.report, rank.gpu_id].setdefault(rank.process, rank.rank)
        return [
            (report, [*rank_of.values()])
            for (report, _), rank_of in on_gpu.items()
            if len(rank_of) > 1
        ]

    @cached_property
    def _homes(self) -> dict[int, tuple[int, int, Hashable]]:
        hosts = [
            (number, report if name is None else name)
            for report, (number, name) in enumerate(
                zip(self.run_numbers, self.machines, strict=True)
            )
        ]
        return {rank.rank: (rank.report, rank.process, hosts[rank.report]) for rank in self.ranks}

    @cached_property
    def _ranks_at(self) -> dict[Hashable, list[int]]:
        """The ranks on each GPU, by their place, and by machine and GPU."""
        by_place: dict[Hashable, list[int]] = defaultdict(list)
        for rank in self.ranks:
            by_place[rank.place].append(rank.rank)
            by_place[self._homes[rank.rank][2], rank.gpu_id].append(rank.rank)
        return dict(by_place)

    @property
    def machines(self) -> list[str | None]:
        """Machine of each report; one for nameless ones of the same GPUs, used differently."""
        names = [report.session.host for report in self.reports]
        nameless = {index for index, name in enumerate(names) if name is None}
        listed = {self.reports[index].gpus for index in nameless}
        used = [rank.device for rank in self.ranks if rank.report in nameless]
        if len(listed) == 1 and len(used) == len(set(used)) > 1 and None not in used:
            num_gpus = len(listed.pop())
            if all(device is not None and device < num_gpus for device in used):
                return [UNNAMED_MACHINES[1] if name is None else name for name in names]
        return list(names)

    def how_to_collect(self, part: Part) -> str:
        """Return how to record or export so that reports like the first contain a part."""
        return self.reports[0].how_to_collect(part)


class FailedReport(Record, frozen=True):
    """A report that could not be analysed, while others of its run were."""

    path: Path  # as it was given
    error: TraceprofError  # why


Made = TypeVar("Made")


def try_report(path: Path, make: Callable[[], Made]) -> Made | FailedReport:
    """Return the result for a report, or why it failed; a `UsageError` passes."""
    try:
        return make()
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001  (one report among hundreds must not stop all)
        return FailedReport(path, failure(path, error))


@contextmanager
def close_on_error(trace: Trace) -> Iterator[None]:
    """Close a report if the block fails."""
    try:
        yield
    except Exception:  # after an interrupt a thread may still be reading
        trace.close()
        raise


def failure(path: Path, error: Exception) -> TraceprofError:
    """Return the error that says why a report failed; raise a bug if its traceback is wanted."""
    if isinstance(error, TraceprofError):
        return error
    if isinstance(error, MemoryError):
        why, remedy = "it needs more memory than there is", "give fewer reports or --jobs"
    elif os.environ.get("TRACEPROF_TRACEBACK"):
        raise error
    else:
        why, remedy = internal_error(error), REPORT_IT
    return TraceprofError(f"cannot analyse {path}", why, remedy)


def all_failed(failed: Sequence[FailedReport], done: str = "analysed") -> TraceprofError:
    """Return the error that ends a command when all of its reports failed to be `done`."""
    first = failed[0].error
    if len(failed) == 1:
        return first
    what = f"none of the {len(failed)} reports can be {done}, the first because: {first.what}"
    return type(first)(what, first.why, first.remedy)
