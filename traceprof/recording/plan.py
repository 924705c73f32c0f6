"""The plan of a recording: the command under its recorder, and the files of its reports."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from traceprof.errors import MissingToolError, UsageError
from traceprof.labels import CAPTURE, CAPTURE_DOMAIN, parse_steps
from traceprof.recording import nsys as nsys_module
from traceprof.recording.job import Job, TrainingCommand, job_of, read_command
from traceprof.recording.machine import Machine, look_at_machine
from traceprof.recording.nsys import Nsys
from traceprof.recording.training import PACKAGE, Training, ask

LINKS = "counters of the GPUs' links"
"""What only one nsys of a machine can record at a time: the second one ends at once."""

_NOT_MEASURABLE = "not measurable above noise"
NO_COST = "none"


class Flag(NamedTuple):
    """A flag."""

    text: str  # as it stands on the command line
    purpose: str  # the reason for it
    cost: str  # its cost at run time


class LeftOut(NamedTuple):
    """Data that is not recorded."""

    what: str  # the data, a noun, such as `counters of the GPU's links`
    why: str  # the reason, and what to do about it


class Flags(NamedTuple):
    """The choice of data to record."""

    flags: list[Flag]  # of `nsys profile`, in order
    left_out: list[LeftOut]  # data that could be recorded elsewhere


def choose_flags(
    options: Mapping[str, str],
    machine: Machine,
    *,
    uses_mpi: bool,
    has_steps: bool,
    is_first_here: bool,
    whole_graphs: bool = False,
) -> Flags:
    """Choose the flags, and list what they leave out.

    `options`: of `nsys profile`, each with its help text. `is_first_here`: whether this process
    records the counters that the ranks of a machine share.
    """
    flags: list[Flag] = []
    left_out: list[LeftOut] = []
    for choice in (
        *_traced(options, uses_mpi=uses_mpi, whole_graphs=whole_graphs),
        *_sampled(machine),
        *(_counted(options, machine) if is_first_here else ()),
        *(_captured() if has_steps else ()),
    ):
        (flags if isinstance(choice, Flag) else left_out).append(choice)
    return Flags(flags, left_out)


def _traced(
    options: Mapping[str, str], *, uses_mpi: bool, whole_graphs: bool
) -> Iterator[Flag | LeftOut]:
    traced = "cuda,nvtx,mpi" if uses_mpi else "cuda,nvtx"
    purpose = "GPU work, calls of CUDA and ranges" + (", calls of MPI" if uses_mpi else "")
    yield Flag(
        f"--trace={traced}", purpose, "a step of 3 ms without GPU work took 1.2 times as long"
    )
    if whole_graphs and "cuda-graph-trace" in options:
        yield Flag("--cuda-graph-trace=graph", "a CUDA graph as one event", NO_COST)
        yield LeftOut("kernels inside CUDA graphs", "--graphs whole was asked for")
    elif "'node'" in options.get("cuda-graph-trace", ""):
        yield Flag(
            "--cuda-graph-trace=node",
            "the kernels inside CUDA graphs",
            "some 0.8 µs for each, in gaps after graphs (--graphs whole does without)",
        )
    if "cuda-event-trace" in options:
        yield Flag(
            "--cuda-event-trace=true", "which stream waits for which", "a row for each event"
        )


def _sampled(machine: Machine) -> Iterator[Flag | LeftOut]:
    if machine.may_sample is False:
        yield Flag("--sample=none", "no samples of the host, which are not permitted here", NO_COST)
        yield Flag(
            "--cpuctxsw=none", "no context switches, which are not permitted here either", NO_COST
        )
        yield LeftOut(
            "whether the host slept or ran",
            "the system does not permit it: `sysctl kernel.perf_event_paranoid=2`, or in a"
            " container --cap-add=SYS_ADMIN or a seccomp profile with perf_event_open",
        )
        return
    yield Flag("--sample=process-tree", "what the host ran while the GPU idled", _NOT_MEASURABLE)
    yield Flag("--cpuctxsw=process-tree", "when the host slept", _NOT_MEASURABLE)


def _counted(options: Mapping[str, str], machine: Machine) -> Iterator[Flag | LeftOut]:
    if not machine.has_gpu:
        yield LeftOut(LINKS, "no NVIDIA driver is loaded here")
    elif not machine.may_count:
        yield LeftOut(
            LINKS,
            "they are for administrators only: run as root, or load the driver with"
            " NVreg_RestrictProfilingToAdminUsers=0",
        )
    elif "gpu-metrics-devices" in options:  # from 2024 on
        yield Flag(
            "--gpu-metrics-devices=cuda-visible", LINKS, "10 000 samples a second of each GPU"
        )
    elif "gpu-metrics-device" in options:
        yield Flag("--gpu-metrics-device=all", LINKS, "10 000 samples a second of each GPU")
    cards = "counters of the network cards"
    help_text = options.get("nic-metrics")
    if not machine.network_cards:
        yield LeftOut(cards, "there is no InfiniBand or RoCE card")
    elif help_text is not None:
        value = "lf" if "lf" in help_text.replace("'", " ").replace(",", " ").split() else "true"
        yield Flag(f"--nic-metrics={value}", cards, "a sample a millisecond of each card")


def _captured() -> Iterator[Flag]:
    yield Flag("--capture-range=nvtx", "records only the steps asked for", NO_COST)
    yield Flag(
        f"--nvtx-capture={CAPTURE}@{CAPTURE_DOMAIN}",
        "the range that instrument opens around them",
        NO_COST,
    )
    yield Flag("--capture-range-end=stop", "the training goes on after them", NO_COST)


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
    training: Training | None = None  # its Python, if that was asked

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
    asks: bool = False,
    baseline: bool = True,
    watch: int | None = None,
    whole_graphs: bool = False,
) -> Plan:
    """Plan a recording of a training command into a folder of reports.

    The environment of this process shows its part of the job. Without `steps`, as the user gave
    them, all are recorded; without a `tool` (`nsys` or `torch`), nsys records if it is installed.
    If it `asks`, the Python of the training says what it has. A `baseline` times steps before the
    recorded ones. Ranks are compared each `watch` steps while they train. `whole_graphs`: nsys
    records CUDA graphs as a whole, not each of their kernels.

    Raises:
        MissingToolError: nsys is requested and not installed.
        UsageError: the steps are no range, nsys could not follow the command's processes, or the
            training's Python lacks what a recording needs.
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
    training = ask(command, environment) if asks else None
    if training is not None:
        notes += training.check(command, under_nsys=nsys is not None)
        if training.lacks_instrument:
            command = replace(command, package=PACKAGE)
    elif asks and command.script is not None:
        notes.append("the Python of the training runs elsewhere, and was not asked what it has")
    if whole_graphs and nsys is None:
        notes.append("--graphs whole is for nsys: torch.profiler records each kernel of a graph")
    options = [] if steps is None else ["--steps", steps]
    variables = _variables(steps, folder.absolute(), watch, baseline=baseline)
    if nsys is None:
        if steps is None:
            notes.append(_ALL_STEPS)
        variables |= {"TRACEPROF_RECORD_WITH": TORCH, "TRACEPROF_RECORD_TO": str(folder.absolute())}
        options, flags = ["--with", TORCH, "-o", str(folder), *options], Flags([], [])
        words = command.instrumented(options)
    else:
        flags = _nsys_flags(nsys, command, folder, job, variables, whole_graphs=whole_graphs)
        recorder = ("nsys", "profile", *(flag.text for flag in flags.flags))
        words = [*recorder, *command.instrumented(options)]
    if command.script is None:
        notes.append(_NO_SCRIPT)
    tool = TORCH if nsys is None else NSYS
    return Plan(tool, tuple(words), variables, folder, job, steps, flags, tuple(notes), training)


_NO_NSYS = (
    "nsys is not on PATH: torch.profiler records instead, which sees no counters of links, no host"
    " outside of PyTorch and no waits in the system (install Nsight Systems for these)"
)
_ALL_STEPS = "without --steps all steps are recorded, and kept in memory until the training ends"
_NO_SCRIPT = (
    "the command names no Python script, so `-m instrument` cannot be put into it: ranges and"
    " steps are recorded only if traceprof is installed where the training runs (its .pth file"
    " reads TRACEPROF_INSTRUMENT=1) and a process group is created"
)


def _nsys_flags(
    nsys: Nsys,
    command: TrainingCommand,
    folder: Path,
    job: Job,
    variables: Mapping[str, str],
    *,
    whole_graphs: bool,
) -> Flags:
    if command.words and Path(command.words[0]).name == "srun":
        raise UsageError(
            "cannot record srun with nsys",
            "Slurm's own process starts the training, and nsys follows only what it starts",
            "write it the other way round: srun … traceprof record … -- COMMAND",
        )
    flags = choose_flags(
        nsys.options,
        look_at_machine(nsys.may_sample),
        uses_mpi=command.uses_mpi,
        has_steps="TRACEPROF_RECORD_STEPS" in variables,
        is_first_here=job.is_first_here,
        whole_graphs=whole_graphs,
    )
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
    return Flags([*flags.flags, *own], flags.left_out)


def _variables(
    steps: str | None, folder: Path, watch: int | None, *, baseline: bool
) -> dict[str, str]:
    variables = {"TRACEPROF_INSTRUMENT": "1"}
    if steps is not None:
        variables["TRACEPROF_RECORD_STEPS"] = steps
        if baseline:
            variables["TRACEPROF_BASELINE_TO"] = str(folder)
    if watch is not None:
        variables["TRACEPROF_WATCH"] = str(watch)
        variables["TRACEPROF_WATCH_TO"] = str(folder / "watch.jsonl")
    return variables


def _check_steps(steps: str | None) -> None:
    try:
        if steps is not None:
            parse_steps(steps)
    except ValueError as error:
        raise UsageError(
            f"cannot read --steps {steps!r}",
            "it is not a range of steps",
            "write A:B, such as 10:20 for steps 10 to 19",
        ) from error


_VARIABLES = {
    "TRACEPROF_INSTRUMENT": "instruments the processes that the script starts",
    "TRACEPROF_RECORD_STEPS": "the steps that these processes record",
    "TRACEPROF_BASELINE_TO": "the folder for the lengths of steps before them, not recorded",
    "TRACEPROF_WATCH": "compares the ranks after so many steps each, while they train",
    "TRACEPROF_WATCH_TO": "the file to which these comparisons go",
    "TRACEPROF_RECORD_WITH": "the tool that they record with",
    "TRACEPROF_RECORD_TO": "the folder of their traces",
}


def script(plan: Plan) -> str:
    """Return the commands of a plan as lines of a shell, each flag with its purpose and cost."""
    folder = shlex.quote(str(plan.folder))
    lines = [
        *([] if plan.training is None else [f"# the training's Python: {plan.training}"]),
        f"mkdir -p {folder}",
        f"traceprof doctor --json > {folder}/doctor-$(hostname).json  # for analyze",
        *(_with_nsys(plan) if plan.tool == NSYS else _with_torch(plan)),
    ]
    return "\n".join(lines) + "\n"


def _with_torch(plan: Plan) -> Iterator[str]:
    for name in plan.variables:
        yield f"# {name}: {_VARIABLES[name]}"
    assigned = [f"{name}={shlex.quote(value)}" for name, value in plan.variables.items()]
    yield " ".join([*assigned, shlex.join(plan.words)])
    yield f"traceprof analyze {shlex.quote(str(plan.folder))}"


def _with_nsys(plan: Plan) -> Iterator[str]:
    # The job may run on another machine: nsys puts in the name of the one it runs on.
    name = "%h" if plan.job.rank is None else plan.job.name
    output = f"--output={plan.folder}/{name}"
    for flag in plan.flags.flags:
        text = output if flag.text.startswith("--output=") else flag.text
        cost = "" if flag.cost == NO_COST else f"; cost: {flag.cost}"
        yield f"# {text}: {flag.purpose}{cost}"
    for left in plan.flags.left_out:
        yield f"# not recorded: {left.what}: {left.why}"
    yield shlex.join(output if word.startswith("--output=") else word for word in plan.words)
    yield f"traceprof analyze {shlex.quote(str(plan.folder))}  # exports each report first"
