"""A Perfetto trace holds what ranks did, at the same times, with the arrows that belong there."""

import io
import json
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace
from perfetto.trace_processor.api import TraceProcessor, TraceProcessorConfig

import traceprof
from tests.support import profiler_events as profile
from tests.support.builders import TraceBuilder
from tests.support.commands import run
from tests.support.databases import query
from tests.support.perfetto import ReadTrace, Slice, read
from tests.support.selection import long_after
from tests.support.traces import analysis_of
from traceprof.analyses import pipeline_bubble
from traceprof.analysis import Analysis, analyze
from traceprof.communication.messages import messages
from traceprof.replay.results import Refusal
from traceprof.reports.perfetto.trace import critical_paths, write

SAMPLES = Path(__file__).parents[3] / "sample_traces"
_ERRORS = "SELECT name FROM stats WHERE severity = 'error' AND value > 0"


def written(analysis: Analysis) -> ReadTrace:
    """Return what is written, as Perfetto's classes read it: nothing in it is unknown to them."""
    file = io.BytesIO()
    write(analysis, file)
    content = file.getvalue()
    trace = Trace.FromString(content)
    trace.DiscardUnknownFields()
    assert trace == Trace.FromString(content)
    return read(content)


@pytest.fixture(scope="module")
def training() -> ReadTrace:
    with analysis_of(SAMPLES / "training.sqlite") as analysis:
        return written(analysis)


def on_streams(trace: ReadTrace, process: int) -> list[tuple[int, int, str]]:
    return sorted(
        (event.start_ns, event.end_ns, event.category)
        for track in trace.all_below(process)
        if trace.names[track].startswith("stream ")
        for event in trace.slices[track]
    )


@pytest.mark.parametrize("name", long_after(2, ["ddp", "peer-copies", "training", "exposed-copy"]))
def test_operations_are_those_of_the_rank(name: str) -> None:
    with analysis_of(SAMPLES / f"{name}.sqlite") as analysis:
        trace = written(analysis)
        assert len(trace.processes) == len(analysis.run.ranks)
        for process, rank in zip(trace.processes, analysis.run.ranks, strict=True):
            expected = []
            none = np.zeros(0, np.bool_)
            of_groups = rank.is_communication_kernel, rank.is_peer_copy, none, none
            kinds = "compute", "copy", "copy", "compute"
            for group, communicates, kind in zip(
                rank.operations.groups, of_groups, kinds, strict=True
            ):
                is_communication = np.zeros(len(group), np.bool_)
                is_communication[: len(communicates)] = communicates
                expected += [
                    (start, end, "communication" if communicating else kind)
                    for start, end, communicating in zip(
                        group.start_ns.tolist(),
                        group.end_ns.tolist(),
                        is_communication.tolist(),
                        strict=True,
                    )
                ]
            assert on_streams(trace, process) == sorted(expected)


def test_threads_are_those_of_the_file(training: ReadTrace) -> None:
    """What SQLite counts, and the times that it holds."""
    calls = query(SAMPLES / "training.sqlite", "SELECT start, end FROM CUPTI_ACTIVITY_KIND_RUNTIME")
    ranges = query(
        SAMPLES / "training.sqlite",
        "SELECT start, end FROM NVTX_EVENTS WHERE eventType IN (59, 60) AND end IS NOT NULL",
    )
    for expected, name in ((calls, "CUDA calls"), (ranges, "ranges")):
        shown = [
            (event.start_ns, event.end_ns)
            for process in training.processes
            for event in training.events(process, "python", name)
        ]
        assert sorted(shown) == sorted(expected)


def test_marks_are_instants_of_their_threads() -> None:
    report = SAMPLES / "marks.sqlite"
    with analysis_of(report) as analysis:
        trace = written(analysis)
    expected = json.loads(report.with_suffix(".truth.json").read_text())["marks"]
    assert [
        (rank, time_ns, name, category)
        for rank, process in enumerate(trace.processes)
        for track in trace.all_below(process)
        for time_ns, name, category in trace.instants[track]
    ] == [(mark["rank"], mark["time_ns"], mark["name"], "mark") for mark in expected]
    on = {trace.names[track] for track, moments in trace.instants.items() if moments}
    assert len(expected) == 30
    assert on == {"python"}


def test_names_are_those_of_kernels(training: ReadTrace) -> None:
    with analysis_of(SAMPLES / "training.sqlite") as analysis:
        rank = analysis.run.ranks[0]
        expected = Counter(rank.kernel_names[id_] for id_ in rank.operations.kernels.name.tolist())
    shown = Counter(
        event.name
        for track in training.all_below(training.processes[0])
        if training.names[track].startswith("stream ")
        for event in training.slices[track]
    )
    assert {name: shown[name] for name in expected} == dict(expected)


def launches_in(trace: ReadTrace) -> dict[int, tuple[int, int, str]]:
    """Return start of the call, start of the operation and its category, by the arrow's number."""
    arrows: dict[int, list[Slice]] = {}
    for events in trace.slices.values():
        for event in events:
            for flow in event.flows:
                arrows.setdefault(flow, []).append(event)
    found = {}
    for flow, events in arrows.items():
        if any(event.category == "call" for event in events):
            call, operation = sorted(events, key=lambda event: event.category != "call")
            assert operation.category in {"compute", "communication", "copy"}
            found[flow] = call.start_ns, operation.start_ns, operation.category
    return found


@pytest.mark.parametrize(
    "name", long_after(2, ["peer-copies", "host-sync", "training", "pipeline-copies"])
)
def test_an_arrow_goes_from_each_launch_to_its_operation(name: str) -> None:
    with analysis_of(SAMPLES / f"{name}.sqlite") as analysis:
        trace = written(analysis)
    expected = []
    with closing(sqlite3.connect(SAMPLES / f"{name}.sqlite")) as file:
        tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master")}
        for kind in ("KERNEL", "MEMCPY", "MEMSET"):
            if f"CUPTI_ACTIVITY_KIND_{kind}" in tables:
                expected += file.execute(
                    "SELECT calls.start, operations.start FROM CUPTI_ACTIVITY_KIND_RUNTIME calls"
                    f" JOIN CUPTI_ACTIVITY_KIND_{kind} operations"
                    " ON calls.correlationId = operations.correlationId"
                    " AND calls.globalTid >> 24 = operations.globalPid >> 24"
                ).fetchall()
    assert sorted(arrow[:2] for arrow in launches_in(trace).values()) == sorted(expected)
    assert len(expected) > 100


def test_a_graph_has_an_arrow_to_each_of_its_kernels(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(100, 200, launch=(10, 20))
    kernels = [(300, 310), (310, 330), (330, 390)]
    for start, end in kernels:
        builder.kernel(start, end, "inside", launch=False, correlation=500)
    builder.api("cudaGraphLaunch_v10000", 210, 220, correlation=500)
    with analysis_of(builder.write(tmp_path)) as analysis:
        arrows = launches_in(written(analysis))
    assert sorted(arrows.values()) == [
        (10, 100, "compute"), *((210, start, "compute") for start, _ in kernels),
    ]  # fmt: skip


def test_operations_and_calls_have_the_place_of_their_launch(tmp_path: Path) -> None:
    """As frames say it; a CUDA graph has several arrows, and its place, too."""
    forward = "FSDP::pre_forward (layers.3)"
    builder = TraceBuilder().nvtx(forward, 0, 100).nvtx("backward", 200, 300)
    builder.kernel(50, 69).kernel(250, 255).kernel(400, 405).memcpy(70, 80)
    for start in (450, 460):
        builder.kernel(start, start + 5, "inside", launch=False, correlation=500)
    builder.api("cudaGraphLaunch_v10000", 280, 290, correlation=500)
    path = builder.write(tmp_path)
    with analysis_of(path) as analysis:
        trace = written(analysis)
    shown = {
        (event.start_ns, event.category): event.notes.get("place")
        for track in trace.slices.values()
        for event in track
        if event.category in {"compute", "copy", "call"}
    }
    with traceprof.open_run(path) as run:
        frames = {"compute": run.kernels(), "copy": run.copies(), "call": run.api_calls()}
    expected = {}
    for category, frame in frames.items():
        place = frame["place"].astype(object)
        place = place.where(place.notna(), None)
        for start, of_start in zip(frame["start_ns"].tolist(), place.tolist(), strict=True):
            expected[start, category] = of_start
    assert shown == expected
    assert shown[50, "compute"] == shown[70, "copy"] == forward
    assert shown[280, "call"] == shown[450, "compute"] == shown[250, "compute"] == "backward"
    assert shown[400, "compute"] is None


def test_operators_are_tracks_of_their_threads(tmp_path: Path) -> None:
    events = [
        profile.event("cpu_op", "aten::linear", 10, 30, (profile.PID, 1)),
        profile.event("cpu_op", "aten::mm", 12, 20, (profile.PID, 1)),
        profile.event("cpu_op", "MmBackward0", 50, 8, (profile.PID, 2)),
        profile.call(13, 14, number=1), profile.kernel(90, 91, number=1),
    ]  # fmt: skip
    with analysis_of(profile.write(tmp_path / "t.json", events)) as analysis:
        trace = written(analysis)
    (process,) = trace.processes
    shown = [
        event
        for track in trace.all_below(process)
        if trace.names[track] == "operators"
        for event in trace.slices[track]
    ]
    assert [(event.name, event.end_ns - event.start_ns) for event in shown] == [
        ("aten::linear", 30_000), ("aten::mm", 20_000), ("MmBackward0", 8000),
    ]  # fmt: skip
    assert len(launches_in(trace)) == 1


@pytest.mark.parametrize("name", long_after(1, ["ddp", "training", "nccl-serialization"]))
def test_arrows_join_what_was_matched(name: str) -> None:
    with analysis_of(SAMPLES / f"{name}.sqlite") as analysis:
        trace = written(analysis)
        comparison = analysis.ranks
        expected = sorted(
            sorted(row) for waits in comparison.waits for row in waits.start_ns.tolist()
        )
        waited = {
            (comparison.ranks[member], start_ns): wait_ns
            for waits in comparison.waits
            for column, member in enumerate(waits.group.members)
            for start_ns, wait_ns, is_unknown in zip(
                waits.start_ns[:, column].tolist(),
                waits.wait_ns[:, column].tolist(),
                (waits.is_unknown | ~waits.is_known).tolist(),
                strict=True,
            )
            if not is_unknown
        }
        communicating = {rank.rank: len(messages(rank)) for rank in analysis.run.ranks}
    assert expected
    flows: dict[int, list[int]] = {}
    seen = {}
    launches = set(launches_in(trace))
    for process, rank in zip(trace.processes, communicating, strict=True):
        num_communicating = 0
        for track in trace.all_below(process):
            for event in trace.slices[track]:
                num_communicating += event.category == "communication"
                for flow in set(event.flows) - launches:
                    assert event.category == "communication"
                    flows.setdefault(flow, []).append(event.start_ns)
                if "wait_ns" in event.notes:
                    seen[rank, event.start_ns] = event.notes["wait_ns"]
        assert num_communicating == communicating[rank]
    assert sorted(map(sorted, flows.values())) == expected
    assert seen == waited


def test_findings_are_tracks_with_their_evidence(training: ReadTrace) -> None:
    with analysis_of(SAMPLES / "training.sqlite") as analysis:
        for process, rank in zip(training.processes, analysis.run.ranks, strict=True):
            for finding in analysis.findings:
                if finding.rank != rank.rank:
                    continue
                shown = training.events(process, "findings", finding.id)
                whole = [event for event in shown if event.name == finding.title]
                assert len(whole) == 1
                assert whole[0].notes["impact_ns"] == finding.impact_ns
                assert whole[0].notes["severity"] == str(finding.severity)
                evidence = [
                    (event.start_ns, event.end_ns, event.name)
                    for event in shown
                    if event is not whole[0]
                ]
                assert sorted(evidence) == sorted(
                    (seen.start_ns, seen.end_ns, seen.label) for seen in finding.evidence
                )
            num_steps = len(analysis.result.breakdown[rank.rank].steps)
            assert len(training.events(process, "steps on the GPU")) == num_steps


def test_counters_hold_the_samples() -> None:
    with analysis_of(SAMPLES / "link-counters.sqlite") as analysis:
        trace = written(analysis)
        rank = analysis.run.ranks[0]
        found = rank.trace.counters
        samples = found.by_gpu[found.gpu_of_rank[rank.key]]
        assert samples
        for one in samples:
            (track,) = trace.tracks(trace.processes[0], f"{one.link} {one.direction}")
            expected = [*zip(one.start_ns.tolist(), one.value.tolist(), strict=True)]
            assert trace.values[track] == expected


def test_ranks_without_a_gpu_have_operations_and_arrows() -> None:
    with analysis_of(SAMPLES / "gloo.sqlite") as analysis:
        trace = written(analysis)
        num_matched = sum(map(len, analysis.ranks.waits))
        for process, rank in zip(trace.processes, analysis.run.ranks, strict=True):
            shown = trace.events(process, "communication")
            assert len(shown) == len(rank.work.operations)  # type: ignore[attr-defined]
    flows = {flow for events in trace.slices.values() for event in events for flow in event.flows}
    assert len(flows - set(launches_in(trace))) == num_matched > 0


@pytest.mark.long
def test_several_machines_are_on_one_clock(simulated: list[Path]) -> None:
    with closing(analyze(*simulated)) as analysis:
        trace = written(analysis)
        clocks = analysis.ranks.clocks
        for process, rank in zip(trace.processes, analysis.run.ranks, strict=True):
            expected = clocks.to_run(rank.report, rank.operations.kernels.start_ns)
            shown = [
                start
                for start, _, category in on_streams(trace, process)
                if category in {"compute", "communication"}
            ]
            shift = 0 if trace.utc_ns is None else trace.utc_ns[1]
            assert sorted(shown) == sorted((expected + shift).tolist())
        if trace.utc_ns is not None:
            assert trace.utc_ns[0] == clocks.start_utc_ns


@pytest.mark.parametrize("name", long_after(1, ["data-loading", "training"]))
def test_critical_paths_are_tracks(name: str) -> None:
    with analysis_of(SAMPLES / f"{name}.sqlite") as analysis:
        paths = critical_paths(analysis)
        assert not isinstance(paths, Refusal)
        file = io.BytesIO()
        write(analysis, file, paths=paths)
        rank = next(one for one in analysis.result.breakdown if one.rank == paths[-1].rank)
    trace = read(file.getvalue())
    assert len(paths) == 2
    for path in paths:
        (track,) = trace.tracks(0, f"critical path of step {path.step}")
        shown = trace.slices[track]
        assert [(event.start_ns, event.end_ns) for event in shown] == [
            (part.start_ns, part.end_ns) for part in path.parts
        ]
        for event, following in pairwise(shown):
            assert event.end_ns == following.start_ns
        assert shown[-1].end_ns - shown[0].start_ns == path.length_ns
    assert paths[-1].length_ns == max(step.measures.window_ns for step in rank.steps[:-1])


def test_stages_of_a_pipeline_are_tracks() -> None:
    with analysis_of(SAMPLES / "pipeline-bubble.sqlite") as analysis:
        trace = written(analysis)
        found = pipeline_bubble.run(analysis.measured)
    (pipeline,) = found.pipelines
    words = {0: "pass", 1: "forward", 2: "backward"}
    reasons = "fill and drain", "unequal stages", "transfer", "lateness"
    for place, stage in enumerate(pipeline.stages):
        title = f"stage {place}, rank {found.ranks.ranks[stage.member]}"
        names = [
            f"{words[kind]} {number}" if number >= 0 else words[kind]
            for kind, number in zip(
                stage.kind.tolist(), pipeline.schedule.micro_batch[place].tolist(), strict=True
            )
        ]
        assert len(set(names)) == 2 * 4 + 1  # 4 micro-batches, and the optimizer
        passes = [*zip(stage.start_ns.tolist(), stage.end_ns.tolist(), names, strict=True)]
        shown = trace.events(0, "pipeline", title)
        assert passes == [
            (event.start_ns, event.end_ns, event.name)
            for event in shown
            if event.category == "pass"
        ]
        steps = [event.notes["step"] for event in shown if event.category == "pass"]
        assert steps == stage.step.tolist()
        waited = np.zeros((len(stage.gap_end_ns), 4), np.int64)
        for event in shown:
            if event.category == "bubble":
                gap = np.searchsorted(stage.gap_end_ns, event.end_ns)
                assert event.start_ns >= stage.gap_start_ns[gap]
                reason = reasons.index(event.name.removeprefix("waits: "))
                waited[gap, reason] += event.end_ns - event.start_ns
        assert waited.tolist() == stage.parts_ns.tolist()
        ideal = trace.events(0, "pipeline: equal stages, no transfer", title)
        assert [(event.start_ns, event.end_ns) for event in ideal] == [
            (pipeline.start_ns + start, pipeline.start_ns + end)
            for start, end in zip(
                stage.ideal_start_ns.tolist(), stage.ideal_end_ns.tolist(), strict=True
            )
        ]


def test_no_critical_path_where_the_replay_says_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.pftrace"
    assert run("export", "perfetto", SAMPLES / "gloo.sqlite", "-o", path) == 0
    assert "no critical path: a rank has no GPU" in capsys.readouterr().err
    assert not [name for name in read(path.read_bytes()).names.values() if "critical" in name]


@pytest.mark.long
def test_every_real_export_is_written(real_trace: Path) -> None:
    with analysis_of(real_trace) as analysis:
        trace = written(analysis)
        for process, rank in zip(trace.processes, analysis.run.ranks, strict=True):
            num_operations = sum(map(len, rank.operations.groups))
            assert len(on_streams(trace, process)) == num_operations


@pytest.mark.slow
def test_perfetto_itself_reads_the_same(tmp_path: Path) -> None:
    """Where its trace processor is installed; the Python package would download it."""
    program = shutil.which("trace_processor_shell") or shutil.which("trace_processor")
    if program is None:
        pytest.skip("Perfetto's trace processor is not on PATH")
    path = tmp_path / "t.pftrace"
    with analysis_of(SAMPLES / "training.sqlite") as analysis, path.open("wb") as file:
        write(analysis, file)
        num_flows = sum(
            len(waits) * (len(waits.group.members) - 1) for waits in analysis.ranks.waits
        )
    written_trace = read(path.read_bytes())
    num_flows += len(launches_in(written_trace))
    slices = [event for track in written_trace.slices.values() for event in track]
    config = TraceProcessorConfig(bin_path=program)
    with TraceProcessor(trace=str(path), config=config) as processor:
        rows = processor.query("SELECT ts, dur, name FROM slice")
        shown = [(row.ts, row.ts + row.dur, row.name) for row in rows]
        flows = [row.n for row in processor.query("SELECT count(*) AS n FROM flow")]
        wrong = [row.name for row in processor.query(_ERRORS)]
    assert sorted(shown) == sorted((event.start_ns, event.end_ns, event.name) for event in slices)
    assert flows == [num_flows]
    assert wrong == []


def test_the_command_writes_a_whole_file_or_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.pftrace"
    assert run("export", "perfetto", SAMPLES / "ddp.sqlite", "-o", path) == 0
    assert len(read(path.read_bytes()).processes) == 2
    content = path.read_bytes()
    assert run("export", "perfetto", tmp_path / "none.sqlite", "-o", path) == 2
    assert path.read_bytes() == content
    assert run("export", "perfetto", SAMPLES / "ddp.sqlite", "-o", tmp_path / "no" / "t") == 2
    assert "cannot write" in capsys.readouterr().err


def test_a_report_without_an_operation_has_no_tracks_of_ranks(tmp_path: Path) -> None:
    report = TraceBuilder().api("cudaFree_v3020", 0, 10).write(tmp_path)
    assert run("export", "perfetto", report, "-o", tmp_path / "trace.pftrace") == 0
    assert (tmp_path / "trace.pftrace").exists()
