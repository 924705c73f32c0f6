"""The text report's tables of time: of each rank, and of its training steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.measure import Measurement
from rich.text import Text

from traceprof.analyses.breakdown import judged_kind
from traceprof.analyses.steps.step_means import counted_steps, step_lengths
from traceprof.errors import one_line
from traceprof.findings import share
from traceprof.reports.detail import MAX_RANKS, WHOLE
from traceprof.reports.tables import MAX_NAME, new_table
from traceprof.units import counted, duration, percent, ranks_text, size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table

    from traceprof.analyses.breakdown import BreakdownResult, Measures, StepMeasures
    from traceprof.analyses.breakdown.surroundings import Surroundings
    from traceprof.analyses.steps.step_means import StepLengths
    from traceprof.analyses.verdict.run_result import RunResult
    from traceprof.reports.detail import Detail
    from traceprof.run.summary import RankInfo

_BAR = 20  # characters
_MIN_BAR = 6
_MIN_TOLD = 0.01  # of a rank's window: less outside the training is not worth a line
_MIN_SPOKEN = 0.005  # of the time: less is not worth a word
_SPOKEN = {
    "compute_ns": "compute",
    "exposed_communication_ns": "exposed communication",
    "exposed_copy_ns": "exposed copies",
    "idle_ns": "idle",
}
CAUSE_WORDS = {
    "launch_bound_ns": "launching",
    "turnaround_ns": "the GPU's own turn-around",
    "sync_ns": "waits for the GPU",
    "data_loading_ns": "data loading",
    "mpi_ns": "MPI",
    "setup_ns": "set-up",
    "allocation_ns": "allocation",
    "stalled_ns": "stalls of the host",
    "waiting_ns": "sleep",
    "host_code_ns": "code on the host",
    "unknown_ns": "unknown",
}
"""What a GPU waits for, by the metric of `gpu-idle`."""
_LEFT_OUT = {
    "cut": "cut by the recording's edge",
    "opening": "slow at the beginning",
    "rare": "rare, in which something else ran",
}
_PARTS = (
    # measure, heading, colour, and a character of its own for those who see no colour
    ("compute_ns", "compute", "green", "█", "#"),
    ("exposed_communication_ns", "exposed\ncomm", "red", "▒", "="),
    ("exposed_copy_ns", "exposed\ncopy", "yellow", "░", "-"),
    ("idle_ns", "idle", "bright_black", "·", "."),
)


def breakdown_table(analysis: RunResult, max_ranks: int = MAX_RANKS) -> RenderableType:
    """Return the parts of the judged time by rank, and notes on the rest."""
    below = [Text(line) for line in below_the_table(analysis, max_ranks)]
    return Group(parts_table(analysis, max_ranks), _Legend(), *below)


class _Legend:
    """What the marks of the bars stand for."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Text]:
        del console
        yield Text("  ").join(
            Text.assemble(
                (plain if options.ascii_only else mark, colour), f" {heading}".replace("\n", " ")
            )
            for _, heading, colour, mark, plain in _PARTS
        )


def _shown(analysis: RunResult, max_ranks: int) -> list[BreakdownResult]:
    """Return the ranks that a table shows, in their order: the slowest, and what computes least.

    Args:
        analysis: what was found out.
        max_ranks: of the table; where it is `MAX_RANKS`, the first.
    """
    by_rank = sorted(analysis.breakdown, key=lambda result: result.rank)
    if max_ranks >= min(len(by_rank), MAX_RANKS):
        return by_rank[:max_ranks]
    slowest = None if analysis.headline is None else analysis.headline.breakdown.rank
    worst = sorted(
        by_rank,
        key=lambda row: (row.rank != slowest, share(row.judged.compute_ns, row.judged.window_ns)),
    )
    return sorted(worst[:max_ranks], key=lambda result: result.rank)


def parts_table(analysis: RunResult, max_ranks: int = MAX_RANKS) -> Table:
    """Return the parts of the judged time: a line for each rank."""
    headings = [part[1] for part in _PARTS]
    kind = str(judged_kind(analysis.breakdown))
    table = new_table("rank", "GPU", kind, "", *headings, "comm\nhidden", left=("GPU", ""))
    ranks = {rank.rank: rank for rank in analysis.run.ranks}
    for result in _shown(analysis, max_ranks):
        whole, rank = result.judged, ranks[result.rank]
        table.add_row(
            str(result.rank),
            Text(_device(rank), no_wrap=True, overflow="ellipsis"),
            duration(whole.window_ns),
            Bar(whole),
            *(_share_of_window(whole, part[0]) for part in _PARTS),
            _hidden(whole),
        )
    return table


def below_the_table(analysis: RunResult, max_ranks: int = MAX_RANKS) -> list[str]:
    """Return notes on ranks left out of the table, and on the time outside the training."""
    left_out = len(analysis.breakdown) - max_ranks
    lines = (
        [f"… and {counted(left_out, 'more rank')}{where_all(max_ranks)}"] if left_out > 0 else []
    )
    by_rank = sorted(analysis.breakdown, key=lambda result: result.rank)
    return [*lines, *outside_the_training(by_rank)]


def where_all(max_ranks: int) -> str:
    """Say where all ranks are of which a table has so many."""
    return ": --format json has them all" if max_ranks == MAX_RANKS else ""


def outside_the_training(results: Sequence[BreakdownResult]) -> list[str]:
    """Describe the time before and after the training, which is not a finding."""
    lines = []
    for word, parts in (
        ("Before", [(result.rank, result.before, result.seen_before) for result in results]),
        ("After", [(result.rank, result.after, result.seen_after) for result in results]),
    ):
        known = [(rank, part, around) for rank, part, around in parts if part is not None]
        if not known:
            continue
        rank, longest, around = max(known, key=lambda item: item[1].window_ns)
        whole = next(result.whole for result in results if result.rank == rank)
        if longest.window_ns < _MIN_TOLD * whole.window_ns:
            continue
        at_most = "" if len(known) == 1 else f", at most (rank {rank})"
        lines.append(
            f"{word} the training of {ranks_text([rank for rank, *_ in known])}:"
            f" {duration(longest.window_ns)}{at_most}: {_made_of(longest, around)}."
        )
    left_out = [result for result in results if result.training and result.training.num_left_out]
    for result in left_out[:1]:
        training = result.training
        assert training is not None  # noqa: S101  (chosen by it)
        what = []
        if training.num_warm_up:
            what.append(f"{training.num_warm_up} lie in a range of warm-up")
        if training.num_distorted:
            what.append(
                f"in {training.num_distorted} the profiler itself took over 10 % of the time"
            )
        lines.append(
            f"Of rank {result.rank}'s first steps {training.num_left_out} are not training:"
            f" {', '.join(what)}."
        )
    return lines


def _made_of(part: Measures, around: Surroundings | None) -> str:
    """Return the parts of a time outside the training, longest first."""
    num_bytes = 0 if around is None else around.bytes_to_gpu  # also 0 if sizes are unknown
    uploaded = f", {size_text(num_bytes)} to the GPU" if num_bytes else ""
    shares = [
        (part.compute_ns, f"compute ({part.num_kernels} kernel{'s' * (part.num_kernels != 1)})"),
        (part.exposed_communication_ns, "communication"),
        (part.exposed_copy_ns, f"copies ({part.num_copies}{uploaded})"),
        (part.idle_ns, f"idle{_causes(part, around)}"),
    ]
    shares.sort(key=lambda item: -item[0])
    return ", ".join(f"{duration(ns)} {what}" for ns, what in shares if ns)


def _causes(part: Measures, around: Surroundings | None) -> str:
    """Return the causes of idle time outside the training that take a tenth of it or more."""
    causes = {} if around is None else around.idle_by_cause
    by_size = sorted(causes.items(), key=lambda item: -item[1])
    words = [
        f"{duration(idle_ns)} {CAUSE_WORDS[f'{cause.value}_ns']}"
        for cause, idle_ns in by_size
        if 10 * idle_ns >= part.idle_ns
    ]
    return f" ({', '.join(words)})" if words else ""


def _device(rank: RankInfo) -> str:
    if rank.device is None:
        return "CPU"
    return f"{rank.device} {one_line(rank.gpu or '', MAX_NAME)}".strip()


def _share_of_window(measures: Measures, measure: str) -> str:
    value = int(getattr(measures, measure))
    return percent(value / measures.window_ns) if measures.window_ns else "-"


def _hidden(measures: Measures) -> str:
    if not measures.communication_ns:
        return "-"
    return percent(measures.overlapped_communication_ns / measures.communication_ns)


class Bar:
    """The identity as a bar: the parts of the window, each as wide as its share."""

    def __init__(self, measures: Measures) -> None:
        self._measures = measures

    @property
    def shares(self) -> list[tuple[str, float]]:
        """The fields of `Measures` that the window is made of, and the share of each, 0 to 1."""
        return [(measure, self._measures.fraction(measure)) for measure, *_ in _PARTS]

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        del console
        return Measurement(min(_MIN_BAR, options.max_width), min(_BAR, options.max_width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Text]:
        del console
        width, window = min(_BAR, options.max_width), self._measures.window_ns
        bar = Text(no_wrap=True)
        drawn, seen = 0, 0
        for measure, _, colour, mark, plain_mark in _PARTS:
            seen += int(getattr(self._measures, measure))
            until = round(width * seen / window) if window else 0
            bar.append((plain_mark if options.ascii_only else mark) * (until - drawn), colour)
            drawn = until
        yield bar


def steps_table(analysis: RunResult, detail: Detail = WHOLE) -> RenderableType | None:
    """Return what the steady steps take on average; None if no rank has steps."""
    if not any(result.steps for result in analysis.breakdown):
        return None
    results = _shown(analysis, detail.max_ranks)
    if not detail.has_all_steps and analysis.headline is not None:
        results = [analysis.headline.breakdown]
    table = new_table(
        "rank", "steps", "step\n(mean)", "median", *(part[1] for part in _PARTS), "slowest\nstep"
    )
    notes: list[str] = []
    for result in results:
        lengths = step_lengths(result)
        if lengths is None:
            table.add_row(str(result.rank), "0")
            continue
        slowest = f"{lengths.slowest.number} ({duration(lengths.slowest.measures.window_ns)})"
        table.add_row(
            str(result.rank),
            str(lengths.num_steps),
            duration(lengths.mean_ns),
            duration(lengths.median_ns),
            *_means(counted_steps(result)),
            slowest,
        )
        notes = notes or about_steps(result, lengths)
    return Group(table, *map(Text, notes))


def about_steps(result: BreakdownResult, lengths: StepLengths) -> list[str]:
    """Return notes on kinds of steps, and on steps that do not count."""
    notes, rank = [], result.rank
    if len(lengths.kinds) > 1:
        kinds = " and ".join(f"{one.num_steps} of {duration(one.mean_ns)}" for one in lengths.kinds)
        kind = "phases" if len(result.periods) > 1 else "kinds"
        num = {2: "two"}.get(len(lengths.kinds), str(len(lengths.kinds)))
        notes.append(f"The steps of rank {rank} are of {num} {kind}: {kinds}.")
    if lengths.left_out:
        left_out = "; ".join(
            f"{part.num_steps} {_LEFT_OUT[part.why]} ({duration(part.total_ns)})"
            for part in lengths.left_out
        )
        notes.append(f"Steps of rank {rank} that do not count: {left_out}.")
    return notes


def _means(steps: Sequence[StepMeasures]) -> list[str]:
    sums = [sum(getattr(step.measures, name) for step in steps) for name, *_ in _PARTS]
    return [duration(round(whole / len(steps))) for whole in sums]


def where_it_went(measures: Measures) -> str:
    """Return the parts of a time, such as `75 % idle`, in the order of the tables."""
    parts = [
        f"{percent(getattr(measures, name) / measures.window_ns)} {_SPOKEN[name]}"
        for name, *_ in _PARTS
        if measures.window_ns and getattr(measures, name) / measures.window_ns >= _MIN_SPOKEN
    ]
    return ", ".join(parts)
