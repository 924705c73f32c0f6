"""Content of one report: its origin, what is in it, what it lacks."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from rich.table import Table
from rich.text import Text

from traceprof import labels
from traceprof.analyses.registry import ANALYSES
from traceprof.errors import TraceFormatError, one_line
from traceprof.run.opening import Rank, Run, cpu_rank_notes, on_moved_times
from traceprof.run.periods import PeriodSteps, from_to
from traceprof.run.rank import CpuRank
from traceprof.run.step_ranges import StepRanges
from traceprof.trace.model.communication_calls import read_call
from traceprof.trace.model.parts import Part
from traceprof.trace.model.trace import Trace
from traceprof.units import counted, duration

_MAX_SEARCHED = 3_000_000  # events: in more, periods are not searched, which takes seconds


def render(trace: Trace, run: Run, index: int) -> Table:
    """Return the contents of a report as a table of headings and lines."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for heading, text in (
        ("report", one_line(trace.path)),
        *_origin(trace),
        *_contents(trace, run, index),
        *_missing(trace, run, index),
    ):
        table.add_row(heading, Text(one_line(text)))
    return table


def _origin(trace: Trace) -> Iterator[tuple[str, str]]:
    yield (
        "exported by",
        f"{trace.origin}, schema {trace.schema_version}" if trace.schema_version else trace.origin,
    )
    session = trace.session
    if session.start_text:
        machine = f" on {session.host}" if session.host else ""
        yield "recorded", f"{session.start_text} UTC{machine}"
    if session.command_line:
        yield "command", shlex.join(session.command_line)


def _listed(heading: str, lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines):
        yield "" if number else heading, line


def _contents(trace: Trace, run: Run, index: int) -> Iterator[tuple[str, str]]:
    gpus = trace.gpus
    yield from _listed("GPUs", (f"{gpus.count(name)} × {name}" for name in sorted(set(gpus))))
    lines = []
    for rank in (rank for rank in run.ranks if rank.report == index):
        program = trace.program(rank.process) or "process"
        gpu = f" ({rank.gpu})" if rank.gpu else ""
        device = "without GPU work" if rank.device is None else f"on device {rank.device}{gpu}"
        where = f"{program} {rank.pid} {device}"
        when = f"{duration(rank.window.length_ns)} from {rank.window.start_ns / 1e9:.6f} s"
        lines.append(f"rank {rank.rank}: {where}, {when}, {_about_steps(trace, rank)}")
        losses = rank.completeness.losses
        if losses.num_lost:
            lines.append(f"{losses.sentence}; {trace.how_to_collect(Part.EVERY_OPERATION)}")
    yield from _listed("ranks", lines or ["none: no GPU operation was recorded"])
    tables = [f"{counted(one.num_rows, one.what)} ({one.name})" for one in trace.contents()]
    yield from _listed("holds", tables or ["no events"])


def _missing(trace: Trace, run: Run, index: int) -> Iterator[tuple[str, str]]:
    ranks = [rank for rank in run.ranks if rank.report == index]
    hosts = [rank for rank in ranks if isinstance(rank, CpuRank)]
    with_gpu = [rank for rank in ranks if rank.device is not None]
    advice = []
    if not ranks:
        advice.append(f"nothing: record GPU work with {trace.how_to_collect(Part.GPU_OPERATIONS)}")
    elif not with_gpu and not any(len(rank.work.operations) for rank in hosts):
        advice.append("communication: no range of instrument names any (instrument.enable())")
    elif with_gpu and not any(
        rank.communication_operations or rank.is_peer_copy.any() for rank in with_gpu
    ):
        advice.append(
            "communication: none ran here; if kernels with other names communicate,"
            " name them with traceprof analyze --communication-kernel REGEX"
        )
    if ranks and all(_steps(trace, rank) is None and not _periods(trace, rank) for rank in ranks):
        advice.append(_missing_steps(trace))
    lacking = {"kernels inside CUDA graphs": Part.GRAPH_KERNELS}
    if with_gpu:
        lacking["NVLink and PCIe counters"] = Part.LINK_COUNTERS
    advice += [
        f"{what}: record with {trace.how_to_collect(part)}"
        for what, part in lacking.items()
        if not trace.holds(part)
    ]
    if ranks:
        possible = [one for one in ANALYSES if all(map(trace.holds, one.requires))]
        yield "can analyse", ", ".join(id_ for one in possible for id_ in one.findings)
    advice += _missing_parts(trace) if with_gpu else []
    yield from _listed("cannot analyse", advice)
    gaps = run.reports[index].cpu_rank_gaps
    of_hosts = cpu_rank_notes(
        [host.rank for host in hosts], [gaps[host.process] for host in hosts], trace.how_to_collect
    )
    notes = (*trace.notes, *on_moved_times(ranks), *trace.empty_domain_notes(), *of_hosts)
    yield from _listed("about the data", notes)


def _missing_parts(trace: Trace) -> list[str]:
    findings: dict[Part, list[str]] = {}
    for analysis in ANALYSES:
        for part in analysis.requires:
            findings.setdefault(part, []).extend(analysis.findings)
    return [
        f"{', '.join(ids)}: record with {trace.how_to_collect(part)}"
        for part, ids in findings.items()
        if not trace.holds(part)
    ]


def _about_steps(trace: Trace, rank: Rank) -> str:
    steps, periods = _steps(trace, rank), _periods(trace, rank)
    if steps is not None:
        marked = rank.training_ranges.steps is not None
        source = "marked by ranges" if marked else "from one optimizer step to the next"
        return f"{counted(len(steps.number), 'training step')}, {source}"
    if periods is None:
        return "no training steps" if _is_searched(trace) else "no range marks training steps"
    where = from_to(periods.phases)
    return f"{counted(periods.num, 'iteration')}, which no range marks: {where}"


def _periods(trace: Trace, rank: Rank) -> PeriodSteps | None:
    """Return the periods of a rank's kernels; of very many, or of damaged ones, none is known."""
    if not _is_searched(trace):
        return None
    try:
        return rank.periods
    except TraceFormatError:
        return None  # what is wrong with its kernels, the analysis says


def _is_searched(trace: Trace) -> bool:
    return sum(table.num_rows for table in trace.contents()) <= _MAX_SEARCHED


def _steps(trace: Trace, rank: Rank) -> StepRanges | None:
    """Return the steps of a rank as its host saw them, None if they cannot be analysed.

    Which operations each of them launched takes reading all calls.
    """
    has_launches = rank.device is None or trace.holds(Part.API_CALLS)
    return rank.step_ranges if has_launches else None


def _missing_steps(trace: Trace) -> str:
    if not trace.holds(Part.RANGES):
        return (
            "training steps: no range was recorded; name each step with a range `step N`"
            f" (instrument.step) and record with {trace.how_to_collect(Part.RANGES)}"
        )
    longest = trace.longest_ranges(5)
    names = ", ".join(repr(name) for name in longest if read_call(labels.parse(name)) is None)
    if not names:
        return "training steps: name each step with a range `step N` (instrument.step)"
    return (
        "training steps: no range is named like one; where one of the longest ranges"
        f" ({names}) is a step, give --step-pattern"
    )
