"""The job that is recorded: its command, this process's part of it, and the other recorders.

Several recorders of one job share only the folder, on a file system that all of them see: each
marks its reports as done, and one analyses all of them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from traceprof.units import counted

PYTHON = re.compile(r"python(\d(\.\d+)?)?$")
_LAUNCHERS = {"torchrun", "torch.distributed.run", "torch.distributed.launch"}
_MPI = {"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"}
_PYTHON_WITH_VALUE = {"-W", "-X", "--check-hash-based-pycs"}


class _Launcher(NamedTuple):
    """Options of a launcher, to be read up to the script; `_` in them is written `-`."""

    alone: re.Pattern[str]  # options without a value; all others have one
    num_nodes: tuple[str, str]  # the option for the number of nodes, and its default
    node: tuple[str, str]  # the same of this node's number
    # other versions have options that are unknown here, so that only a word that looks like a
    # script is one
    may_have_others: bool
    module_flag: str = "-m"  # before the name of a module


_TORCHRUN = _Launcher(
    re.compile(r"--(?:standalone|no-python|run-path|use-env|help)|-h"),
    ("--nnodes", "PET_NNODES"),
    ("--node-rank", "PET_NODE_RANK"),
    may_have_others=False,
)
_ACCELERATE = _Launcher(
    re.compile(
        r"--(?:cpu|debug|downcast-bf16|dynamo-use-(?:dynamic|fullgraph|regional-compilation)"
        r"|enable-cpu-affinity|fp16|fp8-use-autocast-during-eval|help|ipex|multi-gpu|no-python"
        r"|no-tpu-cluster|quiet|same-network|tpu|tpu-cluster|tpu-use-sudo|use-deepspeed|use-fsdp"
        r"|use-megatron-lm|use-mps-device|use-parallelism-config|use-xpu)|-[hq]"
    ),
    ("--num-machines", ""),
    ("--machine-rank", ""),
    may_have_others=True,
)
"""Of accelerate 1.15, and of older versions."""

_DEEPSPEED = _Launcher(
    re.compile(
        r"--(?:no-(?:python|local-rank|ssh|ssh-check)|force-multi|save-pid|bind-cores-to-rank"
        r"|elastic-training|help)|-h"
    ),
    ("", ""),  # started once, it starts the other nodes itself
    ("", ""),
    may_have_others=True,
    module_flag="--module",
)
_LAUNCHED_BY = {
    "torchrun": _TORCHRUN,
    "deepspeed": _DEEPSPEED,
    "ds": _DEEPSPEED,
    "accelerate-launch": _ACCELERATE,
}


@dataclass(frozen=True)
class TrainingCommand:
    """A command, taken apart."""

    words: tuple[str, ...]  # the command, as it was given
    # index of the word with which the Python script or `-m MODULE` begins; None if unknown, such
    # as for a shell script
    script: int | None
    python: str | None  # the Python that runs it, if known
    num_nodes: int | None = None  # torchrun's `--nnodes`; None if that is not one number
    node: int | None = None  # torchrun's `--node-rank`; None if not given
    uses_mpi: bool = False  # whether MPI starts it
    at: int | None = None  # index of the word that is Python, or its launcher; None if unknown
    module_flag: str = "-m"  # before the name of a module
    package: Path | None = None  # the folder of `instrument`, for a Python that does not have it

    @property
    def is_instrumented(self) -> bool:
        """The presence of `-m instrument` in the command."""
        script = self.script
        return script is not None and self.words[script : script + 2] == (
            self.module_flag,
            "instrument",
        )

    def instrumented(self, options: Sequence[str] = ()) -> list[str]:
        """Return the command with `-m instrument` and its options before the script.

        A command without a place for it, or that has it already, is unchanged.
        """
        if self.script is None:
            return list(self.words)
        before, after = self.words[: self.script], self.words[self.script :]
        if self.is_instrumented:
            after = after[2:]
        elif self.module_flag != "-m" and after[0] == self.module_flag:
            after = ("-m", *after[1:])
        own = (self.module_flag, "instrument") if self.package is None else (str(self.package),)
        return [*before, *own, *options, *after]


def read_command(words: Sequence[str]) -> TrainingCommand:
    """Read a command: Python or a launcher of it, perhaps with mpirun or srun before it."""
    uses_mpi = bool(words) and Path(words[0]).name in _MPI
    for i, word in enumerate(words):
        name = Path(word).name
        if PYTHON.match(name):
            return _python(words, i, uses_mpi)
        first = i + 1
        if name == "accelerate" and tuple(words[first : first + 1]) == ("launch",):
            name, first = "accelerate-launch", first + 1
        if name in _LAUNCHED_BY:
            return _launched(_LAUNCHED_BY[name], words, i, first, _interpreter_of(word), uses_mpi)
    return TrainingCommand(tuple(words), None, None, uses_mpi=uses_mpi)


def _python(words: Sequence[str], at: int, uses_mpi: bool) -> TrainingCommand:
    python = shutil.which(words[at])
    i = at + 1
    while i < len(words) and words[i].startswith("-") and words[i] not in {"-m", "-c", "-"}:
        i += 2 if words[i] in _PYTHON_WITH_VALUE else 1
    if i + 1 < len(words) and words[i] == "-m" and words[i + 1] in _LAUNCHERS:
        return _launched(_TORCHRUN, words, at, i + 2, python, uses_mpi)
    if tuple(words[i : i + 2]) == ("-m", "accelerate.commands.launch"):
        return _launched(_ACCELERATE, words, at, i + 2, python, uses_mpi)
    if (
        i >= len(words)
        or words[i] in {"-c", "-"}
        or (words[i].startswith("-m") and len(words) < i + 2)
    ):
        return TrainingCommand(tuple(words), None, python, uses_mpi=uses_mpi, at=at)
    return TrainingCommand(tuple(words), i, python, uses_mpi=uses_mpi, at=at)


def _launched(
    launcher: _Launcher,
    words: Sequence[str],
    at: int,
    first: int,
    python: str | None,
    uses_mpi: bool,
) -> TrainingCommand:
    values: dict[str, str] = {}
    i = first
    while i < len(words) and words[i].startswith("-"):
        name, equals, value = words[i].partition("=")
        name = "--" + name.lstrip("-").replace("_", "-") if name.startswith("--") else name
        if name in {"-m", "--module"}:
            break
        if launcher.alone.fullmatch(name):
            values[name] = ""
            i += 1
        elif equals or (not name.startswith("--") and len(name) > 2):  # -r3
            values[name] = value
            i += 1
        else:
            values[name] = words[i + 1] if i + 1 < len(words) else ""
            i += 2
    runs_python = "--no-python" not in values and "--run-path" not in values
    if i < len(words) and launcher.may_have_others:
        names_module = words[i] in {"-m", "--module"} and i + 1 < len(words)
        names_module = names_module and not words[i + 1].startswith("-")
        runs_python &= names_module or words[i].endswith(".py")
    nodes, node = (
        values.get(option, os.environ.get(variable, ""))
        for option, variable in (launcher.num_nodes, launcher.node)
    )
    return TrainingCommand(
        tuple(words)
        if i >= len(words) or words[i] != "--module" or launcher.module_flag == "--module"
        else (*words[:i], "-m", *words[i + 1 :]),
        i if runs_python and i < len(words) else None,
        python,
        num_nodes=int(nodes or 1) if (nodes or "1").isdecimal() else None,
        node=int(node) if node.isdecimal() else None,
        uses_mpi=uses_mpi,
        at=at,
        module_flag=launcher.module_flag,
    )


def _interpreter_of(program: str) -> str | None:
    path = shutil.which(program)
    if path is None:
        return None
    try:
        with Path(path).open("rb") as file:
            first = file.readline(4096).decode(errors="replace")
    except OSError:
        return None
    words = first.removeprefix("#!").split()
    if not first.startswith("#!") or not words:
        return None
    name = words[1] if Path(words[0]).name == "env" and len(words) > 1 else words[0]
    return shutil.which(name) if PYTHON.match(Path(name).name) else None


# Variables of launchers of a process per rank or node: rank, number of ranks, rank on the machine.
_RANK_VARIABLES = (
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
    for rank_variable, size_variable, local_variable in _RANK_VARIABLES:
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


MAX_WAIT_S = 600.0
MAX_WAIT_ENDED_S = 20.0
"""The wait for the others after a signal to end: its sender does not wait long."""

_PAUSE_S = 0.2
_PREFIX = ".recorded-"


def begin(folder: Path, job: Job) -> None:
    """Remove the marks that this recorder, and the one that analysed, left in an earlier job."""
    for file in (_note(folder, job), folder / f"{_PREFIX}analysed"):
        file.unlink(missing_ok=True)


def done(folder: Path, job: Job, reports: Sequence[Path]) -> None:
    """Mark this recorder's reports, perhaps none, as done, where others wait for them."""
    if job.num_recorders == 1:
        return
    write_whole(_note(folder, job), json.dumps([report.name for report in reports]).encode())


def gather(
    folder: Path,
    job: Job,
    reports: Sequence[Path],
    *,
    was_ended: Callable[[], bool],
    say: Callable[[str], None],
) -> list[Path] | None:
    """Wait for the reports of all recorders and return them; None if another one analyses.

    The first recorder analyses; if it is unknown which one is the first, the last one to finish.
    `job` and `reports` are those of this recorder; `was_ended` says whether a signal has ended the
    job.
    """
    if job.num_recorders == 1:
        return list(reports)
    if job.index not in {0, None}:
        return None
    begin_s = time.monotonic()

    def may_wait() -> bool:
        max_s = MAX_WAIT_ENDED_S if was_ended() else MAX_WAIT_S
        return time.monotonic() < begin_s + max_s

    notes = _notes(folder)
    if job.index == 0 and len(notes) < job.num_recorders:
        say(f"waiting for {counted(job.num_recorders - len(notes), 'other report')} in {folder}")
        while len(notes) < job.num_recorders and may_wait():
            time.sleep(_PAUSE_S)
            notes = _notes(folder)
        if len(notes) < job.num_recorders:
            say(f"{job.num_recorders - len(notes)} of {job.num_recorders} reports did not come")
    if job.index is None and (len(notes) < job.num_recorders or not _claims(folder)):
        return None
    names = sorted({name for note in notes for name in json.loads(note.read_text())})
    for note in notes:
        note.unlink(missing_ok=True)
    return [folder / name for name in names]


def write_whole(file: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    partial = file.with_name(f".{file.name}.part")
    try:
        partial.write_bytes(content)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def _note(folder: Path, job: Job) -> Path:
    return folder / f"{_PREFIX}{job.name}"


def _notes(folder: Path) -> list[Path]:
    # Listed again: only then a network file system shows the files of other machines.
    return [
        path
        for path in folder.iterdir()
        if path.name.startswith(_PREFIX) and path.name != f"{_PREFIX}analysed"
    ]


def _claims(folder: Path) -> bool:
    """Return whether this recorder analyses, of several that see all reports."""
    try:
        os.close(os.open(folder / f"{_PREFIX}analysed", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
