"""The exports that tests read: samples, recordings of ours, and a folder of real ones if there is.

The environment variable TRACEPROF_TRACES names the folder of real exports.
"""

import atexit
import lzma
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar
from zlib import crc32

from traceprof.analysis import Analysis, Options, RunResult, analyze
from traceprof.run.opening import Rank, Run, assemble_run, open_report
from traceprof.trace.open import open_trace

SAMPLE_FOLDER = Path(__file__).parents[2] / "sample_traces"
SAMPLE = SAMPLE_FOLDER / "ddp.sqlite"
CPU_SAMPLE = SAMPLE_FOLDER / "gloo.sqlite"
SAMPLES = sorted(SAMPLE_FOLDER.glob("*.sqlite"))
QUICK_SAMPLES = {*("ddp", "gloo", "mpi-wait", "host-sync", "peer-copies")}
"""Of tests with every sample, those with these are quick: one of each kind of program."""
GPU_SAMPLES = [path for path in SAMPLES if path != CPU_SAMPLE]

REAL_FOLDER = Path(os.environ["TRACEPROF_TRACES"]) if os.environ.get("TRACEPROF_TRACES") else None
KNOWN_FOLDER = (
    REAL_FOLDER
    if REAL_FOLDER and (REAL_FOLDER / "a100x4_ddp_baseline_rank0.sqlite").exists()
    else None
)
"""The same, if it has the exports that tests know by name."""
REAL_TRACES = sorted(REAL_FOLDER.glob("**/*.sqlite")) if REAL_FOLDER else []


def _unpacked(packed: Path) -> Path:
    """Return a recording that is kept in the repository, unpacked into `build/recordings`."""
    path = SAMPLE_FOLDER.parent / "build" / "recordings" / packed.stem
    if not path.exists() or path.stat().st_mtime < packed.stat().st_mtime:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")  # several workers may be at it
        partial.write_bytes(lzma.decompress(packed.read_bytes()))
        partial.replace(path)
    return path


OWN_FOLDER = Path(__file__).with_name("recordings")
_GPU_FOLDER = Path(__file__).parents[1] / "gpu" / "recordings"
OWN_TRACES = [
    _unpacked(_GPU_FOLDER / "nsight" / "synchronize.sqlite.xz"),
    _unpacked(_GPU_FOLDER / "nsight" / "small_reductions.sqlite.xz"),
    _unpacked(_GPU_FOLDER / "h200_nsight" / "metrics.sqlite.xz"),
]
"""Real exports of our own making, which every machine has."""
OWN_CPU_TRACE = _unpacked(OWN_FOLDER / "two_cpu_ranks.sqlite.xz")
"""Another one, of two ranks over Gloo: nothing ran on a GPU."""
OWN_PROFILES = [
    _GPU_FOLDER / f"{name}.pt.trace.json.gz" for name in ("autocast", "h200/threads", "graph")
]
"""Traces of torch.profiler of our own making, on a GPU."""
OWN_CPU_PROFILES = sorted(OWN_FOLDER.glob("*.json.gz"))
"""Others, of two ranks over Gloo: nothing ran on a GPU."""

WITHOUT_RANKS = {"no_gpu_info_3.16.1", "non_utf8_metadata_3.24.7", "runtime_only_3.17.2"}
"""Real exports in which nothing ran on a GPU, and nothing is known of communication either."""

LIKE_ANOTHER = {
    *("a100_loader_1_8workers", "a100_loader_2_dali", "a100_loader_3_dali_amp"),
    *("a100x4_ddp_nobroadcast_rank0", "v100_mpas_1_async", "jacobi_mpi/rank_1"),
    *("pairs/h100x2_per_layer_sync", "openacc/after", "no_metadata_2020_08b5"),
    *(f"rtx3090x9_3nodes_tree/report_{number}" for number in range(9)),
    *(f"rtx3090x6_2nodes_ring/report_{number}" for number in range(1, 6)),
}
"""Real exports of the same program and machine as another one, for `make verify`."""

LARGE = {
    *("a100_single_4workers_dataloader", "a100_single_dali_amp_bf16", "vector_add_streams"),
    *("inference_no_mangled_names", "v100_mpas_0_noasync", "warm_up_and_upload"),
    *("no_metadata_2021_b", "icon_3.17.1", "openacc/before", "cloverleaf_3.13.2"),
    "h100x2_command_buffer_full",
    *("v100_single_process_jacobi_peer_copies", "jacobi_mpi/rank_0"),
    *("a100x4_ddp_baseline_rank0", "a100_loader_0_baseline", "gpt2_result_2_7B_3.16.1"),
}
"""Real exports that the plain references take seconds to read, for `make verify`, too.

Of each kind of program a smaller one is read always.
"""

WITH_DDP = {
    "a100x4_ddp_baseline_rank0",
    "a100x4_ddp_bucketcap100mb_2021",
    "a100x4_ddp_nobroadcast_rank0",
}
"""Real exports with training steps whose gradients are reduced, some beside the backward."""


_NOT_LONG = [
    path
    for path in sorted(REAL_TRACES, key=lambda path: path.stat().st_size)
    if {path.stem, f"{path.parent.name}/{path.stem}"}.isdisjoint(LIKE_ANOTHER | LARGE)
]
_TURNS = 6  # by size every sixth: large and small ones, of old and new formats, in each


def real_turn(name: str, *, is_one: bool) -> list[Path]:
    """Return the real exports that a file of tests always reads: the others by `make verify`.

    Where TRACEPROF_TRACES names no folder these are all of ours, else one of them.

    Args:
        name: of the file.
        is_one: return one only, of middle size.
    """
    number = crc32(name.encode())
    turn, own = _NOT_LONG[number % _TURNS :: _TURNS], OWN_TRACES
    if turn:
        own = [OWN_TRACES[number % len(OWN_TRACES)]]
    if is_one:
        several = turn or own
        return several[len(several) // 2 :][:1]
    return [*turn, *own]


def real_name(path: Path) -> str:
    return (
        path.stem
        if path.parent == OWN_CPU_TRACE.parent or not REAL_FOLDER
        else str(path.relative_to(REAL_FOLDER))
    )


class Closable(Protocol):
    def close(self) -> None: ...


_MAX_OPEN = 4  # real exports that stay open; some hold 100 MB of columns
_REAL = frozenset((*REAL_TRACES, *OWN_TRACES, OWN_CPU_TRACE))
_KNOWN = _REAL | {*SAMPLES}


class _OpenRun:
    """An open report, whose ranks are read, with times as they were recorded."""

    def __init__(self, path: Path) -> None:
        self._trace = open_trace(path)
        try:
            self.run: Run = assemble_run([self._trace], [open_report(self._trace)])
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._trace.close()


_runs: OrderedDict[Path, _OpenRun] = OrderedDict()
_analyses: OrderedDict[Path, Analysis] = OrderedDict()
Opened = TypeVar("Opened", bound="Closable")


@contextmanager
def _opened(
    path: Path, cache: OrderedDict[Path, Opened], opening: Callable[[Path], Opened]
) -> Iterator[Opened]:
    if path not in _KNOWN:
        with closing(opening(path)) as opened:
            yield opened
        return
    if path not in cache:
        cache[path] = opening(path)
        large = [known for known in cache if known in _REAL]
        if len(large) > _MAX_OPEN:
            cache.pop(large[0]).close()
    cache.move_to_end(path)
    yield cache[path]


@contextmanager
def ranks_of(path: Path) -> Iterator[Sequence[Rank]]:
    """Open an export and yield its ranks: never none, but where the export is known to have none.

    At most `_MAX_OPEN` real exports may be in use at once.
    """
    with _opened(path, _runs, _OpenRun) as opened:
        ranks = opened.run.ranks
        assert path not in _KNOWN or bool(ranks) != (path.stem in WITHOUT_RANKS), path
        yield ranks


@contextmanager
def analysis_of(path: Path) -> Iterator[Analysis]:
    """Analyse an export with default options, and keep it open."""
    with _opened(path, _analyses, analyze) as analysis:
        assert path not in _KNOWN or bool(analysis.run.ranks) != (path.stem in WITHOUT_RANKS), path
        yield analysis


def result_of(path: Path) -> RunResult:
    """Return what is found in an export with default options."""
    with analysis_of(path) as analysis:
        return analysis.result


def closed_analysis(*paths: Path, savings: bool | None = False, **options: Any) -> Analysis:
    """Analyse reports with these options, and close them: what was found stays."""
    analysis = analyze(*paths, options=Options(savings=savings, **options))
    analysis.close()
    return analysis


@atexit.register
def _close_all() -> None:
    for run in _runs.values():
        run.close()
    for analysis in _analyses.values():
        analysis.close()
