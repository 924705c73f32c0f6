"""Real traces of torch.profiler, against the reference: event by event, and the breakdown."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.reference import completeness, kineto
from tests.support.claims import analyzed, assert_agrees
from tests.support.selection import as_rows
from tests.support.traces import OWN_PROFILES, REAL_FOLDER, ranks_of
from traceprof.analysis import analyze_reports
from traceprof.trace.model.communication_calls import OPERATIONS
from traceprof.trace.model.kinds import CopyKind, MemoryKind
from traceprof.trace.model.operations import Operations
from traceprof.trace.model.special_values import NULL
from traceprof.trace.model.trace import Trace
from traceprof.trace.open import open_trace, reports_in

TRACES = sorted(REAL_FOLDER.glob("kineto/**/*.json.gz")) if REAL_FOLDER else []
"""Real traces that the machine has beside `OWN_PROFILES`."""
LONG_BYTES = 500_000  # packed
KINDS = {
    CopyKind.HOST_TO_DEVICE: "htod", CopyKind.DEVICE_TO_HOST: "dtoh",
    CopyKind.DEVICE_TO_DEVICE: "dtod", CopyKind.PEER_TO_PEER: "ptop", NULL: "",
}  # fmt: skip


def is_short(path: Path) -> bool:
    """Say whether a trace is small, and not one of a run of which another one is read always."""
    is_first = path.parent.name == "kineto" or path == min(path.parent.iterdir())
    return path.stat().st_size <= LONG_BYTES and is_first


def parameters() -> list[Any]:
    own = [path for path in OWN_PROFILES if not TRACES or path == OWN_PROFILES[0]]
    return [
        pytest.param(path, id=path.name[-40:], marks=[] if is_always_read else [pytest.mark.long])
        for paths, is_read in ((OWN_PROFILES, own.__contains__), (TRACES, is_short))
        for path, is_always_read in zip(paths, map(is_read, paths), strict=True)
    ]


@pytest.fixture(scope="module", params=parameters())
def real(request: pytest.FixtureRequest) -> tuple[Path, dict[str, Any]]:
    return request.param, kineto.document(request.param)


def columns(operations: Operations, origin_ns: int) -> list[Any]:
    start, end = operations.start_ns + origin_ns, operations.end_ns + origin_ns
    return [start, end, operations.stream, operations.correlation]


def origin_of(trace: Trace, facts: dict[str, Any]) -> int:
    start_ns = trace.session.start_utc_ns
    # Those of a converter begin at 0, which is no date: then only what follows is held.
    return kineto.first_start(facts) if start_ns is None else start_ns


def memory(kind: int) -> str:
    return "" if kind == NULL else MemoryKind(kind).name.lower()


@pytest.mark.slow
@pytest.mark.traces
def test_every_event_is_read_to_the_nanosecond(real: tuple[Path, dict[str, Any]]) -> None:
    path, facts = real
    trace = open_trace(path)
    origin = origin_of(trace, facts)
    kernels, copies = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    for key, operations in trace.operations.items():
        of_rank = operations.kernels
        shapes = trace.signatures.shape[of_rank.signature]
        for *row, name, shape in as_rows(*columns(of_rank, origin), of_rank.name, shapes):
            grid, block = (() if NULL in part else tuple(part) for part in (shape[:3], shape[3:]))
            kernels.append((key.device, *row, trace.kernel_names[name], grid, block))
        for group in (operations.copies, operations.memsets):
            facts_of = (group.bytes, group.kind, group.source_memory, group.destination_memory)
            for *where, kind, source, target in as_rows(*columns(group, origin), *facts_of):
                ends = memory(source), memory(target)
                copies.append((key.device, *where, KINDS[kind], *ends))
    assert sorted(kernels) == kineto.kernels(facts)
    assert sorted(copies) == kineto.copies(facts)
    (process,) = {key.process for key in trace.operations}
    assert process == kineto.main_process(facts)
    calls = trace.api_calls(process)
    assert calls is not None
    times = calls.start_ns + origin, calls.end_ns + origin
    read = as_rows(calls.correlation, *times, calls.thread, calls.name)
    assert sorted((*row, trace.api_names[name]) for *row, name in read) == kineto.api_calls(facts)
    ranges = trace.range_table(process)
    named = kineto.annotated(facts)
    times = ranges.start_ns + origin, ranges.end_ns + origin
    read = as_rows(*times, ranges.thread, ranges.name)
    assert sorted((*row, ranges.names[name]) for *row, name in read) == named


@pytest.mark.slow
@pytest.mark.traces
def test_the_breakdown_is_the_references(real: tuple[Path, dict[str, Any]]) -> None:
    path, facts = real
    ranks = kineto.ranks(facts, origin_of(open_trace(path), facts))
    found = analyzed(path)
    if not any(rank.steps for rank in ranks):  # the reference knows no steps by the optimizer's
        found = [(*row[:3], []) for row in found]
    assert_agrees(found, ranks)


@pytest.mark.slow
@pytest.mark.traces
def test_calls_tell_what_the_profiler_was_told(real: tuple[Path, dict[str, Any]]) -> None:
    path, facts = real
    trace = open_trace(path)
    origin = origin_of(trace, facts)
    calls = trace.communication_calls(kineto.main_process(facts)).labelled
    columns = calls.start_ns, calls.operation, calls.bytes, calls.communicator, calls.world_size
    found = [
        (start + origin, OPERATIONS[operation], size, calls.communicators[group], world)
        for start, operation, size, group, world in as_rows(*columns)
        if group >= 0
    ]
    assert sorted(found) == kineto.calls(facts)


@pytest.mark.long
@pytest.mark.traces
def test_eight_ranks_of_one_step_are_brought_together(traces: Path) -> None:
    result = analyze_reports(reports_in(traces / "kineto" / "dlrm_8ranks"))
    assert (result.run.rank_source, len(result.run.ranks)) == ("torch", 8)
    operations = list[tuple[int, str, int, int]]()
    for waits in result.ranks.waits:
        apart = np.ptp(waits.end_ns, axis=1)
        for row, kind in enumerate(waits.group.operation.tolist()):
            last = result.ranks.ranks[waits.group.members[int(waits.last[row])]]
            first_start = int(waits.start_ns[row].min())
            operations.append((first_start, waits.group.operations[kind], last, int(apart[row])))
    operations.sort()
    kinds = [kind for _, kind, _, _ in operations]
    assert sorted(kinds) == ["AllReduce"] * 3 + ["AlltoAll"] * 5
    assert [last for _, _, last, _ in operations] == [7, 7, 7, 7, 7, 5, 5, 4]
    assert max(apart for *_, apart in operations) <= 7_000  # on one clock
    (late,) = [finding for finding in result.findings if finding.id == "straggler"]
    assert late.metrics["rank"] == 7


@pytest.mark.slow
@pytest.mark.traces
def test_every_operator_and_function_of_the_host_is_read(real: tuple[Path, dict[str, Any]]) -> None:
    path, facts = real
    trace = open_trace(path)
    origin = origin_of(trace, facts)
    (process,) = {key.process for key in trace.operations}
    for categories, table in (
        (("cpu_op", "Operator"), trace.operators(process)),
        (("python_function",), trace.python_functions(process)),
    ):
        expected = sorted(
            (event["start"], event["end"], int(event["tid"]), event["name"])
            for event in kineto.events(facts, *categories)
            if event["pid"] == process  # threads that the profiler cannot place have process 0
        )
        assert (table is None) == (not expected)
        if table is None:
            continue
        names = [table.names[number] for number in table.packed_name.values.tolist()]
        times = table.start_ns + origin, table.end_ns + origin
        read = as_rows(*times, table.packed_thread.values, np.array(names, object))
        assert sorted(read) == expected


def assert_lacks_what_the_reference_says(path: Path, facts: dict[str, Any]) -> None:
    with ranks_of(path) as ranks:
        (rank,) = [rank for rank in ranks if rank.device is not None]
        losses = rank.completeness.losses
        found = (losses.num_launches, losses.num_lost, losses.num_cut, rank.lost.measure_ns)
    assert found == completeness.losses_of_profiler(facts)


@pytest.mark.traces
def test_the_reference_finds_the_same_losses(real: tuple[Path, dict[str, Any]]) -> None:
    assert_lacks_what_the_reference_says(*real)


@pytest.mark.traces
@pytest.mark.parametrize(
    "name", ["gb10_graphs_one_in_ten", "gb10_graphs_whole", "i07b_third_of_kernels_dropped"]
)
def test_the_reference_finds_the_same_losses_of_damaged_traces(name: str, traces: Path) -> None:
    path = traces / "cases" / f"{name}.json.gz"
    assert_lacks_what_the_reference_says(path, kineto.document(path))
