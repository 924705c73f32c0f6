"""Opening of a run: its reports, sorted into ranks and recordings, with notes about them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from traceprof.errors import TraceFormatError
from traceprof.kernel_names import CommunicationPatterns
from traceprof.run.cache import Cache
from traceprof.run.completeness import launches_in_vain
from traceprof.run.cpu_rank import is_rank
from traceprof.run.guard import optional
from traceprof.run.host_clock import aligned
from traceprof.run.machines import NO_LINKS, known_links
from traceprof.run.rank import CpuRank, Rank, Window
from traceprof.run.recognition import identify, number_ranks, number_runs, numbers_by_source
from traceprof.run.recording_cost import longest, timed_beside
from traceprof.run.session_clocks import seeded
from traceprof.run.step_ranges import NO_TRAINING_RANGES, find_training_ranges
from traceprof.run.summary import CpuRankGaps, RankInfo, ReportSummary, RunSummary, last_open_call
from traceprof.trace.model.operations import NO_OPERATIONS, RankKey
from traceprof.trace.model.parts import Part
from traceprof.trace.model.trace import NSIGHT_FORMAT, Trace
from traceprof.units import counted, duration, percent, ranks_text

# Parts whose recording takes time: programs run differently with and without it.
_COSTLY_PARTS = (
    Part.API_CALLS,
    Part.RANGES,
    Part.GRAPH_KERNELS,
    Part.EVENT_RECORDS,
    Part.SAMPLES,
    Part.THREAD_SWITCHES,
    Part.SYSTEM_CALLS,
    Part.MPI_CALLS,
    Part.LINK_COUNTERS,
    Part.NETWORK_COUNTERS,
)

__all__ = ["CpuRank", "Rank", "Run", "RunSummary", "Window", "open_report", "open_run"]


class Run(RunSummary, frozen=True):
    """The reports of one training run, open."""

    ranks: Sequence[Rank]  # with all of their operations
    traces: Sequence[Trace]  # the reports themselves

    @property
    def has_report_per_process(self) -> bool:
        """Whether there are several reports, each of one process: what is read of them adds up."""
        processes = {(rank.report, rank.process) for rank in self.ranks}
        return 1 < len(processes) == len(self.traces)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the reports open while a block runs; a `UsageError` if one has been closed."""
        with ExitStack() as stack:
            for trace in self.traces:
                stack.enter_context(trace.in_use)
            yield

    def close(self) -> None:
        """Close the reports once nothing uses them."""
        for trace in self.traces:
            trace.close()


def open_report(
    trace: Trace,
    patterns: CommunicationPatterns | None = None,
    step_pattern: re.Pattern[str] | None = None,
    peak_overrides: Mapping[str, float] | None = None,
    *,
    use_period: bool = True,
    flops_per_step: float | None = None,
) -> list[Rank]:
    """Read the GPU operations of a report and sort them into ranks by pid and device, CPUs last.

    `use_period`: whether the period of a program is its step where no range marks steps.
    `flops_per_step`: multiplications and additions of a step of a rank, from the user.
    """
    places = _places(trace)
    numbers, _ = number_ranks([numbers_by_source(trace, [process for process, _ in places])])
    operations = (patterns or CommunicationPatterns()).operations(trace.kernel_names)
    training_ranges = find_training_ranges(trace, step_pattern)
    use_period &= not any(of.marks_steps for of in training_ranges.values())
    links = known_links(trace)
    num_devices = Counter(process for process, _ in places)
    caches = {process: Cache() for process in num_devices}
    ranks = []
    for number, (process, device) in zip(numbers, places, strict=True):
        key = None if device is None else RankKey(process, device)
        linked = NO_LINKS if key is None else links.get(key, NO_LINKS)
        ranks.append(
            (CpuRank if key is None else Rank)(
                rank=number,
                report=0,
                process=process,
                pid=trace.pid(process),
                device=device,
                gpu=None if key is None else trace.gpu_name(key),
                gpu_id=None if key is None else trace.gpu_id(key),
                trace=trace,
                operations=NO_OPERATIONS if key is None else trace.operations[key],
                kernel_names=trace.kernel_names,
                communication_operations=operations,
                training_ranges=training_ranges.get(process, NO_TRAINING_RANGES),
                peak_overrides={**linked.peaks, **(peak_overrides or {})},
                links=linked,
                num_devices=num_devices[process],
                may_use_period=use_period,
                given_flops_per_step=flops_per_step,
                process_cache=caches[process],
            )
        )
    return ranks


def open_run(traces: Sequence[Trace]) -> Run:
    """Sort the GPU operations of a run's open reports into ranks, on one clock."""
    opened = []
    for trace in traces:
        ranks = open_report(trace)
        with suppress(TraceFormatError):
            ranks = aligned(ranks)
        opened.append(ranks)
    return assemble_run(traces, opened)


def assemble_run(traces: Sequence[Trace], ranks: Sequence[Sequence[Rank]]) -> Run:
    """Return the run of open reports, whose ranks have the numbers that each report alone gives."""
    reports = [
        summarize_report(trace, of_report) for trace, of_report in zip(traces, ranks, strict=True)
    ]
    return attach_ranks(summarize_run(reports, ranks), traces, ranks)


def summarize_report(trace: Trace, ranks: Sequence[Rank]) -> ReportSummary:
    """Return the summary of a report, with the notes found so far."""
    cpu_ranks = [rank for rank in ranks if isinstance(rank, CpuRank)]
    cpu_work = [(rank.pid, rank.window.start_ns, rank.window.end_ns) for rank in cpu_ranks]
    return ReportSummary(
        path=trace.path,
        format=trace.format,
        origin=trace.origin,
        product_version=trace.product_version,
        schema_version=trace.schema_version,
        how_to_collect=trace.how_to_collect,
        notes=(
            *trace.notes,
            *_on_nested_steps(ranks),
            *on_moved_times(ranks),
            *filter(None, [_on_graph_nodes(ranks)]),
        ),
        contents=() if ranks else tuple(trace.contents()),
        identity=identify(trace, cpu_work),
        rank_numbers=numbers_by_source(trace, [rank.process for rank in ranks]),
        cpu_rank_gaps={
            rank.process: CpuRankGaps(rank.work.used_gpu, rank.work.num_open) for rank in cpu_ranks
        },
        open_calls={
            process: call
            for process in sorted({rank.process for rank in ranks})
            if (call := last_open_call(trace, process)) is not None
        },
        recorded=tuple(part for part in _COSTLY_PARTS if _is_recorded(trace, part)),
        gpus=tuple(trace.gpus),
        launches_in_vain={
            trace.pid(process): count for process, count in launches_in_vain(trace).items()
        },
        num_workers=_num_workers(trace, ranks),
        timed=timed_beside(trace.path),
    )


@optional("workers", otherwise=lambda *_: {})
def _num_workers(trace: Trace, ranks: Sequence[Rank]) -> dict[int, int]:
    if not trace.holds(Part.THREAD_SWITCHES):
        return {}
    return {
        rank.process: int(np.count_nonzero(ran_ns > _MIN_RAN * rank.window.length_ns))
        for rank in ranks
        if rank.device is not None
        for ran_ns in [trace.workers_ran(rank.process, rank.window.start_ns, rank.window.end_ns)]
    }


_MIN_RAN = 0.01  # of the training, on a CPU


def _is_recorded(trace: Trace, part: Part) -> bool:
    """Whether a trace holds a part, or would if the program had such activity."""
    if part is Part.EVENT_RECORDS and not trace.holds(part):
        return trace.holds(Part.API_CALLS) and not trace.calls_any("EventRecord")
    return trace.holds(part)


def _on_nested_steps(ranks: Sequence[Rank]) -> Iterator[str]:
    steps = [rank.training_ranges.steps for rank in ranks]
    num_nested = max((marked.num_nested for marked in steps if marked is not None), default=0)
    if num_nested:
        yield (
            f"ranges with names of steps inside of others, or around all others, are no steps"
            f" ({num_nested} in one process): --step-pattern chooses other names"
        )


_NODE_NS = 800
"""Of the recorder for a kernel of a CUDA graph: 8,153 of them made a gap of 6 ms in each step."""
ONE_BY_ONE = "kernels of CUDA graphs were recorded one by one"
_MIN_SHARE = 0.02
"""Of the training, from which on that is said."""


@optional("graph-nodes", otherwise=lambda _: None)
def _on_graph_nodes(ranks: Sequence[Rank]) -> str | None:
    """Return what Nsight's records of single kernels of graphs may have cost, where it is most.

    Its work for them is done while the GPU waits, in the gaps after graphs.
    """
    found = []
    for rank in ranks:
        trace = rank.trace
        if trace.format != NSIGHT_FORMAT or rank.device is None:
            continue
        num_nodes = rank.num_graph_nodes
        cost_ns, length_ns = num_nodes * _NODE_NS, rank.window.length_ns
        if num_nodes and cost_ns >= _MIN_SHARE * length_ns:
            found.append((cost_ns / max(length_ns, 1), num_nodes))
    if not found:
        return None
    share, num_nodes = max(found)
    where = " on one rank" if len(ranks) > 1 else ""
    return (
        f"{num_nodes} {ONE_BY_ONE}{where}; at {_NODE_NS / 1000:g} µs each, as a user measured, gaps"
        f" after graphs may hold {duration(num_nodes * _NODE_NS)} of the recorder's work"
        f" ({percent(share)} of the recorded time): record --graphs whole shows the step without it"
    )


def on_moved_times(ranks: Sequence[Rank]) -> Iterator[str]:
    """Yield which GPUs' operations were moved to the host's clock, and how far."""
    moved: dict[tuple[str, str], set[int]] = {}
    for rank in ranks:
        if rank.moved_ns:
            is_late = "later" if rank.moved_ns < 0 else "earlier"
            moved.setdefault((duration(abs(rank.moved_ns)), is_late), set()).add(rank.key.device)
    for (time, is_late), devices in moved.items():
        gpus = f"GPU{'s' if len(devices) > 1 else ''} {', '.join(map(str, sorted(devices)))}"
        yield (
            f"operations of {gpus} were recorded {time} {is_late} than the host's clock allows, all"
            " by the same time: they are moved by it, which is right to about 10 µs"
        )


def summarize_run(
    reports: Sequence[ReportSummary], ranks: Sequence[Sequence[RankInfo]]
) -> RunSummary:
    """Return the run of reports, whose ranks have the numbers that each report alone gives."""
    numbers, rank_source = number_ranks([report.rank_numbers for report in reports])
    places = [(report, rank) for report, of_report in enumerate(ranks) for rank in of_report]
    numbered_ranks = tuple(
        RankInfo(number, report, rank.process, rank.pid, rank.device, rank.gpu, rank.gpu_id)
        for number, (report, rank) in zip(numbers, places, strict=True)
    )
    numbered_ranks = tuple(sorted(numbered_ranks, key=lambda rank: rank.rank))
    runs = number_runs([report.identity for report in reports])
    clocks = seeded([report.session for report in reports], runs)
    return RunSummary(tuple(reports), numbered_ranks, clocks, tuple(runs), rank_source)


def attach_ranks(
    summary: RunSummary, traces: Sequence[Trace], ranks: Sequence[Sequence[Rank]]
) -> Run:
    """Return the run of a summary with its open reports and their ranks."""
    by_place = {
        (report, rank.process, rank.device): rank
        for report, of_report in enumerate(ranks)
        for rank in of_report
    }
    numbered_ranks = tuple(
        replace(by_place[info.place], rank=info.rank, report=info.report) for info in summary.ranks
    )
    return Run(
        summary.reports,
        numbered_ranks,
        summary.clocks,
        summary.run_numbers,
        summary.rank_source,
        tuple(traces),
    )


def _places(trace: Trace) -> list[tuple[int, int | None]]:
    keys = sorted(trace.operations, key=lambda key: (trace.pid(key.process), key))
    with_gpu = {key.process for key in keys}
    without = [
        process
        for process, ranges in trace.label_ranges.items()
        if process not in with_gpu and is_rank(ranges) and not trace.has_unread_accelerator
    ]
    without.sort(key=lambda process: (trace.pid(process), process))
    return [*((key.process, key.device) for key in keys), *((process, None) for process in without)]


# What they say of a rank's number holds in the whole run; of a report's only rank, also the others.
_SOURCES = ("labels", "mpi")
_SOURCES_OF_ONE = (*_SOURCES, "environment", "file name")


class _Report(NamedTuple):
    places: AbstractSet[Hashable]  # what only one report of a recording can have
    is_numbered: bool  # whether the numbers of its ranks are known
    has_time: bool  # whether its time of capture is known
    communicators: AbstractSet[str]  # ids of NCCL communicators of several ranks


def captures(
    reports: Sequence[ReportSummary], ranks: Sequence[Sequence[RankInfo]]
) -> list[list[int]]:
    """Reports of each recording of a program, as indices, in the order given.

    They are of one run, share no rank, and have a communicator, time or numbered ranks in common.
    """
    runs = number_runs([report.identity for report in reports])
    described = [_described(*pair) for pair in zip(reports, ranks, strict=True)]
    recordings: list[list[int]] = []
    for index, report in enumerate(described):
        fitting = (
            recording
            for recording in recordings
            if runs[recording[0]] == runs[index]
            and not any(described[other].places & report.places for other in recording)
            and any(
                described[other].communicators & report.communicators
                or (described[other].has_time and report.has_time)
                or (described[other].is_numbered and report.is_numbered)
                for other in recording
            )
        )
        recording = next(fitting, None)
        if recording is None:
            recordings.append([index])
        else:
            recording.append(index)
    return recordings


def _described(report: ReportSummary, ranks: Sequence[RankInfo]) -> _Report:
    session = report.session
    numbered: set[Hashable] = set()
    for source in _SOURCES if len(ranks) > 1 else _SOURCES_OF_ONE:
        numbers = report.rank_numbers.get(source, ())
        numbered |= {(source, number) for number in numbers if number is not None}
    places: set[Hashable] = set()
    if session.host is not None:
        places |= {(session.host, rank.pid, rank.device) for rank in ranks}
    has_time = session.is_utc or session.start_utc_ns is not None
    communicators = report.identity.communicators
    return _Report(numbered | places, bool(numbered), has_time, communicators)


def notes_of(run: RunSummary) -> Iterator[tuple[int, str]]:
    """Yield (report index, note)."""
    for index, number in enumerate(run.run_numbers):
        if number:
            note = f"it is not of the same run as {run.reports[0].path.name}: it was captured at"
            note += " another time, or from another program; the two are not compared"
            yield index, note
    with_ranks = {rank.report for rank in run.ranks}
    for index, report in enumerate(run.reports):
        for note in report.notes:
            yield index, note
        for pid, num in report.launches_in_vain.items():
            note = f"process {pid}: {counted(num, 'launch')}, and no operation in the recording:"
            yield index, f"{note} {report.how_to_collect(Part.EVERY_OPERATION)}"
        if index not in with_ranks:
            held = [counted(table.num_rows, table.what) for table in report.contents]
            yield index, f"no GPU operation, so no rank; it holds {', '.join(held) or 'no events'}"
        for process, call in report.open_calls.items():
            of_process = [
                rank.rank for rank in run.ranks if (rank.report, rank.process) == (index, process)
            ]
            yield index, call.sentence(ranks_text(of_process))
    timed = [(index, one) for index, report in enumerate(run.reports) for one in report.timed]
    if timed:
        slowest = longest([one for _, one in timed])
        yield next((index, one.sentence()) for index, one in timed if one is slowest)
    beside = "run on the same GPU: while it is idle for one, it may work for another"
    yield from ((index, f"{ranks_text(ranks)} {beside}") for index, ranks in run.on_one_gpu)
    of_hosts = [rank for rank in run.ranks if rank.device is None]
    gaps = [run.reports[rank.report].cpu_rank_gaps[rank.process] for rank in of_hosts]
    numbers = [rank.rank for rank in of_hosts]
    for note in cpu_rank_notes(numbers, gaps, run.how_to_collect):
        yield of_hosts[0].report, note  # once, of all reports


def cpu_rank_notes(
    ranks: Sequence[int], gaps: Sequence[CpuRankGaps], how_to_collect: Callable[[Part], str]
) -> Iterator[str]:
    """Yield notes on how ranks without a GPU were measured, and what their reports lack."""
    if not ranks:
        return
    yield (
        f"{ranks_text(ranks)}: no GPU operation was recorded of"
        f" {'this process' if len(ranks) == 1 else 'these processes'}. Compute is the time in the"
        " ranges forward, backward and optimizer step without communication, idle is the time that"
        " no range covers; findings that need a GPU are not judged"
    )
    used_gpu = [rank for rank, gap in zip(ranks, gaps, strict=True) if gap.used_gpu]
    if used_gpu:
        yield (
            f"{ranks_text(used_gpu)}: ranges show copies to or from a GPU: record the GPU's work"
            f" with {how_to_collect(Part.GPU_OPERATIONS)}"
        )
    num_open = sum(gap.num_open for gap in gaps)
    if num_open:
        yield (
            f"ranges that were open when the capture ended ({num_open}) count until the last"
            " known time of their process"
        )
