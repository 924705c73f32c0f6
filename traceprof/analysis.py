"""All analyses over a run: numbers first, then what they mean."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from traceprof import intervals
from traceprof.analyses import (
    breakdown,
    collectives,
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
)
from traceprof.communication import CommunicationPatterns, user_patterns
from traceprof.errors import UsageError
from traceprof.findings import Finding, NotApplicable
from traceprof.hardware import parse_peaks
from traceprof.run import Run, Window, open_run
from traceprof.steps import user_pattern
from traceprof.trace import schema
from traceprof.trace.open import open_trace

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from traceprof.run import Rank
    from traceprof.trace.model import Progress

Result_co = TypeVar("Result_co", covariant=True)
Range = tuple["int | None", "int | None"]


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
)
_MODULES = range(len(ANALYSES))
_THREADS = 2  # a third only waits for Python's lock
FINDING_IDS = tuple(each for module in ANALYSES for each in module.IDS)


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
        results: what each of `ANALYSES` measured, by rank.
        findings: the costliest first.
        not_applicable: findings that could be neither made nor ruled out.
        notes: (report index, what to know about its data).
    """

    run: Run
    results: tuple[tuple[Any, ...], ...]
    findings: tuple[Finding, ...]
    not_applicable: tuple[NotApplicable, ...]
    notes: tuple[tuple[int, str], ...]

    def of(self, module: AnalysisModule) -> tuple[Any, ...]:
        """Return what a module of `ANALYSES` measured, by rank."""
        return self.results[ANALYSES.index(module)]

    @property
    def breakdown(self) -> tuple[breakdown.BreakdownResult, ...]:
        """Where the time went, by rank."""
        return self.of(breakdown)

    @property
    def collectives(self) -> tuple[collectives.CollectivesResult, ...]:
        """Communication kernels by operation, by rank."""
        return self.of(collectives)

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
    except Exception:  # after an interrupt a thread may still be reading
        for trace in traces:
            trace.close()
        raise


def _analyse(run: Run, options: Options) -> Analysis:
    windows = choose_windows(run.ranks, options)
    ranks = [(rank, window) for rank, window in zip(run.ranks, windows, strict=True) if window]
    results = _measure(ranks)
    judged = [
        each
        for module, of_module in zip(ANALYSES, results, strict=True)
        for result in of_module
        for each in module.findings(result)
    ]
    judged += _without_gpu_work(run)
    wanted = [each for each in judged if _is_wanted(each.id, options)]
    # Copies and counters may both see a link at its limit.
    found = link_findings.distinct([each for each in wanted if isinstance(each, Finding)])
    missing = [each for each in wanted if isinstance(each, NotApplicable)]
    found.sort(key=lambda each: (-each.severity, -each.impact_ns, each.id, each.rank))
    return Analysis(
        run,
        results=tuple(tuple(of_module) for of_module in results),
        findings=tuple(found),
        not_applicable=tuple(_merged(missing, len(ranks))),
        notes=tuple(_notes(run)),
    )


def _measure(ranks: Sequence[tuple[Rank, Window]]) -> list[list[Any]]:
    """Return what each of `ANALYSES` measures, by rank.

    Threads share the ranks: numpy works without Python's lock. The first rank of each report is
    measured before the others of that report, since it reads what they will share.
    """
    firsts = {rank.report: index for index, (rank, _) in reversed(list(enumerate(ranks)))}.values()
    others = [index for index in range(len(ranks)) if index not in set(firsts)]
    by_rank: dict[int, list[Any]] = {}
    with ThreadPoolExecutor(_THREADS) as pool:
        for indices in (list(firsts), others):
            measured = pool.map(_measure_rank, (ranks[index] for index in indices))
            by_rank.update(zip(indices, measured, strict=True))
    return [[by_rank[index][module] for index in range(len(ranks))] for module in _MODULES]


def _measure_rank(chosen: tuple[Rank, Window]) -> list[Any]:
    rank, window = chosen
    results = [module.run(rank, window) for module in ANALYSES]
    rank.forget()
    return results


def choose_windows(ranks: Sequence[Rank], options: Options) -> list[Window | None]:
    """Return the window of each rank; None for a rank without the steps asked for.

    Raises:
        UsageError: steps or a time range that no rank has.
    """
    if options.steps is not None and options.time_range is not None:
        raise UsageError(
            "cannot choose a window", "both steps and a time range are given", "give one of them"
        )
    if options.steps is not None:
        return _step_windows(ranks, options.steps)
    if options.time_range is not None:
        return [_time_window(rank, options.time_range) for rank in ranks]
    return [rank.window for rank in ranks]


def _step_windows(ranks: Sequence[Rank], steps: Range) -> list[Window | None]:
    windows = [_step_window(rank, steps) for rank in ranks]
    if not any(windows):
        numbers = [each for rank in ranks if rank.steps for each in rank.steps.number.tolist()]
        raise UsageError(
            f"cannot analyse the steps {_written(steps)}",
            f"the steps found are {min(numbers)} to {max(numbers)}"
            if numbers
            else "no training step was found",
            "choose among them"
            if numbers
            else "name the range around a step with --step-pattern, or use --time-range",
        )
    return windows


def _step_window(rank: Rank, steps: Range) -> Window | None:
    if rank.steps is None:
        return None
    first, stop = steps
    numbers = rank.steps.number
    chosen = numbers >= (numbers.min(initial=0) if first is None else first)
    if stop is not None:
        chosen &= numbers < stop
    indices = chosen.nonzero()[0]
    if len(indices) == 0:
        return None
    if indices[-1] - indices[0] + 1 != len(indices):
        raise UsageError(
            f"cannot analyse the steps {_written(steps)}",
            "these numbers occur more than once in the report",
            "choose by --time-range",
        )
    return Window(int(rank.steps.start_ns[indices[0]]), int(rank.steps.end_ns[indices[-1]]))


def _time_window(rank: Rank, time_range: Range) -> Window:
    """Return the range, an open side being the rank's own; empty where it misses the rank."""
    start, end = time_range
    own = rank.window
    if start is None and end is None:
        return own
    if start is not None and end is not None and end < start:
        raise UsageError(
            f"cannot analyse the time range {_written(time_range)}",
            "it ends before it starts",
            "write it as START:END",
        )
    if any(each is not None and abs(each) >= intervals.BEYOND_NS for each in time_range):
        raise UsageError(
            f"cannot analyse the time range {_written(time_range)}",
            "it reaches beyond any clock",
            "write times in ns, or with a unit, such as 1.5s:1.7s",
        )
    low = own.start_ns if start is None else start
    return Window(low, max(low, own.end_ns if end is None else end))


def _written(limits: Range) -> str:
    return ":".join("" if each is None else str(each) for each in limits)


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


def _without_gpu_work(run: Run) -> list[NotApplicable]:
    """Say that nothing can be judged where no report holds GPU work."""
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


def _merged(missing: Sequence[NotApplicable], num_ranks: int) -> Iterable[NotApplicable]:
    """Say once, of the whole run, what is missing in the same way on every rank."""
    of_run = [replace(each, rank=None) for each in missing]
    said = set()
    for each, whole in zip(missing, of_run, strict=True):
        if of_run.count(whole) < num_ranks:
            yield each
        elif whole not in said:
            said.add(whole)
            yield whole


def _notes(run: Run) -> Iterable[tuple[int, str]]:
    with_ranks = {rank.report for rank in run.ranks}
    for index, trace in enumerate(run.traces):
        for note in trace.notes:
            yield index, note
        if index not in with_ranks:
            held = [
                f"{count} {schema.EVENT_TABLES.get(table, table)}"
                for table, count in trace.contents().items()
            ]
            yield index, f"no GPU operation, so no rank; it holds {', '.join(held) or 'no events'}"
