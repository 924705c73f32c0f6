"""Records a program with the real `nsys`, which sometimes fails for reasons of its own."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.processes import ended, output_of

_FAULTS = ("Importation failed", "Connection to Agent lost", "Local Endpoint is not available")
"""What Nsight Systems 2023.4 prints in one recording of some hundred, on a busy machine: its
importer trips over a race of its own (at exit status 0), or it loses its own agent."""

_MAX_RECORDINGS = 4
_MAX_RECORDING_S = 300


def profile(
    nsys: str,
    options: Sequence[str],
    report: Path,
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Record a command into a report (a path without its ending); return how `nsys` ended.

    The recording is made again where nsys failed for a reason of its own.
    """
    line = [nsys, "profile", *options, "--force-overwrite=true", f"--output={report}", *command]
    for _ in range(_MAX_RECORDINGS):
        done = ended(*line, env=environment, timeout=_MAX_RECORDING_S)
        if not has_failed(done.stdout + done.stderr):
            break
    assert done.returncode == 0, done.stdout + done.stderr
    assert not has_failed(done.stdout + done.stderr)
    return done


def stats(nsys: str, path: Path) -> list[str]:
    """Return tables of kernels, calls, copies and ranges of an export, as CSV."""
    reports = ("cuda_gpu_kern_sum", "cuda_api_sum", "cuda_gpu_mem_time_sum", "nvtx_sum")
    command = [nsys, "stats", "--force-export=false", "--format", "csv"]
    printed = output_of(*command, "--report", ",".join(reports), path)
    _, *parts = printed.split("Processing [")
    assert len(parts) == len(reports), printed
    return parts


def has_failed(printed: str) -> bool:
    """Say whether, by what it printed, nsys failed for a reason of its own."""
    return any(fault in printed for fault in _FAULTS)
