"""Recognition of reports that belong to one run.

Two reports are of one run if both contain the same NCCL communicator (its id is random), or if they
were captured at the same time and ran the same program.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from traceprof.patterns import lazy
from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from traceprof.trace.model.trace import Session, Trace

# Reports of one run are captured together, up to the difference of the machines' clocks.
_APART_NS = 5_000_000_000
_PYTHON = lazy(r"python[\d.]*\Z")


class ReportIdentity(Record, frozen=True):
    """The facts by which a report is assigned to a run.

    Attributes:
        path: of the report.
        session: where and when it was captured.
        start_ns: its first GPU operation, or range of a rank without one, in the report's time.
        end_ns: the end of the last.
        communicators: ids of NCCL communicators of several ranks.
        world_size: the number of processes of the run, None if unknown.
        work: pid, device (None for a rank without one), start, end and number of operations of each
            rank: of two recordings they differ.
    """

    path: Path
    session: Session
    start_ns: int
    end_ns: int
    communicators: AbstractSet[str]
    world_size: int | None = None
    work: AbstractSet[tuple[int, int | None, int, int, int]] = frozenset()


def identify(trace: Trace, cpu_work: Iterable[tuple[int, int, int]]) -> ReportIdentity:
    """Return the facts by which a report is assigned to a run.

    Args:
        trace: the report.
        cpu_work: pid, start and end of the work of each rank without a GPU.
    """
    processes = sorted({key.process for key in trace.operations})
    calls = [trace.communication_calls(process).nccl for process in processes]
    work = [*_gpu_work(trace), *((pid, None, start, end, 0) for pid, start, end in cpu_work)]
    return ReportIdentity(
        path=trace.path,
        session=trace.session,
        start_ns=min((start for _, _, start, _, _ in work), default=0),
        end_ns=max((end for _, _, _, end, _ in work), default=0),
        communicators=frozenset(
            name
            for call in calls
            for index, name in enumerate(call.communicators)
            if (call.world_size[call.communicator == index] != 1).all()
        ),
        world_size=trace.world_size,
        work=frozenset(work),
    )


def has_changed(report: ReportIdentity, trace: Trace) -> bool:
    """Return whether a report that was opened again holds other GPU operations than before."""
    return {work for work in report.work if work[1] is not None} != {*_gpu_work(trace)}


def number_runs(reports: Sequence[ReportIdentity]) -> list[int]:
    """Return the number of the run that each report is of, 0 for that of the first report."""
    runs: list[list[int]] = []
    for index, report in enumerate(reports):
        joined = [run for run in runs if any(_is_one_run(reports[other], report) for other in run)]
        if not joined:
            runs.append([index])
            continue
        grown, *others = joined  # changed in place: copies would take quadratic time
        for run in others:
            grown += run
            runs = [other for other in runs if other is not run]
        grown.append(index)
    first = {index: min(run) for run in runs for index in run}
    order = {report: number for number, report in enumerate(sorted(set(first.values())))}
    return [order[first[index]] for index in range(len(reports))]


def program(command_line: Sequence[str]) -> str | None:
    """Return the program of a command line: the script where an interpreter runs one."""
    words = list(command_line)
    if words and _PYTHON.search(Path(words[0]).name):
        rest = words[1:]
        if "-m" in rest[:-1]:
            return rest[rest.index("-m") + 1]
        words = [word for word in rest if not word.startswith("-")] or words
    return Path(words[0]).name if words else None


def _gpu_work(trace: Trace) -> Iterator[tuple[int, int | None, int, int, int]]:
    for key, operations in trace.operations.items():
        yield trace.pid(key.process), key.device, *operations.span_ns, len(operations)
        operations.release()


def _is_one_run(first: ReportIdentity, second: ReportIdentity) -> bool:
    if first.communicators & second.communicators:
        return True
    programs = program(first.session.command_line), program(second.session.command_line)
    if None not in programs and programs[0] != programs[1]:
        return False
    first_span, second_span = _span(first), _span(second)
    if first_span is None or second_span is None:
        return True  # there is no evidence against it, and they were given as one run
    return max(first_span[0], second_span[0]) <= min(first_span[1], second_span[1]) + _APART_NS


def _span(report: ReportIdentity) -> tuple[int, int] | None:
    """Return when the report's operations ran, in ns since 1970; None if unknown."""
    session = report.session
    if session.is_utc:
        return report.start_ns, report.end_ns
    if session.start_utc_ns is None:
        return None
    return session.start_utc_ns + report.start_ns, session.start_utc_ns + report.end_ns
