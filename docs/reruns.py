"""Write docs/reruns.md: what recordings and rounds of unchanged programs differ by.

TRACEPROF_TRACES=FOLDER python docs/reruns.py

FOLDER holds the recordings. The rounds are those of docs/h100.md.
"""

from __future__ import annotations

import json
import lzma
import math
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

from traceprof.analysis import Options, analyze_reports
from traceprof.comparison.ask import compared
from traceprof.comparison.between import reach, spreads
from traceprof.comparison.series import series
from traceprof.comparison.sides import LoadedSide
from traceprof.documents.analysis.model import Document
from traceprof.documents.analysis.records import document
from traceprof.units import percent

PAGE = Path(__file__).parent / "reruns.md"
RECORDINGS = Path(__file__).parents[1] / "tests" / "gpu" / "recordings"
LOADER = "pairs/kineto_loader/resnet50_{}.pt.trace.json.gz"
RERUNS = (
    ("kineto/noise/h100_a1.pt.trace.json.gz", "kineto/noise/h100_a2.pt.trace.json.gz"),
    ("kineto/noise/h100_b1.pt.trace.json.gz", "kineto/noise/h100_b2.pt.trace.json.gz"),
    (LOADER.format("w0_a"), LOADER.format("w0_b")),
)
WINDOWS = (
    "a100x4_ddp_baseline_rank0.sqlite",
    "a100x4_ddp_nobroadcast_rank0.sqlite",
    "a100_single_4workers_dataloader.sqlite",
    "a100_single_dali_amp_bf16.sqlite",
    "h100x2_torchrun_nccl_on_compute_stream.sqlite",
    "jacobi_mpi",
    "kineto/bytedance_st",
    "kineto/param_resnet.json.gz",
    "pairs/a100_loader_0_baseline.sqlite",
    "pairs/a100_loader_1_8workers.sqlite",
    "pairs/a100_loader_2_dali.sqlite",
    "pairs/a100_loader_3_dali_amp.sqlite",
    "pairs/h100x2_per_layer_sync.sqlite",
    "pairs/v100_mpas_0_noasync.sqlite",
    "pairs/v100_mpas_1_async.sqlite",
    "streams_3.0.0.sqlite",
)
"""Unchanged recordings, whose quarters are compared with each other."""
ROUNDS = ("", "models", "h200", "nsight")  # in RECORDINGS; h200_nsight has the rounds of h200
ALARMS = ("faster", "slower")
_MIN_STEPS = 6  # of a window
_NS = 1000  # in a microsecond


def analysed(path: Path, steps: tuple[int, int] | None = None) -> Document:
    """Return the analysis of a recording, or of a range of its steps."""
    paths = sorted(path.iterdir()) if path.is_dir() else [path]
    return document(analyze_reports(paths, Options(savings=False, steps=steps)))


def windows(path: Path) -> list[Document]:
    """Return analyses of up to four equal parts of a recording's steps."""
    numbers = sorted({step.step for step in analysed(path).steps})
    num_parts = min(len(numbers) // _MIN_STEPS, 4)
    ends = [numbers[index * len(numbers) // num_parts] for index in range(num_parts)]
    return [
        analysed(path, (first, stop))
        for first, stop in zip(ends, [*ends[1:], numbers[-1] + 1], strict=True)
    ]


def pairs(folder: Path) -> Iterator[tuple[str, str, Document, Document]]:
    """Yield names and analyses of every two recordings, or windows, of an unchanged program."""
    for names in RERUNS:
        first, second = (analysed(folder / name) for name in names)
        yield names[0], f"and `{Path(names[1]).name}`", first, second
    for name in WINDOWS:
        for (one, first), (other, second) in combinations(enumerate(windows(folder / name), 1), 2):
            yield name, f"quarters {one} and {other}", first, second


def pair_rows(folder: Path) -> list[str]:
    """Return a row for each of these pairs."""
    rows = []
    for name, which, before, after in pairs(folder):
        step = compared(LoadedSide("", (before,)), LoadedSide("", (after,))).step
        within, between = (
            "" if None in ends else f"{_signed(ends[0])} to {_signed(ends[1])}"
            for ends in ((step.low, step.high), (step.between_low, step.between_high))
        )
        rows.append(
            f"| `{name}` | {which} | {_signed(step.change)} | {within} | {between}"
            f" | {step.verdict} |"
        )
    return rows


def round_rows() -> list[str]:
    """Return a row for each program that was timed in rounds, with how many pairs differ more."""
    rows = []
    for folder in ROUNDS:
        times = json.loads((RECORDINGS / folder / "times.json").read_text(encoding="utf-8"))
        for name, of_program in times.items():
            for packed in (RECORDINGS / folder).glob(f"{name}.*"):
                rounds = of_program["before"]
                differ = _may_differ_by(packed, statistics.fmean(rounds))
                num = sum(abs(one - other) > differ for one, other in combinations(rounds, 2))
                deviation = statistics.stdev(map(math.log, rounds))
                lengths = " ".join(f"{length / 1000:.3g}" for length in rounds)
                rows.append(
                    f"| {f'{folder}/' if folder else ''}{name} | {lengths} | {percent(deviation)}"
                    f" | {percent(differ / statistics.fmean(rounds))} | {num} |"
                )
    return rows


def _may_differ_by(packed: Path, step_us: float) -> float:
    """Return by how much two recordings of a program with such a step may differ, in µs."""
    with tempfile.TemporaryDirectory() as folder:
        path = packed
        if packed.suffix == ".xz":
            path = Path(folder) / packed.stem
            path.write_bytes(lzma.decompress(packed.read_bytes()))
        means = series([analysed(path)]).means
    scaled = {name: round(ns * step_us * _NS / means["window_ns"]) for name, ns in means.items()}
    return reach(scaled, scaled, spreads()).high / _NS


def _signed(fraction: float | None) -> str:
    return "" if fraction is None else f"{100 * fraction:+.2f} %"


def page(of_pairs: Sequence[str], of_rounds: Sequence[str]) -> str:
    """Return the page made of the rows of its two tables."""
    alarms = sum(row.endswith(tuple(f"| {word} |" for word in ALARMS)) for row in of_pairs)
    num = 45 * len(of_rounds)
    beyond = sum(int(row.split(" | ")[-1].removesuffix(" |")) for row in of_rounds)
    every = len(of_pairs) + num
    return "\n".join(
        [
            "# Reruns of unchanged programs",
            "",
            _INTRO.format(alarms + beyond, every, percent((alarms + beyond) / every)),
            "",
            "## Recordings",
            "",
            _PAIRS_INTRO.format(alarms, len(of_pairs), percent(alarms / len(of_pairs))),
            "",
            "| recording | which | change | over steps | with other recordings | verdict |",
            "|" + "---|" * 6,
            *of_pairs,
            "",
            "## Rounds without a recorder",
            "",
            _ROUNDS_INTRO.format(beyond, num, percent(beyond / num)),
            "",
            "| program | a step in each round, ms | deviation | may differ by | pairs beyond |",
            "|" + "---|" * 5,
            *of_rounds,
            "",
        ]
    )


_INTRO = """\
How often `traceprof compare`, with one recording a side and its [table of usual
spreads](compare.md#what-one-recording-a-side-can-say), calls a change what is none: in {} of {}
pairs ({}). The table was made from the recordings in the first section; the rounds in the second
had no part in it. `make validation` writes this page."""

_PAIRS_INTRO = """\
Reruns, and quarters of recordings of at least twelve steps, each against each. `faster` or
`slower`: {} of {} ({}), all of one solver, whose second half has less work."""

_ROUNDS_INTRO = """\
Ten rounds of each program of [docs/h100.md](h100.md) before its change, each against each: {} of {}
pairs ({}) differ by more than two recordings of such parts may. The parts are those of the
recording. Half of these pairs are of two programs: one round of `gpt2_half` took three times as
long as the others, and `channels_last` varied as its kernels never do."""


if __name__ == "__main__":
    recordings = pair_rows(Path(os.environ["TRACEPROF_TRACES"]))
    PAGE.write_text(page(recordings, round_rows()), encoding="utf-8")
