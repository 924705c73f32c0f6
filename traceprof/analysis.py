"""All analyses over a run: numbers first, then what they mean."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from traceprof import processes
from traceprof.analyses import (
    arrivals,
    breakdown,
    collectives,
    ddp_buckets,
    gpu_idle,
    host_sync,
    late_allreduce,
    launch_queue,
    link_counters,
    link_findings,
    link_usage,
    nccl_serialization,
    overlap_slowdown,
    pageable_copy,
    peer_transfers,
    process_group_scaling,
    process_groups,
    straggler,
)
from traceprof.communication import CommunicationPatterns, user_patterns
from traceprof.errors import UsageError
from traceprof.findings import Finding, NotApplicable
from traceprof.hardware import parse_peaks
from traceprof.host_activity import data_loading
from traceprof.notes import notes_of
from traceprof.run import Run, open_run
from traceprof.steps import user_pattern
from traceprof.trace.open import open_trace
from traceprof.windows import Range, choose_windows

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from traceprof.rank import Rank, Window
    from traceprof.trace import schema
    from traceprof.trace.model import Progress

Result_co = TypeVar("Result_co", covariant=True)


class AnalysisModule(Protocol):
    """The shape of every module in `traceprof.analyses`.

    Attributes:
        IDS: the findings it can make.
        REQUIRES: tables without which it cannot run.
        EXPLANATIONS: by finding id, in Markdown: what it means, how it is measured, what to do.
    """

    IDS: tuple[str, ...]
    REQUIRES: tuple[schema.Table, ...]
    EXPLANATIONS: dict[str, str]

    def run(self, rank: Rank, window: Window) -> Any:  # noqa: ANN401  (each has its own result)
        """Return numbers only."""

    def findings(self, result: Any) -> list[Finding | NotApplicable]:  # noqa: ANN401
        """Judge the numbers."""


class RunAnalysisModule(Protocol):
    """The shape of those modules that look at all ranks together.

    Attributes:
        IDS: the findings it can make.
        OF: the module whose results, by rank, it compares.
        EXPLANATIONS: by finding id, in Markdown.
    """

    IDS: tuple[str, ...]
    OF: AnalysisModule
    EXPLANATIONS: dict[str, str]

    def run(self, run: Run, measured: Sequence[Any]) -> Any:  # noqa: ANN401
        """Return numbers only."""

    def findings(self, result: Any) -> list[Finding | NotApplicable]:  # noqa: ANN401
        """Judge the numbers."""


# Of ranks with a GPU.
ANALYSES: tuple[AnalysisModule, ...] = (
    breakdown,
    gpu_idle,
    nccl_serialization,
    overlap_slowdown,
    launch_queue,
    link_usage,
    link_counters,
    peer_transfers,
    pageable_copy,
    host_sync,
    collectives,
    late_allreduce,
    arrivals,
    ddp_buckets,
)
# Of ranks without.
HOST_ANALYSES: tuple[AnalysisModule, ...] = (breakdown, process_groups, ddp_buckets)
# Of the whole run.
RUN_ANALYSES: tuple[RunAnalysisModule, ...] = (process_group_scaling, straggler)
_RANK_ANALYSES: tuple[AnalysisModule, ...] = tuple(dict.fromkeys((*ANALYSES, *HOST_ANALYSES)))
# A copy of the process takes some 20 ms, and these operations 100 ms of analyses.
_WORTH_SHARING = 400_000
FINDING_IDS = (
    *(each for module in _RANK_ANALYSES for each in module.IDS),
    *(each for module in RUN_ANALYSES for each in module.IDS),
)
_TEXTS = (
    *(module.EXPLANATIONS for module in _RANK_ANALYSES),
    *(module.EXPLANATIONS for module in RUN_ANALYSES),
)
EXPLANATIONS = {each: text for texts in _TEXTS for each, text in texts.items()}
"""What each finding means, how it is measured, what to do: in Markdown, by id."""


@dataclass(frozen=True)
class Options:
    """What to analyse.

    Attributes:
        only: finding ids to judge; all where empty.
        skip: finding ids not to judge.
        steps: steps A up to but not including B; None leaves that side open.
        time_range: nanoseconds of the report's own time, likewise.
        step_pattern: regular expression of the user's own step ranges.
        communication_kernels: `REGEX` or `REGEX=Operation` for kernels that communicate.
        link_peaks: `LINK=GB_PER_S` for links whose peak rate the user knows better.
    """

    only: Sequence[str] = ()
    skip: Sequence[str] = ()
    steps: Range | None = None
    time_range: Range | None = None
    step_pattern: str | None = None
    communication_kernels: Sequence[str] = ()
    link_peaks: Sequence[str] = ()


@dataclass(frozen=True)
class Analysis:
    """Everything that was found out about a run.

    Attributes:
        run: the reports and their ranks.
        results: what each module measured, by rank, of the ranks that it is for.
        findings: the costliest first.
        not_applicable: findings that could be neither made nor ruled out.
        notes: (report index, what to know about its data).
        ranks: how the ranks met: clocks, waits, transfers.
    """

    run: Run
    results: Mapping[AnalysisModule, tuple[Any, ...]]
    findings: tuple[Finding, ...]
    not_applicable: tuple[NotApplicable, ...]
    notes: tuple[tuple[int, str], ...]
    ranks: straggler.RanksResult

    def of(self, module: AnalysisModule) -> tuple[Any, ...]:
        """Return what a module measured, by rank: see each result's `rank`."""
        return self.results[module]

    @property
    def breakdown(self) -> tuple[breakdown.BreakdownResult, ...]:
        """Where the time went, by rank."""
        return self.of(breakdown)

    @property
    def collectives(
        self,
    ) -> tuple[collectives.CollectivesResult | process_groups.ProcessGroupsResult, ...]:
        """What was communicated, by operation, by rank."""
        return (*self.of(collectives), *self.of(process_groups))

    @property
    def buckets(self) -> tuple[ddp_buckets.DdpBucketsResult, ...]:
        """Gradient buckets, by rank."""
        return self.of(ddp_buckets)

    @property
    def links(self) -> tuple[link_usage.LinkUsageResult, ...]:
        """What copies carried, by rank."""
        return self.of(link_usage)

    @property
    def counters(self) -> tuple[link_counters.LinkCountersResult, ...]:
        """What sampled counters saw of the links, by rank."""
        return self.of(link_counters)

    def close(self) -> None:
        """Release the reports."""
        for trace in self.run.traces:
            trace.close()


def analyze(
    *paths: str | os.PathLike[str],
    options: Options | None = None,
    progress: Progress | None = None,
) -> Analysis:
    """Analyse the reports of one run.

    Args:
        paths: Nsight Systems exports.
        options: what to analyse; everything where not given.
        progress: told of the rows that are read, if somebody wants to know.

    Raises:
        TraceprofError: a report cannot be read, or the options ask for what is not there.
    """
    options = options or Options()
    _check_ids((*options.only, *options.skip))
    step_pattern = user_pattern(options.step_pattern) if options.step_pattern else None
    patterns = CommunicationPatterns(user_patterns(options.communication_kernels))
    traces = []
    try:
        for path in paths:
            traces.append(open_trace(path, progress))  # noqa: PERF401  (those opened must be closed)
        run = open_run(traces, patterns, step_pattern, parse_peaks(options.link_peaks))
        return _analyse(run, options)
    except BaseException:
        for trace in traces:
            trace.close()
        raise


def _analyse(run: Run, options: Options) -> Analysis:
    windows = choose_windows(run.ranks, options.steps, options.time_range)
    ranks = [(rank, window) for rank, window in zip(run.ranks, windows, strict=True) if window]
    results = _measure(ranks)
    judged = [
        each
        for module, of_module in results.items()
        for result in of_module
        for each in module.findings(result)
    ]
    met = [each.run(run, results[each.OF]) for each in RUN_ANALYSES]
    for module, result in zip(RUN_ANALYSES, met, strict=True):
        judged += module.findings(result)
    ranks_met: straggler.RanksResult = met[RUN_ANALYSES.index(straggler)]
    results[collectives] = tuple(
        collectives.with_transfers(each, straggler.transfers_of(ranks_met, member))
        for member, each in enumerate(results[collectives])
    )
    judged += _without_ranks(run)
    wanted = [each for each in judged if _is_wanted(each.id, options)]
    # Copies and counters may both see a link at its limit.
    found = link_findings.distinct([each for each in wanted if isinstance(each, Finding)])
    missing = [each for each in wanted if isinstance(each, NotApplicable)]
    found.sort(key=lambda each: (-each.severity, -each.impact_ns, each.id, each.rank))
    return Analysis(
        run,
        results=results,
        findings=tuple(found),
        not_applicable=tuple(_merged(missing, results)),
        notes=tuple(notes_of(run)),
        ranks=ranks_met,
    )


def _measure(ranks: Sequence[tuple[Rank, Window]]) -> dict[AnalysisModule, tuple[Any, ...]]:
    """Return what each module measures, by rank, of the ranks that it is for.

    Two processes share the ranks of large reports.
    """
    traces = list(dict.fromkeys(rank.trace for rank, _ in ranks))

    def forked() -> None:
        for trace in traces:
            trace.after_fork()

    num_operations = sum(len(each) for rank, _ in ranks for each in rank.operations.groups)
    for rank, _ in ranks:
        _read_what_ranks_share(rank)
    for trace in traces:
        trace.forget()
    if len(ranks) > 1 and num_operations >= _WORTH_SHARING and processes.can_fork():
        by_rank = processes.shared(_measure_rank, ranks, forked)
    else:
        by_rank = [_measure_rank(each) for each in ranks]
    return {
        module: tuple(results[index] for results in by_rank if index in results)
        for index, module in enumerate(_RANK_ANALYSES)
    }


def _read_what_ranks_share(rank: Rank) -> None:
    """Have the report read what all of its ranks need, so that it is not read twice."""
    trace = rank.trace
    trace.communication_calls(rank.process)
    data_loading(rank)
    # Read when they are first asked for.
    _ = rank.calls, trace.api_names, trace.counters, trace.has_unexported_stalls
    _ = trace.memory_kinds, trace.signatures, trace.launch_stalls(rank.process)


def _measure_rank(chosen: tuple[Rank, Window]) -> dict[int, Any]:
    """Return what the modules measure that are for the rank, by their place in _RANK_ANALYSES."""
    rank, window = chosen
    modules = HOST_ANALYSES if rank.device is None else ANALYSES
    results = {_RANK_ANALYSES.index(module): module.run(rank, window) for module in modules}
    rank.forget()
    return results


def _check_ids(ids: Iterable[str]) -> None:
    for each in ids:
        if each not in FINDING_IDS:
            raise UsageError(
                f"there is no finding {each!r}",
                f"this version finds {', '.join(FINDING_IDS)}",
                "choose among them",
            )


def _is_wanted(finding: str, options: Options) -> bool:
    return finding not in options.skip and (not options.only or finding in options.only)


def _without_ranks(run: Run) -> list[NotApplicable]:
    """Say that nothing can be judged where no report holds anything of a rank."""
    if run.ranks:
        return []
    return [
        NotApplicable(
            each,
            "no report holds a GPU operation",
            "nsys profile --trace=cuda,nvtx … (and see `traceprof info` for what it does hold)",
        )
        for each in FINDING_IDS
    ]


def _merged(
    missing: Sequence[NotApplicable], results: Mapping[AnalysisModule, Sequence[Any]]
) -> Iterable[NotApplicable]:
    """Say once, of the whole run, what is missing in the same way on every rank it is judged on."""
    num_ranks = {
        each: len(of_module) for module, of_module in results.items() for each in module.IDS
    }
    of_run = [replace(each, rank=None) for each in missing]
    said = set()
    for each, whole in zip(missing, of_run, strict=True):
        if of_run.count(whole) < num_ranks.get(each.id, 1):
            yield each
        elif whole not in said:
            said.add(whole)
            yield whole
