"""The flags of `nsys profile` for a training run that the installed version supports.

Each has a purpose and a cost; what is left out has a reason, and a way to get it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from traceprof.recording.machine import Machine

CAPTURE = "steps@traceprof-capture"
"""The range that `instrument` opens around the requested steps."""

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
) -> Flags:
    """Choose the flags, and list what they leave out.

    Args:
        options: of `nsys profile`, each with its help text.
        machine: its devices and permissions.
        uses_mpi: whether MPI starts the training.
        has_steps: whether only some steps are recorded.
        is_first_here: whether this process records the counters that the ranks of a machine share.
    """
    flags: list[Flag] = []
    left_out: list[LeftOut] = []
    for choice in (
        *_traced(options, uses_mpi=uses_mpi),
        *_sampled(machine),
        *(_counted(options, machine) if is_first_here else ()),
        *(_captured() if has_steps else ()),
    ):
        (flags if isinstance(choice, Flag) else left_out).append(choice)
    return Flags(flags, left_out)


def _traced(options: Mapping[str, str], *, uses_mpi: bool) -> Iterator[Flag | LeftOut]:
    traced = "cuda,nvtx,mpi" if uses_mpi else "cuda,nvtx"
    purpose = "GPU work, calls of CUDA and ranges" + (", calls of MPI" if uses_mpi else "")
    yield Flag(
        f"--trace={traced}", purpose, "a step of 3 ms without GPU work took 1.2 times as long"
    )
    if "'node'" in options.get("cuda-graph-trace", ""):
        yield Flag(
            "--cuda-graph-trace=node",
            "the kernels inside CUDA graphs",
            'NVIDIA says that it "may cause significant runtime overhead" where graphs run',
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
    yield Flag(f"--nvtx-capture={CAPTURE}", "the range that instrument opens around them", NO_COST)
    yield Flag("--capture-range-end=stop", "the training goes on after them", NO_COST)
