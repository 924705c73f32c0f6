"""A run: one or more reports of one training run, as ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceprof.clocks import Clocks, seeded
from traceprof.communication import CommunicationPatterns
from traceprof.host_work import is_rank
from traceprof.rank import HostRank, Mask, Rank, Window
from traceprof.recognition import Report, numbered, rank_of_environment, rank_of_file, runs_of
from traceprof.steps import find_steps
from traceprof.trace.model import NO_OPERATIONS, RankKey

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping, Sequence

    from traceprof.trace.model import Trace

__all__ = ["HostRank", "Mask", "Rank", "Run", "Window", "open_run"]


@dataclass(frozen=True, slots=True)
class Run:
    """The reports of one training run.

    Attributes:
        traces: the reports, in the order given.
        ranks: their ranks, in order of (report, pid, device); of each report, those without GPU
            work come last.
        clocks: the reports' clocks, as their sessions' starts tell them.
        run_of: for each report, which run it is of: 0, unless reports of several runs were given.
        rank_source: what told the ranks' numbers: `labels`, `nccl`, `mpi`, `environment`, `file
            name`, or `order`, where nothing does.
    """

    traces: Sequence[Trace]
    ranks: Sequence[Rank]
    clocks: Clocks
    run_of: Sequence[int]
    rank_source: str


def open_run(
    traces: Sequence[Trace],
    patterns: CommunicationPatterns | None = None,
    step_pattern: re.Pattern[str] | None = None,
    peak_overrides: Mapping[str, float] | None = None,
) -> Run:
    """Read the GPU operations of all reports and sort them into ranks.

    Args:
        traces: open reports of one run.
        patterns: what is communication; the built-in table where not given.
        step_pattern: the user's own pattern for the range around a training step.
        peak_overrides: peak rates of links that the user knows better, GB/s by link.
    """
    patterns = patterns or CommunicationPatterns()
    found = [
        (report, trace, process, device)
        for report, trace in enumerate(traces)
        for process, device in _ranks_of(trace)
    ]
    numbers, rank_source = _rank_numbers(
        [(report, trace, process) for report, trace, process, _ in found]
    )
    steps = [find_steps(trace, step_pattern) for trace in traces]
    operations = [patterns.operations(trace.kernel_names) for trace in traces]
    ranks = []
    for number, (report, trace, process, device) in zip(numbers, found, strict=True):
        key = None if device is None else RankKey(process, device)
        ranks.append(
            (HostRank if key is None else Rank)(
                rank=number,
                report=report,
                process=process,
                pid=trace.pid(process),
                device=device,
                gpu=None if key is None else trace.gpu_name(key),
                gpu_id=None if key is None else trace.gpu_id(key),
                trace=trace,
                operations=NO_OPERATIONS if key is None else trace.operations[key],
                kernel_names=trace.kernel_names,
                communication_operations=operations[report],
                copy_kinds=trace.copy_kinds,
                step_ranges=steps[report].get(process),
                peak_overrides=peak_overrides or {},
            )
        )
    runs = runs_of([_report(trace) for trace in traces])
    clocks = seeded([trace.session for trace in traces], runs)
    return Run(tuple(traces), tuple(ranks), clocks, tuple(runs), rank_source)


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


def _rank_numbers(found: Sequence[tuple[int, Trace, int]]) -> tuple[list[int], str]:
    """Return the ranks' numbers and what told them, by report and process."""
    told = {
        "labels": [trace.labelled_rank(process) for _, trace, process in found],
        "nccl": [trace.communication_calls(process).rank for _, trace, process in found],
        "mpi": [trace.global_rank(process) for _, trace, process in found],
    }
    reports = [report for report, *_ in found]
    if len(set(reports)) == len(reports):  # what is said of a report is said of its only rank
        told["environment"] = [
            rank_of_environment(trace.session.environment) for _, trace, _ in found
        ]
        told["file name"] = [rank_of_file(trace.path) for _, trace, _ in found]
    return numbered(told.items(), len(found))


def _report(trace: Trace) -> Report:
    groups = [each for of in trace.operations.values() for each in of.groups if len(each)]
    processes = sorted({key.process for key in trace.operations})
    calls = [trace.communication_calls(process).nccl for process in processes]
    return Report(
        path=trace.path,
        session=trace.session,
        start_ns=min((int(each.start_ns[0]) for each in groups), default=0),
        end_ns=max((int(each.end_ns.max()) for each in groups), default=0),
        communicators={
            name
            for each in calls
            for index, name in enumerate(each.communicators)
            if (each.world_size[each.communicator == index] != 1).all()
        },
    )
