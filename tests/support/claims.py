"""What analyses claim, beside their references, and the documents that say so."""

import ast
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import jsonschema
import msgspec
import pytest
from msgspec.structs import asdict, replace

import traceprof
from tests.reference.breakdown import RankEvents, measured, read
from tests.reference.exposed_copy import KINDS, ExposedCopy
from tests.reference.host import Evidence
from tests.reference.idle_causes import RankIdle
from tests.reference.links import reference_copies, reference_integral, reference_series
from tests.reference.nsight_export import Export
from tests.support.builders import TraceBuilder, global_tid
from tests.support.traces import SAMPLE_FOLDER, ranks_of
from traceprof.analyses import breakdown
from traceprof.analyses.exposed_copy import ExposedCopyResult, exposed_ns
from traceprof.analyses.links import link_counters, link_usage
from traceprof.analyses.nccl_serialization import SerializationResult
from traceprof.analysis import Options, analyze, analyze_reports
from traceprof.documents.analysis.model import Document
from traceprof.findings import Finding, NotApplicable
from traceprof.host.idle_causes import idle_causes
from traceprof.reports.json import render
from traceprof.run.opening import Window
from traceprof.run.rank import Rank
from traceprof.run.windows import time_window
from traceprof.trace.model.kinds import MemoryKind

Result = TypeVar("Result")


def results_of(
    run: Callable[[Rank, Window], Result], path: Path, window: Window | None = None
) -> list[Result]:
    """Return what an analysis measures of each rank, in a window or in the rank's whole one."""
    with ranks_of(path) as ranks:
        return [run(rank, window or rank.window) for rank in ranks]


def only_finding(claims: Sequence[object]) -> Finding:
    """Return the only claim, which has to be a finding."""
    (claim,) = claims
    assert isinstance(claim, Finding)
    return claim


def only_gap(claims: Sequence[object]) -> NotApplicable:
    """Return the only claim, which has to be that something is missing."""
    (claim,) = claims
    assert isinstance(claim, NotApplicable)
    return claim


def assert_missing(claims: Sequence[object], why: str, how_to_collect: str) -> None:
    """Assert that nothing is claimed but that something is missing, and how to record it."""
    missing = only_gap(claims)
    assert why in missing.reason
    assert how_to_collect in missing.how_to_collect


TimeRange = tuple["int | None", "int | None"]
Row = tuple[int, int, dict[str, int], list[tuple[int, dict[str, int]]]]


def analyzed(path: Path, **options: Any) -> list[Row]:
    """Return (pid, device, whole, steps) of each rank, by the analyzer."""
    analysis = analyze(path, options=Options(**options, savings=False, period=False))
    try:
        ranks = {rank.rank: rank for rank in analysis.run.ranks}
        rows = [
            (
                ranks[result.rank].pid,
                ranks[result.rank].key.device,
                asdict(result.whole),
                [(step.number, asdict(step.measures)) for step in result.steps],
            )
            for result in analysis.result.breakdown
        ]
    finally:
        analysis.close()
    return sorted(rows, key=lambda row: row[:2])


def measured_in(ranks: Sequence[Rank], time_range: TimeRange) -> list[Row]:
    """Return the same of ranks that are open, within a time range."""
    rows = []
    for rank in ranks:
        if rank.device is None:
            continue
        result = breakdown.run(rank, time_window(rank, time_range))
        marked = () if result.periods else result.steps  # the reference knows no periods
        steps = [(step.number, asdict(step.measures)) for step in marked]
        rows.append((rank.pid, rank.device, asdict(result.whole), steps))
    return sorted(rows, key=lambda row: row[:2])


def assert_agreement(
    path: Path, *, time_range: TimeRange | None = None, step_pattern: str | None = None
) -> list[Row]:
    """Compare both on one export and return what they agree on."""
    events = read(path, step_pattern=step_pattern)
    rows = analyzed(path, time_range=time_range, step_pattern=step_pattern)
    assert_agrees(rows, events, time_range)
    return rows


def assert_agrees(
    rows: list[Row], events: Sequence[RankEvents], time_range: TimeRange | None = None
) -> None:
    """Hold what the analyzer says to what the reference measures of its own reading."""
    expected = [
        (
            rank.pid,
            rank.device,
            dataclasses.asdict(rank.whole),
            [(step.number, dataclasses.asdict(step.measures)) for step in rank.steps],
        )
        for rank in (measured(event, time_range) for event in events)
    ]
    assert rows == sorted(expected, key=lambda row: row[:2])
    for _, _, whole, steps in rows:
        for measures in (whole, *(step for _, step in steps)):
            parts = ("compute_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns")
            assert sum(measures[part] for part in parts) == measures["window_ns"]


LATE, DDP = SAMPLE_FOLDER / "late-allreduce.sqlite", SAMPLE_FOLDER / "ddp.sqlite"
OPTIONS = Options(savings=False)
TRAINING = SAMPLE_FOLDER / "training.sqlite"


@cache
def written(path: Path) -> str:
    """Return the analysis of a sample; none is replayed, which takes longest."""
    return render(analyze_reports([path], OPTIONS))


def analysis(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(written(path))
    return loaded


def document_of(path: Path) -> Document:
    return msgspec.convert(analysis(path), Document)


def answer(result: ExposedCopyResult) -> ExposedCopy:
    """Return what the analysis says, in the reference's words."""
    metrics, parts = result.metrics, result.parts
    gradients = [part for part in result.parts if part.is_gradient]
    return ExposedCopy(
        window_ns=result.window_ns,
        copy_ns=result.copy_ns,
        exposed_ns=metrics.exposed_ns,
        by_kind={kind: getattr(metrics, f"{kind}_ns") for kind in KINDS},
        pageable_ns=exposed_ns(part for part in parts if part.memory is MemoryKind.PAGEABLE),
        same_stream_ns=metrics.same_stream_ns,
        bytes=metrics.bytes,
        num_copies=metrics.num_copies,
        gradient_ns=metrics.gradient_ns,
        gradient_bytes=sum(part.bytes for part in gradients),
        num_gradient_copies=sum(part.num_copies for part in gradients),
    )


US, MS = 1_000, 1_000_000
# Every export begins with a kernel that was launched before it began and ends at 10 ms.
END = 10 * MS


def begun() -> TraceBuilder:
    return TraceBuilder().kernel(9 * MS, END, launch=(9 * MS - 20 * US, 9 * MS - 10 * US))


def switched(trace: TraceBuilder, *rows: tuple[int, int], tid: int | None = None) -> TraceBuilder:
    """Have a thread go off the CPU (0) and come back (1) at times."""
    for time, is_in in rows:
        thread = global_tid(tid=tid)
        trace.raw("SCHED_EVENTS", start=time, cpu=0, isSchedIn=is_in, globalTid=thread)
    return trace


def os_call(trace: TraceBuilder, name: str, start: int, end: int) -> TraceBuilder:
    trace.raw("StringIds", id=90_000, value=name)
    return trace.raw("OSRT_API", start=start, end=end, globalTid=global_tid(), nameId=90_000)


def found(
    trace: TraceBuilder, folder: Path, window: tuple[int, int] | None = None
) -> dict[str, float]:
    """The causes that have time, in us where they are whole ones, without `_ns`.

    The reference must say the same.
    """
    path = trace.write(folder)
    export = Export(path)
    result = RankIdle(export, Evidence(export), *min(export.ranks)).answer(window)
    assert sum(result.causes.values()) == result.idle_ns
    for piece, after in zip(result.pieces, result.pieces[1:], strict=False):
        assert piece.start < piece.end <= after.start
    with ranks_of(path) as (rank, *_):
        causes = idle_causes(rank).within(Window(*window) if window else rank.window)
    assert {f"{cause.value}_ns": ns for cause, ns in causes.items()} == result.causes
    return {name.removesuffix("_ns"): ns / US for name, ns in result.causes.items() if ns}


def late(trace: TraceBuilder, gap: int, call: int = 10 * US, **how: object) -> TraceBuilder:
    """End the gap with a kernel whose launch call returns as it starts."""
    start = END + gap
    return trace.kernel(start, start + MS, launch=(start - call, start), **how)  # type: ignore[arg-type]


A100 = "NVIDIA A100-SXM4-80GB"
MIB = 1 << 20


def judged(path: Path, module: Any = link_usage, **overrides: float) -> list[Any]:
    with ranks_of(path) as ranks:
        informed = [replace(rank, peak_overrides=overrides) for rank in ranks]
        results = [module.run(rank, rank.window) for rank in informed]
    return [finding for result in results for finding in module.findings(result)]


def assert_copies_agree(path: Path) -> None:
    expected = reference_copies(path)
    with ranks_of(path) as ranks:
        assert {(rank.process, rank.device) for rank in ranks} == expected.keys()
        for rank in ranks:
            result = link_usage.run(rank, rank.window)
            truth = expected[rank.process, rank.key.device]
            uses = {
                (use.direction, use.peer): (use.bytes, use.busy_ns, use.num_copies)
                for use in result.uses
            }
            assert uses == truth["uses"]
            for load in result.loads:
                assert load.metrics.exposed_ns == truth["exposed"][load.metrics.direction]
            for load in result.big_loads:
                numbers = (
                    load.metrics.bytes,
                    load.metrics.busy_ns,
                    load.metrics.num_copies,
                    load.metrics.exposed_ns,
                )
                assert numbers == truth["big"][load.metrics.direction]
            waited = {
                name for name, ns in truth["exposed"].items() if ns * 100 >= rank.window.length_ns
            }
            if result.loads:
                assert {load.metrics.direction for load in result.loads} == waited


def assert_counters_agree(path: Path) -> None:
    series = reference_series(path)
    with ranks_of(path) as ranks:
        for rank in ranks:
            result = link_counters.run(rank, rank.window)
            window = rank.window.start_ns, rank.window.end_ns
            busy = list(zip(rank.busy.start_ns.tolist(), rank.busy.end_ns.tolist(), strict=True))
            for use in result.counters:
                if use.source == "gpu-metrics":
                    periods = series[rank.key.device, use.link, use.direction]
                    nvlink = use.link == "nvlink"
                    count, covered, active, integral, spikes = reference_integral(
                        periods, window, busy, nvlink
                    )
                    assert use.num_samples == count
                    assert (use.busy_ns, use.num_idle_spikes) == (active, spikes)
                    peak = use.peak_gb_per_s
                    assert use.bytes == (None if peak is None else round(integral * peak / 100))
                    assert use.utilization == pytest.approx(integral / covered / 100)


def measured_numbers(result: SerializationResult, names: Iterable[str]) -> dict[str, int]:
    """Return these numbers of the result and its metrics by name, 0 for unknown ones."""
    declared = result.metrics.declared()
    return {
        name: getattr(result.metrics if name in declared else result, name) or 0 for name in names
    }


@cache
def validator(document: str = "analysis") -> jsonschema.Draft202012Validator:
    """Return what compares a document with its schema: `validator("whatif").validate(…)`."""
    text = resources.files("traceprof.reports").joinpath(f"{document}-1.schema.json").read_text()
    return jsonschema.Draft202012Validator(json.loads(text))


def private_names(code: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("traceprof"):
            yield from () if node.module == "traceprof" else (str(node.module),)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("traceprof."))
        elif isinstance(node, ast.Attribute):
            if node.attr.startswith("_"):
                yield node.attr
            elif isinstance(node.value, ast.Name) and node.value.id == "traceprof":
                yield from () if node.attr in traceprof.__all__ else (node.attr,)
