"""Notes about the data of a run, for readers of its results."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from traceprof.trace.model.parts import Part
from traceprof.units import counted, ranks_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from traceprof.run.opening import RunSummary
    from traceprof.run.summary import CpuRankGaps


def notes_of(run: RunSummary) -> Iterator[tuple[int, str]]:
    """Yield (report index, note)."""
    for index, number in enumerate(run.run_numbers):
        if number:
            note = f"it is not of the same run as {run.reports[0].path.name}: it was captured at"
            note += " another time, or from another program; the two are not compared"
            yield index, note
    with_ranks = {rank.report for rank in run.ranks}
    for index, report in enumerate(run.reports):
        for note in report.notes:
            yield index, note
        if index not in with_ranks:
            held = [counted(table.num_rows, table.what) for table in report.contents]
            yield index, f"no GPU operation, so no rank; it holds {', '.join(held) or 'no events'}"
        for process, call in report.open_calls.items():
            of_process = [
                rank.rank for rank in run.ranks if (rank.report, rank.process) == (index, process)
            ]
            yield index, call.sentence(ranks_text(of_process))
    yield from _on_one_gpu(run)
    of_hosts = [rank for rank in run.ranks if rank.device is None]
    gaps = [run.reports[rank.report].cpu_rank_gaps[rank.process] for rank in of_hosts]
    numbers = [rank.rank for rank in of_hosts]
    for note in cpu_rank_notes(numbers, gaps, run.how_to_collect):
        yield of_hosts[0].report, note  # once, of all reports


def _on_one_gpu(run: RunSummary) -> Iterator[tuple[int, str]]:
    on_gpu: defaultdict[tuple[int, str], dict[int, int]] = defaultdict(dict)
    for rank in run.ranks:
        if rank.gpu_id is not None:
            on_gpu[rank.report, rank.gpu_id].setdefault(rank.process, rank.rank)
    for (index, _), rank_of in on_gpu.items():
        if len(rank_of) > 1:
            note = f"{ranks_text([*rank_of.values()])} run on the same GPU: while it is idle for"
            yield index, f"{note} one, it may work for another"


def cpu_rank_notes(
    ranks: Sequence[int], gaps: Sequence[CpuRankGaps], how_to_collect: Callable[[Part], str]
) -> Iterator[str]:
    """Return notes on how the ranks without a GPU were measured.

    Args:
        ranks: their numbers.
        gaps: the gaps in the ranges of each.
        how_to_collect: how to record a part that their report may lack.
    """
    if not ranks:
        return
    yield (
        f"{ranks_text(ranks)}: no GPU operation was recorded of"
        f" {'this process' if len(ranks) == 1 else 'these processes'}. Compute is the time in the"
        " ranges forward, backward and optimizer step without communication, idle is the time that"
        " no range covers; findings that need a GPU are not judged"
    )
    used_gpu = [rank for rank, gap in zip(ranks, gaps, strict=True) if gap.used_gpu]
    if used_gpu:
        yield (
            f"{ranks_text(used_gpu)}: ranges show copies to or from a GPU: record the GPU's work"
            f" with {how_to_collect(Part.GPU_OPERATIONS)}"
        )
    num_open = sum(gap.num_open for gap in gaps)
    if num_open:
        yield (
            f"ranges that were open when the capture ended ({num_open}) count until the last"
            " known time of their process"
        )
