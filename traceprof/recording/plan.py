"""The plan of a recording: the command under its recorder, and the files of its reports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from traceprof.errors import MissingToolError, UsageError
from traceprof.recording import nsys as nsys_module
from traceprof.recording.flags import LINKS, NO_COST, Flag, Flags, choose_flags
from traceprof.recording.job import Job, job_of
from traceprof.recording.machine import look
from traceprof.recording.training_command import TrainingCommand, read_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceprof.recording.nsys import Nsys

NSYS, TORCH = "nsys", "torch"


@dataclass(frozen=True)
class Plan:
    """A recording that can be started."""

    tool: str  # `nsys` or `torch`
    words: tuple[str, ...]  # the whole command
    variables: Mapping[str, str]  # additional ones of the environment
    folder: Path  # of all files
    job: Job  # of this recorder
    steps: str | None  # the recorded steps, `A:B`; None for all
    flags: Flags  # of nsys
    notes: tuple[str, ...]  # warnings for the user

    @property
    def words_without_links(self) -> tuple[str, ...]:
        """The whole command, without counters of the GPUs' links."""
        links = {flag.text for flag in self.flags.flags if flag.purpose == LINKS}
        end = 2 + len(self.flags.flags)  # of what is nsys's
        return (*(word for word in self.words[:end] if word not in links), *self.words[end:])

    @property
    def capture(self) -> Path:
        """The report that nsys writes."""
        return self.folder / f"{self.job.name}.nsys-rep"

    @property
    def unimported(self) -> Path:
        """The recording that nsys leaves if it fails to import it."""
        return self.capture.with_suffix(".qdstrm")

    @property
    def export(self) -> Path:
        """The export of the report."""
        return self.folder / f"{self.job.name}.sqlite"


def make_plan(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    *,
    steps: str | None = None,
    tool: str | None = None,
) -> Plan:
    """Plan a recording.

    Args:
        words: the training command.
        folder: of the reports.
        environment: of this process, which shows its part of the job.
        steps: the steps to record, as the user gave them; None for all.
        tool: `nsys` or `torch`; None for nsys if it is installed.

    Raises:
        MissingToolError: nsys is requested and not installed.
        UsageError: the steps are no range, or nsys could not follow the command's processes.
    """
    _check_steps(steps)
    command = read_command(words)
    job = job_of(environment, command)
    nsys = None if tool == TORCH else nsys_module.find()
    if tool == NSYS and nsys is None:
        raise MissingToolError(
            "cannot record with nsys",
            "it is not on PATH",
            "install Nsight Systems, or record with --with torch",
        )
    notes = [_NO_NSYS] if tool is None and nsys is None else []
    if nsys is None:
        return _torch_plan(command, folder, job, steps, notes)
    return _nsys_plan(nsys, command, folder, job, steps, notes)


_NO_NSYS = (
    "nsys is not on PATH: torch.profiler records instead, which sees no counters of links, no host"
    " outside of PyTorch and no waits in the system (install Nsight Systems for these)"
)
_NO_SCRIPT = (
    "the command names no Python script, so `-m instrument` cannot be put into it: ranges and"
    " steps are recorded only if traceprof is installed where the training runs (its .pth file"
    " reads TRACEPROF_INSTRUMENT=1) and a process group is created"
)


def _torch_plan(
    command: TrainingCommand, folder: Path, job: Job, steps: str | None, notes: list[str]
) -> Plan:
    options = ["--with", TORCH, "-o", str(folder), *_steps_option(steps)]
    variables = {**_variables(steps), "TRACEPROF_RECORD_WITH": TORCH}
    variables["TRACEPROF_RECORD_TO"] = str(folder.absolute())
    if steps is None:
        notes.append(
            "without --steps all steps are recorded, and kept in memory until the training ends"
        )
    notes += _instrument_notes(command)
    words = tuple(command.instrumented(options))
    return Plan(TORCH, words, variables, folder, job, steps, Flags([], []), tuple(notes))


def _nsys_plan(
    nsys: Nsys,
    command: TrainingCommand,
    folder: Path,
    job: Job,
    steps: str | None,
    notes: list[str],
) -> Plan:
    if command.words and Path(command.words[0]).name == "srun":
        raise UsageError(
            "cannot record srun with nsys",
            "Slurm's own process starts the training, and nsys follows only what it starts",
            "write it the other way round: srun … traceprof record … -- COMMAND",
        )
    machine = look(nsys.may_sample)
    flags = choose_flags(
        nsys.options,
        machine,
        uses_mpi=command.uses_mpi,
        has_steps=steps is not None,
        is_first_here=job.is_first_here,
    )
    variables = _variables(steps)
    assigned = ",".join(f"{name}={value}" for name, value in variables.items())
    settings = (
        ("env-var", assigned, "instruments the processes that the script starts"),
        ("wait", "primary", "ends with the training, not with processes that it leaves running"),
        ("force-overwrite", "true", "replaces an earlier report of this name"),
        ("output", str(folder / job.name), "the report"),
    )
    own = [
        Flag(f"--{name}={value}", purpose, NO_COST)
        for name, value, purpose in settings
        if name in nsys.options
    ]
    flags = Flags([*flags.flags, *own], flags.left_out)
    training = command.instrumented(_steps_option(steps))
    words = ("nsys", "profile", *(flag.text for flag in flags.flags), *training)
    notes += _instrument_notes(command)
    return Plan(NSYS, words, variables, folder, job, steps, flags, tuple(notes))


def _steps_option(steps: str | None) -> list[str]:
    return [] if steps is None else ["--steps", steps]


def _variables(steps: str | None) -> dict[str, str]:
    """Return the variables that instrument the processes that a script starts itself."""
    variables = {"TRACEPROF_INSTRUMENT": "1"}
    if steps is not None:
        variables["TRACEPROF_RECORD_STEPS"] = steps
    return variables


def _check_steps(steps: str | None) -> None:
    if steps is None:
        return
    first, colon, stop = (part.strip() for part in steps.partition(":"))
    is_range = colon and (first or stop) and all(n.isdecimal() for n in (first, stop) if n)
    if not is_range or (stop and int(stop) <= int(first or 0)):
        raise UsageError(
            f"cannot read --steps {steps!r}",
            "it is not a range of steps",
            "write A:B, such as 10:20 for steps 10 to 19",
        )


def _instrument_notes(command: TrainingCommand) -> list[str]:
    return [_NO_SCRIPT] if command.script is None else []
