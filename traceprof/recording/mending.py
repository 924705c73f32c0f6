"""Findings of `doctor`: what is in the way of a recording, each with the command that mends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceprof.recording.disk import Space
    from traceprof.recording.doctor import Diagnosis, Permissions
    from traceprof.recording.probe import ProbedRanges

_MIN_FREE_BYTES = 1 << 30  # a report of a GPU training takes some MB a second and rank
_MIN_SHARED_BYTES = 1 << 30  # containers have 64 MB by default
_MAX_PARANOID = 2
_MAX_PTRACE_SCOPE = 1


def findings(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield a sentence for each finding, with the command that mends it."""
    if diagnosis.ranges is not None:
        yield from _of_ranges(diagnosis.ranges)
    if diagnosis.space is not None:
        yield from _of_space(diagnosis.space)
    if diagnosis.versions.nsys:
        yield from _of_permissions(diagnosis.permissions, has_gpus=bool(diagnosis.gpus))


def _of_ranges(ranges: ProbedRanges) -> Iterator[str]:
    if ranges.failure:
        yield f"nsys recorded nothing when tried: {ranges.failure}; try: nsys status --environment"
    elif not ranges.of_instrument:
        yield "ranges of instrument are not recorded when tried: pip install --upgrade nvtx"
    elif not ranges.of_nvtx:
        yield (
            "in a test, ranges that a program opens by nvtx.annotate were not recorded, but"
            " those of instrument were: pip install nvtx==0.2.11"
        )


def _of_space(space: Space) -> Iterator[str]:
    if not space.may_write:
        yield f"nothing can be written to {space.folder}: choose another -o, or chmod u+rwx it"
    for folder, free, remedy in (
        (space.folder, space.folder_bytes, "choose another -o, or make room: du -xh DIR | sort -h"),
        (space.temporary, space.temporary_bytes, "export TMPDIR=DIR with more room"),
    ):
        if free is not None and free < _MIN_FREE_BYTES:
            yield f"{size_text(free)} are free in {folder}, a recording may take more: {remedy}"
    shared = space.shared_memory_bytes
    if shared is not None and shared < _MIN_SHARED_BYTES:
        yield (
            f"shared memory has {size_text(shared)}, for NCCL and workers of data loaders:"
            " mount -o remount,size=16G /dev/shm (docker run --shm-size=16g)"
        )


def _of_permissions(permissions: Permissions, *, has_gpus: bool) -> Iterator[str]:
    level = permissions.perf_event_paranoid
    if permissions.may_sample is False and (level is None or level > _MAX_PARANOID):
        yield "threads cannot be sampled: sudo sysctl -w kernel.perf_event_paranoid=2"
    scope = permissions.ptrace_scope
    if scope is not None and scope > _MAX_PTRACE_SCOPE:
        yield "tools cannot follow processes: sudo sysctl -w kernel.yama.ptrace_scope=1"
    if has_gpus and permissions.counters_for_admins_only:
        yield (
            "counters of GPUs are for administrators: echo options nvidia"
            " NVreg_RestrictProfilingToAdminUsers=0 | sudo tee"
            " /etc/modprobe.d/nvidia-profiling.conf, then reboot"
        )
