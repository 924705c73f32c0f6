"""The number of each rank in its run, and the source of the numbers.

Ranks are numbered by the first of these sources that distinguishes all of them: the labels of
`instrument`, torch.distributed's entries in the profile, NCCL's payloads for a communicator of all
ranks, MPI, the environment, the file names; else in order of (report, pid, device).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from traceprof.patterns import lazy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from traceprof.trace.model.trace import Trace

    Numbers = Sequence[int | None]

# In order of trust; a number of a whole report is that of its only rank.
SOURCES_OF_RANKS = ("labels", "torch", "nccl", "mpi")
_SOURCES_OF_REPORTS = ("environment", "file name")
# In order of trust, too.
RANK_VARIABLES = (
    "RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID",
)  # fmt: skip
_SIZE_VARIABLES = (
    "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE",
    "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS",
)  # fmt: skip
_OF_FILE = lazy(r"rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)
# SGLang's; of a later pipeline stage it is not the rank.
_OF_TENSOR_PARALLEL = lazy(r"(?<![A-Za-z])TP-(\d{1,6})(?!\d)(?!.*-PP-0*[1-9])")


def numbers_by_source(trace: Trace, processes: Sequence[int]) -> dict[str, tuple[int | None, ...]]:
    """Return the numbers of a report's ranks by source.

    Args:
        trace: the report.
        processes: those of its ranks.
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
    """Return the numbers of all ranks of a run, and their source.

    Args:
        reports: the numbers of each report's ranks, by source.
    """
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
    """Return the ranks' numbers and their source.

    Args:
        candidates: the number of every rank by source, the most trusted source first.
        num_ranks: the number of ranks.

    Returns:
        The numbers by the first source that distinguishes all of them, else in order.
    """
    for source, numbers in candidates:
        known = [number for number in numbers if number is not None]
        if len(set(known)) == num_ranks and num_ranks:
            return known, source
    return list(range(num_ranks)), "order"


def may_have_others(trace: Trace, process: int) -> bool:
    """Return whether a process has others in its run, or a rank in one of unknown size.

    Args:
        trace: the report.
        process: the process.
    """
    of_launchers = _numbers(trace.session.environment, _SIZE_VARIABLES)
    sizes = [*of_launchers, *([] if trace.world_size is None else [trace.world_size])]
    numbers = [number for (number,) in numbers_by_source(trace, [process]).values()]
    if sizes:
        return max(sizes) > 1 or any(numbers)
    return process in trace.mpi_processes or any(number is not None for number in numbers)


def rank_of_environment(environment: Mapping[str, str]) -> int | None:
    """Return the rank that launchers put into the environment of a process, None without one."""
    return next(iter(_numbers(environment, RANK_VARIABLES)), None)


def _numbers(environment: Mapping[str, str], names: Iterable[str]) -> list[int]:
    values = (environment.get(name, "") for name in names)
    return [int(value) for value in values if value.isdecimal() and len(value) < 10]


def rank_of_file(path: Path) -> int | None:
    """Return the rank in a file's name: `rank_3.sqlite`, `report.rank3.sqlite`, `…-TP-3.json`."""
    numbers = _OF_FILE.findall(path.name) or _OF_TENSOR_PARALLEL.findall(path.name)
    return int(numbers[-1]) if numbers else None
