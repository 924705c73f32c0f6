"""What a replay says of real changes, beside what they brought: `docs/whatif.md` has the table.

    python -m benchmarks.whatif_pairs FOLDER

FOLDER holds recordings before and after changes that their authors made; pairs that it lacks are
left out. A step is the mean of the steady ones, by this program's own measure; without steps it is
the training.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from traceprof.analysis import Options, analyze
from traceprof.replay.answers.ask import whatif
from traceprof.units import duration, percent


@dataclass(frozen=True)
class Pair:
    """A change: recordings before and after it, and the assumption that is nearest to it."""

    before: str
    after: str
    change: str
    assume: str


PAIRS = (
    Pair("a100x4_ddp_baseline_rank0", "a100x4_ddp_nobroadcast_rank0",
         "gradients as views of their buckets", "copies-hidden"),
    Pair("pairs/a100_loader_0_baseline", "pairs/a100_loader_1_8workers",
         "eight workers load data", "no-data-loading"),
    Pair("pairs/a100_loader_1_8workers", "pairs/a100_loader_2_dali",
         "another loader", "no-data-loading"),
    Pair("pairs/a100_loader_2_dali", "pairs/a100_loader_3_dali_amp",
         "mixed precision", "kernel:sgemm=0.5x"),
    Pair("pairs/v100_mpas_0_noasync", "pairs/v100_mpas_1_async",
         "no wait after each kernel", "no-kernel-sync"),
    Pair("pairs/v100_mpas_0_noasync", "pairs/v100_mpas_1_async",
         "the same", "no-sync"),
)  # fmt: skip


def step_ns(path: Path) -> int:
    """Return the mean steady step of a recording."""
    with closing(analyze(path, options=Options(savings=False))) as analysis:
        headline = analysis.result.headline
        return 0 if headline is None else headline.step_ns


@click.command()
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
def main(folder: Path) -> None:
    """Print each pair: before, what was said, and what came."""
    table = Table("change", "assumption", "before", "said", "from", "to", "really", "")
    for pair in PAIRS:
        before, after = folder / f"{pair.before}.sqlite", folder / f"{pair.after}.sqlite"
        if not (before.exists() and after.exists()):
            continue
        asked = whatif(before, assume=[pair.assume]).whatif
        (answer,) = asked.answers
        was, came = step_ns(before), step_ns(after)
        said = ["no answer", "", ""]
        if answer.refused is None:
            limits = (answer.step_ns or 0, answer.low_ns or 0, answer.high_ns or 0)
            said = [duration(limit) for limit in limits]
        verdict = "" if answer.refused is None else answer.refused
        if answer.is_bound:
            verdict = "a limit"
        elif answer.refused is None and came > (answer.high_ns or 0):
            verdict = f"{percent(came / (answer.high_ns or 1) - 1)} too optimistic"
        table.add_row(pair.change, pair.assume, duration(was), *said, duration(came), verdict)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
