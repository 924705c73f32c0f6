"""Which reports belong to one run, and which rank each process is.

Two reports are of one run if both contain the same NCCL communicator (its id is random), or if they
were captured at the same time and ran the same program.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from traceprof.structs import Record
from traceprof.trace.model.trace import Session, Trace

Numbers = Sequence[int | None]

# Reports of one run are captured together, up to the difference of the machines' clocks.
_APART_NS = 5_000_000_000
_PYTHON = re.compile(r"python[\d.]*\Z")


class ReportIdentity(Record, frozen=True):
    """The facts by which a report is assigned to a run."""

    path: Path  # of the report
    session: Session  # where and when it was captured
    start_ns: int  # its first GPU operation, or range of a rank without one, in the report's time
    end_ns: int  # the end of the last
    communicators: AbstractSet[str]  # ids of NCCL communicators of several ranks
    world_size: int | None = None  # the number of processes of the run, None if unknown
    # pid, device (None for a rank without one), start, end and a checksum of the operations' times
    # of each rank: of two recordings they differ
    work: AbstractSet[tuple[int, int | None, int, int, int]] = frozenset()


def identify(trace: Trace, cpu_work: Iterable[tuple[int, int, int]]) -> ReportIdentity:
    """Return the facts by which a report is assigned to a run.

    `cpu_work` has pid, start and end of the work of each rank without a GPU.
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
    """Whether a report that was opened again holds other GPU operations than before."""
    return {work for work in report.work if work[1] is not None} != {*_gpu_work(trace)}


def number_runs(reports: Sequence[ReportIdentity]) -> list[int]:
    """Number of the run of each report, 0 for the run of the first report."""
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
        checksum = 0
        for group in operations.groups:
            checksum = zlib.crc32(group.end_ns.data, zlib.crc32(group.start_ns.data, checksum))
        yield trace.pid(key.process), key.device, *operations.span_ns, checksum
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
    session = report.session
    if session.is_utc:
        return report.start_ns, report.end_ns
    if session.start_utc_ns is None:
        return None
    return session.start_utc_ns + report.start_ns, session.start_utc_ns + report.end_ns


# In order of trust; a number of a whole report is that of its only rank.
SOURCES_OF_RANKS = ("labels", "torch", "nccl", "mpi")
_SOURCES_OF_REPORTS = ("environment", "file name")
# In order of trust, too.
RANK_VARIABLES = (
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "SLURM_PROCID",
)
_SIZE_VARIABLES = (
    "WORLD_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_NTASKS",
)
_OF_FILE = re.compile(r"rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)
# SGLang's; of a later pipeline stage it is not the rank.
_OF_TENSOR_PARALLEL = re.compile(r"(?<![A-Za-z])TP-(\d{1,6})(?!\d)(?!.*-PP-0*[1-9])")


def numbers_by_source(trace: Trace, processes: Sequence[int]) -> dict[str, tuple[int | None, ...]]:
    """Numbers of the ranks of some processes of a report, by source."""
    of_environment = rank_of_environment(trace.session.environment)
    of_file = rank_of_file(trace.path)
    return {
        "labels": tuple(trace.labelled_rank(process) for process in processes),
        "torch": tuple(trace.distributed_rank(process) for process in processes),
        "nccl": tuple(trace.communication_calls(process).rank for process in processes),
        "mpi": tuple(trace.global_rank(process) for process in processes),
        "environment": tuple(of_environment for _ in processes),
        "file name": tuple(of_file for _ in processes),
    }


def number_ranks(reports: Sequence[Mapping[str, Numbers]]) -> tuple[list[int], str]:
    """Return the numbers of all ranks of a run, and their source."""
    num_ranks = [len(numbers[SOURCES_OF_RANKS[0]]) for numbers in reports]
    sources: tuple[str, ...] = SOURCES_OF_RANKS
    if max(num_ranks, default=0) <= 1:
        sources += _SOURCES_OF_REPORTS
    candidates = (
        (source, [number for numbers in reports for number in numbers[source]])
        for source in sources
    )
    return choose_numbers(candidates, sum(num_ranks))


def choose_numbers(
    candidates: Iterable[tuple[str, Numbers]], num_ranks: int
) -> tuple[list[int], str]:
    """Numbers of all ranks by the most trusted source that distinguishes them, else in order."""
    for source, numbers in candidates:
        known = [number for number in numbers if number is not None]
        if len(set(known)) == num_ranks and num_ranks:
            return known, source
    return list(range(num_ranks)), "order"


def may_have_others(trace: Trace, process: int) -> bool:
    """Whether a process has others in its run, or a rank in a run of unknown size."""
    of_launchers = _numbers(trace.session.environment, _SIZE_VARIABLES)
    sizes = [*of_launchers, *([] if trace.world_size is None else [trace.world_size])]
    numbers = [number for (number,) in numbers_by_source(trace, [process]).values()]
    if sizes:
        return max(sizes) > 1 or any(numbers)
    return process in trace.mpi_processes or any(number is not None for number in numbers)


def rank_of_environment(environment: Mapping[str, str]) -> int | None:
    """Rank that launchers put into the environment of a process, None without one."""
    return next(iter(_numbers(environment, RANK_VARIABLES)), None)


def _numbers(environment: Mapping[str, str], names: Iterable[str]) -> list[int]:
    values = (environment.get(name, "") for name in names)
    return [int(value) for value in values if value.isdecimal() and len(value) < 10]


def rank_of_file(path: Path) -> int | None:
    """Rank in a file's name: `rank_3.sqlite`, `report.rank3.sqlite`, `…-TP-3.json`."""
    numbers = _OF_FILE.findall(path.name) or _OF_TENSOR_PARALLEL.findall(path.name)
    return int(numbers[-1]) if numbers else None
