"""The part of a job that this process records: machine, rank, and the number of recorders."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.recording.training_command import TrainingCommand

# Variables of launchers of a process per rank or node: rank, number of ranks, rank on the machine.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    # Of `srun`; the script of a batch job has a SLURM_PROCID as well, but is no step.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)


@dataclass(frozen=True)
class Job:
    """The job that this process is part of."""

    host: str  # the machine's name, as it stands in names of files
    rank: int | None = None  # the rank that is recorded here; None for all ranks of this machine
    index: int | None = 0  # of this recorder among all, from 0; None if unknown
    num_recorders: int = 1  # processes that record at the same time, each a report of its own
    # whether this is the first on its machine, which records shared counters
    is_first_here: bool = True

    @property
    def name(self) -> str:
        """The name of the report, without its ending."""
        return self.host if self.rank is None else f"{self.host}-rank{self.rank}"


def job_of(environment: Mapping[str, str], command: TrainingCommand) -> Job:
    """Return the job that the environment and the command describe."""
    host = file_stem(socket.gethostname())
    for rank_variable, size_variable, local_variable in _LAUNCHERS:
        rank, size = (environment.get(name, "") for name in (rank_variable, size_variable))
        if not rank.isdecimal() or not size.isdecimal() or int(size) < 1:
            continue
        if rank_variable == "SLURM_PROCID" and _is_one_a_node(environment, int(size)):
            return Job(host, None, int(rank), int(size))
        local = environment.get(local_variable, "0")
        return Job(host, int(rank), int(rank), int(size), local in {"", "0"})
    num_nodes = command.num_nodes or 1
    if num_nodes == 1:
        return Job(host)
    return Job(host, None, command.node, num_nodes)


def file_stem(host: str) -> str:
    """Return a machine's name as it may stand in the name of a file."""
    return re.sub(r"[^\w.-]", "_", host) or "host"


def _is_one_a_node(environment: Mapping[str, str], num_tasks: int) -> bool:
    """Return whether `srun` started one task on each node, which starts the ranks itself."""
    nodes = environment.get("SLURM_STEP_NUM_NODES") or environment.get("SLURM_NNODES", "")
    return nodes.isdecimal() and int(nodes) == num_tasks
