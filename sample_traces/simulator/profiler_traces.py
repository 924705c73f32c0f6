"""Simulated runs as traces of torch.profiler, one for each process."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from sample_traces.simulator.kineto_writer import write_trace
from sample_traces.simulator.truth import check_is_free
from traceprof.trace.open import open_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from traceprof.trace.model.trace import Trace

SUFFIXES = (".json", ".json.gz")
"""Suffixes of traces of torch.profiler."""


def simulate_into(path: Path, simulate: Callable[[Path], Path]) -> tuple[list[Path], Path]:
    """Simulate a run, and write it in the format of the file's suffix.

    Args:
        path: the file. With several processes, a trace of torch.profiler is written for each of
            them: `run.json` becomes `run-rank0.json`, `run-rank1.json`, …
        simulate: writes an export to a path, and returns the path of the truth.

    Returns:
        The written files, and the truth beside them.

    Raises:
        UsageError: a file exists already, or the run cannot be simulated.
        TraceFileError: the disk is full.
    """
    suffix = next((end for end in reversed(SUFFIXES) if path.name.endswith(end)), None)
    if suffix is None:
        return [path], simulate(path)
    name = path.name.removesuffix(suffix)
    truth = path.with_name(f"{name}.truth.json")
    check_is_free(truth)
    with tempfile.TemporaryDirectory(prefix="traceprof-simulated-") as folder:
        export = Path(folder) / "run.sqlite"
        answers = simulate(export)
        written = write_traces(export, path.parent, name, suffix)
        shutil.copyfile(answers, truth)
    return written, truth


def write_traces(
    export: Path, folder: Path, name: str, suffix: str = SUFFIXES[0], *, with_waits: bool = True
) -> list[Path]:
    """Write each process of a report as a trace.

    Args:
        export: the report.
        folder: of the traces.
        name: of a single trace; of several, each followed by its rank.
        suffix: one of `SUFFIXES`.
        with_waits: whether waits are written, as with torch.profiler's `enable_cuda_sync_events`.

    Returns:
        The traces, in order of the processes.

    Raises:
        UsageError: one of them exists already.
    """
    trace = open_trace(export)
    try:
        processes = list(dict.fromkeys(key.process for key in trace.operations))
        processes += [process for process in trace.label_ranges if process not in processes]
        paths = [
            folder / (f"{name}-rank{rank}{suffix}" if len(processes) > 1 else f"{name}{suffix}")
            for rank in range(len(processes))
        ]
        for path in paths:
            check_is_free(path)
        ranks = dict(zip(processes, _ranks(trace, processes), strict=True))
        for process, path in zip(processes, paths, strict=True):
            write_trace(trace, process, path, ranks=ranks, with_waits=with_waits)
    finally:
        trace.close()
    return paths


def _ranks(trace: Trace, processes: Sequence[int]) -> list[int]:
    """Return the rank of each process from the report, else in order."""
    ranks = [trace.global_rank(process) for process in processes]
    known = [rank for rank in ranks if rank is not None]
    return known if len(set(known)) == len(processes) else [*range(len(processes))]
