"""Which reports are of one run, and which rank each process has in it.

Two reports are of one run if a communicator of NCCL's is in both (its id is drawn at random), or if
they were captured at the same time and run the same program. Ranks are numbered by the first of
these that tells all of them apart: the labels of `instrument`, what NCCL's payloads say of a
communicator of all, MPI, the environment, the file names; else in order of (report, pid, device).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from traceprof.trace.model.trace import Session

# In the order in which they are believed.
RANK_VARIABLES = (
    "RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID",
)  # fmt: skip
# Reports of one run are captured together, give or take the difference of the machines' clocks.
_APART_NS = 5_000_000_000
_OF_FILE = re.compile(r"rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)
_PYTHON = re.compile(r"python[\d.]*\Z")


@dataclass(frozen=True, slots=True)
class Report:
    """What tells of one report whether it belongs to a run.

    Attributes:
        path: of the report.
        session: where and when it was captured.
        start_ns: its first GPU operation, or range of a rank without one, in the report's time.
        end_ns: the end of the last.
        communicators: ids of NCCL's, of several ranks.
    """

    path: Path
    session: Session
    start_ns: int
    end_ns: int
    communicators: AbstractSet[str]


def runs_of(reports: Sequence[Report]) -> list[int]:
    """Return the number of the run that each report is of, 0 for that of the first report."""
    runs: list[list[int]] = []
    for index, report in enumerate(reports):
        own = [run for run in runs if any(_is_one_run(reports[each], report) for each in run)]
        runs = [run for run in runs if run not in own]
        runs.append([*(each for run in own for each in run), index])
    number = {each: min(run) for run in runs for each in run}
    order = sorted(set(number.values()))
    return [order.index(number[index]) for index in range(len(reports))]


def program(command_line: Sequence[str]) -> str | None:
    """Return the program of a command line: the script where an interpreter runs one."""
    words = list(command_line)
    if words and _PYTHON.search(Path(words[0]).name):
        rest = words[1:]
        if "-m" in rest[:-1]:
            return rest[rest.index("-m") + 1]
        words = [word for word in rest if not word.startswith("-")] or words
    return Path(words[0]).name if words else None


def _is_one_run(first: Report, second: Report) -> bool:
    if first.communicators & second.communicators:
        return True
    programs = program(first.session.command_line), program(second.session.command_line)
    if None not in programs and programs[0] != programs[1]:
        return False
    one, other = _span(first), _span(second)
    if one is None or other is None:
        return True  # nothing says otherwise, and they were given as one run
    return max(one[0], other[0]) <= min(one[1], other[1]) + _APART_NS


def _span(report: Report) -> tuple[int, int] | None:
    """Return when the report's operations ran, in ns since 1970; None where it does not tell."""
    session = report.session
    if session.is_utc:
        return report.start_ns, report.end_ns
    if session.start_utc_ns is None:
        return None
    return session.start_utc_ns + report.start_ns, session.start_utc_ns + report.end_ns


def rank_of_environment(environment: Mapping[str, str]) -> int | None:
    """Return the rank that launchers put into the environment of a process, None without one."""
    values = (environment.get(name, "") for name in RANK_VARIABLES)
    return next((int(value) for value in values if value.isdecimal() and len(value) < 10), None)


def rank_of_file(path: Path) -> int | None:
    """Return the rank that a file's name tells: `rank_3.sqlite`, `report.rank3.sqlite`."""
    found = _OF_FILE.findall(path.name)
    return int(found[-1]) if found else None


def numbered(
    candidates: Iterable[tuple[str, Sequence[int | None]]], num_ranks: int
) -> tuple[list[int], str]:
    """Return the ranks' numbers and what told them.

    Args:
        candidates: sources by name, the most trusted first, and what each says of every rank.
        num_ranks: how many there are.

    Returns:
        The numbers by the first source that tells all of them apart, else in order.
    """
    for source, told in candidates:
        known = [each for each in told if each is not None]
        if len(set(known)) == num_ranks and num_ranks:
            return known, source
    return list(range(num_ranks)), "order"
