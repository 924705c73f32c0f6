"""Which number each rank has in its run, and who says so.

Ranks are numbered by the first of these sources that tells all of them apart: the labels of
`instrument`, what torch.distributed told the profiler, what NCCL's payloads say of a communicator
of all, MPI, the environment, the file names; else in order of (report, pid, device).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from traceprof.trace.model.trace import Trace

    Numbers = Sequence[int | None]

# In the order in which they are believed; what is said of a report is said of its only rank.
_SOURCES_OF_RANKS = ("labels", "torch", "nccl", "mpi")
_SOURCES_OF_REPORTS = ("environment", "file name")
# Likewise.
RANK_VARIABLES = (
    "RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID",
)  # fmt: skip
_OF_FILE = re.compile(r"rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)


def numbers_by_source(trace: Trace, processes: Sequence[int]) -> dict[str, tuple[int | None, ...]]:
    """Return what each source says of the numbers of a report's ranks.

    Args:
        trace: the report.
        processes: of its ranks.
    """
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
    """Return the numbers of all ranks of a run, and the source that told them.

    Args:
        reports: what each source says of each report's ranks.
    """
    num_ranks = [len(numbers[_SOURCES_OF_RANKS[0]]) for numbers in reports]
    sources: tuple[str, ...] = _SOURCES_OF_RANKS
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
    """Return the ranks' numbers and what told them.

    Args:
        candidates: sources by name, the most trusted first, and what each says of every rank.
        num_ranks: how many there are.

    Returns:
        The numbers by the first source that tells all of them apart, else in order.
    """
    for source, numbers in candidates:
        known = [number for number in numbers if number is not None]
        if len(set(known)) == num_ranks and num_ranks:
            return known, source
    return list(range(num_ranks)), "order"


def rank_of_environment(environment: Mapping[str, str]) -> int | None:
    """Return the rank that launchers put into the environment of a process, None without one."""
    values = (environment.get(name, "") for name in RANK_VARIABLES)
    return next((int(value) for value in values if value.isdecimal() and len(value) < 10), None)


def rank_of_file(path: Path) -> int | None:
    """Return the rank that a file's name tells: `rank_3.sqlite`, `report.rank3.sqlite`."""
    numbers = _OF_FILE.findall(path.name)
    return int(numbers[-1]) if numbers else None
