"""A run: one or more reports of one training run, as ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from traceprof.kernel_names import CommunicationPatterns
from traceprof.run.cpu_rank import is_rank
from traceprof.run.rank import CpuRank, Mask, Rank, Window
from traceprof.run.recognition import Report, numbered, rank_of_environment, rank_of_file, runs_of
from traceprof.run.session_clocks import Clocks, seeded
from traceprof.run.steps import find_steps
from traceprof.run.summary import CpuRankGaps, RankInfo, ReportSummary
from traceprof.trace.model.operations import NO_OPERATIONS, RankKey

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping, Sequence

    from traceprof.trace.model.parts import Part
    from traceprof.trace.model.trace import Trace

__all__ = ["CpuRank", "Mask", "Rank", "Run", "RunSummary", "Window", "open_report", "open_run"]

# In the order in which they are believed; what is said of a report is said of its only rank.
_OF_RANKS = ("labels", "nccl", "mpi")
_OF_REPORTS = ("environment", "file name")


@dataclass(frozen=True)
class RunSummary:
    """The reports of one training run, whether they are still open or not.

    Attributes:
        reports: in the order given.
        ranks: their ranks, in order of (report, pid, device); of each report, those without GPU
            work come last.
        clocks: the reports' clocks, as their sessions' starts tell them.
        run_of: for each report, which run it is of: 0, unless reports of several runs were given.
        rank_source: what told the ranks' numbers: `labels`, `nccl`, `mpi`, `environment`, `file
            name`, or `order`, where nothing does.
    """

    reports: Sequence[ReportSummary]
    ranks: Sequence[RankInfo]
    clocks: Clocks
    run_of: Sequence[int]
    rank_source: str

    def how_to_collect(self, part: Part) -> str:
        """Return what to record or export with so that reports like the first hold a part."""
        return self.reports[0].how_to_collect(part)


@dataclass(frozen=True)
class Run(RunSummary):
    """The reports of one training run, open.

    Attributes:
        ranks: with all that they did.
        traces: the reports themselves.
    """

    ranks: Sequence[Rank]
    traces: Sequence[Trace]


def open_report(
    trace: Trace,
    patterns: CommunicationPatterns | None = None,
    step_pattern: re.Pattern[str] | None = None,
    peak_overrides: Mapping[str, float] | None = None,
) -> list[Rank]:
    """Read the GPU operations of a report and sort them into ranks.

    Args:
        trace: the report.
        patterns: what is communication; the built-in table where not given.
        step_pattern: the user's own pattern for the range around a training step.
        peak_overrides: peak rates of links that the user knows better, GB/s by link.

    Returns:
        Its ranks in order of (pid, device), those without GPU work last, by the numbers that the
        report alone tells.
    """
    found = _ranks_of(trace)
    numbers, _ = _numbered([_told(trace, [process for process, _ in found])])
    operations = (patterns or CommunicationPatterns()).operations(trace.kernel_names)
    steps = find_steps(trace, step_pattern)
    ranks = []
    for number, (process, device) in zip(numbers, found, strict=True):
        key = None if device is None else RankKey(process, device)
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
                step_ranges=steps.get(process),
                peak_overrides=peak_overrides or {},
            )
        )
    return ranks


def open_run(traces: Sequence[Trace]) -> Run:
    """Read the GPU operations of all reports and sort them into the ranks of a run.

    Args:
        traces: open reports of one run.
    """
    return run_of(traces, [open_report(trace) for trace in traces])


def run_of(traces: Sequence[Trace], ranks: Sequence[Sequence[Rank]]) -> Run:
    """Return the run that open reports are of.

    Args:
        traces: in the order given.
        ranks: of each report, by the numbers that it alone tells.
    """
    reports = [summary_of(trace, own) for trace, own in zip(traces, ranks, strict=True)]
    return with_ranks(run_of_reports(reports, ranks), traces, ranks)


def summary_of(trace: Trace, ranks: Sequence[Rank]) -> ReportSummary:
    """Return what is kept of a report: of its notes, those that were found so far.

    Args:
        trace: the report.
        ranks: its ranks.
    """
    return ReportSummary(
        path=trace.path,
        format=trace.format,
        origin=trace.origin,
        product_version=trace.product_version,
        schema_version=trace.schema_version,
        how_to_collect=trace.how_to_collect,
        notes=tuple(trace.notes),
        contents=() if ranks else tuple(trace.contents()),
        identity=_with_host_ranks(_identity(trace), ranks),
        told=_told(trace, [rank.process for rank in ranks]),
        host_gaps={
            rank.process: CpuRankGaps(rank.work.used_gpu, rank.work.num_open)
            for rank in ranks
            if isinstance(rank, CpuRank)
        },
    )


def run_of_reports(
    reports: Sequence[ReportSummary], ranks: Sequence[Sequence[RankInfo]]
) -> RunSummary:
    """Return the run that reports are of.

    Args:
        reports: in the order given.
        ranks: of each report, by the numbers that it alone tells.
    """
    numbers, rank_source = _numbered([report.told for report in reports])
    numbered_ranks = [
        RankInfo(number, report, rank.process, rank.pid, rank.device, rank.gpu, rank.gpu_id)
        for number, (report, rank) in zip(
            numbers,
            ((report, rank) for report, own in enumerate(ranks) for rank in own),
            strict=True,
        )
    ]
    runs = runs_of([report.identity for report in reports])
    clocks = seeded([report.session for report in reports], runs)
    return RunSummary(tuple(reports), tuple(numbered_ranks), clocks, tuple(runs), rank_source)


def with_ranks(facts: RunSummary, traces: Sequence[Trace], ranks: Sequence[Sequence[Rank]]) -> Run:
    """Return the same run with its open reports and their ranks."""
    opened = [each for own in ranks for each in own]
    numbered_ranks = tuple(
        replace(rank, rank=each.rank, report=each.report)
        for rank, each in zip(opened, facts.ranks, strict=True)
    )
    return Run(
        facts.reports, numbered_ranks, facts.clocks, facts.run_of, facts.rank_source, tuple(traces)
    )


def _ranks_of(trace: Trace) -> list[tuple[int, int | None]]:
    """Return process and device of each rank of a report; the device is None without GPU work."""
    keys = sorted(trace.operations, key=lambda key: (trace.pid(key.process), key))
    with_gpu = {key.process for key in keys}
    without = [
        process
        for process, ranges in trace.label_ranges.items()
        if process not in with_gpu and is_rank(ranges)
    ]
    without.sort(key=lambda process: (trace.pid(process), process))
    return [*((key.process, key.device) for key in keys), *((process, None) for process in without)]


def _told(trace: Trace, processes: Sequence[int]) -> dict[str, tuple[int | None, ...]]:
    """Return what each source says of the numbers of a report's ranks, by the ranks' processes."""
    of_environment = rank_of_environment(trace.session.environment)
    of_file = rank_of_file(trace.path)
    return {
        "labels": tuple(trace.labelled_rank(process) for process in processes),
        "nccl": tuple(trace.communication_calls(process).rank for process in processes),
        "mpi": tuple(trace.global_rank(process) for process in processes),
        "environment": tuple(of_environment for _ in processes),
        "file name": tuple(of_file for _ in processes),
    }


def _numbered(told: Sequence[Mapping[str, tuple[int | None, ...]]]) -> tuple[list[int], str]:
    """Return the numbers of all reports' ranks and what told them."""
    num_ranks = [len(each[_OF_RANKS[0]]) for each in told]
    sources = _OF_RANKS if max(num_ranks, default=0) > 1 else (*_OF_RANKS, *_OF_REPORTS)
    candidates = ((source, [one for each in told for one in each[source]]) for source in sources)
    return numbered(candidates, sum(num_ranks))


def _identity(trace: Trace) -> Report:
    spans = []
    for each in trace.operations.values():
        spans.append(each.span_ns)
        each.release()
    processes = sorted({key.process for key in trace.operations})
    calls = [trace.communication_calls(process).nccl for process in processes]
    return Report(
        path=trace.path,
        session=trace.session,
        start_ns=min((start for start, _ in spans), default=0),
        end_ns=max((end for _, end in spans), default=0),
        communicators=frozenset(
            name
            for call in calls
            for index, name in enumerate(call.communicators)
            if (call.world_size[call.communicator == index] != 1).all()
        ),
    )


def _with_host_ranks(report: Report, ranks: Sequence[Rank]) -> Report:
    """Return the same of a report that also lasts as long as its ranks without a GPU."""
    spans = [(rank.window.start_ns, rank.window.end_ns) for rank in ranks if rank.device is None]
    if not spans:
        return report
    if any(rank.device is not None for rank in ranks):
        spans.append((report.start_ns, report.end_ns))
    return replace(
        report,
        start_ns=min(start for start, _ in spans),
        end_ns=max(end for _, end in spans),
    )
