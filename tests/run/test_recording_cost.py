"""What recording cost, from the lengths that `instrument` leaves beside a report."""

import json
from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder
from traceprof.analysis import analyze
from traceprof.documents.analysis.records import document
from traceprof.run.opening import ONE_BY_ONE
from traceprof.run.recording_cost import TimedSteps, longest, timed_beside

QUICK, SLOW = [100_000, 102_000, 98_000, 100_000], [110_000, 112_000, 108_000, 110_000]


def leave(folder: Path, name: str, **changed: object) -> None:
    record: dict[str, object] = {"schema": "traceprof.baseline/1", "host": "node7", "rank": 0}
    record |= {"unrecorded_ns": QUICK, "recorded_ns": SLOW} | changed
    (folder / f"{name}.baseline.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    "report", ["node7.sqlite", "node7.nsys-rep", "node7-rank1.pt.trace.json.gz"]
)
def test_files_of_a_reports_processes_count(tmp_path: Path, report: str) -> None:
    for rank in (10, 1):
        leave(tmp_path, f"node7-rank{rank}", rank=rank)
    leave(tmp_path, "node7-4711", rank=None)
    leave(tmp_path, "node70-rank3", rank=3)
    leave(tmp_path, "node7-a-rank4", rank=4)
    found = [timed.rank for timed in timed_beside(tmp_path / report)]
    assert found == ([1] if "rank1" in report else [None, 1, 10])


def test_files_of_other_reports_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(20):
        leave(tmp_path, f"node7-rank{rank}", rank=rank)
    read_bytes, read = Path.read_bytes, list[str]()

    def counted(file: Path) -> bytes:
        read.append(file.name)
        return read_bytes(file)

    monkeypatch.setattr(Path, "read_bytes", counted)
    (timed,) = timed_beside(tmp_path / "node7-rank1.pt.trace.json.gz")
    assert timed.rank == 1
    assert read == ["node7-rank1.baseline.json"]


@pytest.mark.parametrize(
    "changed",
    [
        {"schema": "traceprof.baseline/2"},
        {"recorded_ns": [1, 2]},
        {"recorded_ns": "many"},
        {"unrecorded_ns": [0, 0, 0]},
        {"unrecorded_ns": [1 << 60] * 3},
    ],
)
def test_others_do_not(tmp_path: Path, changed: dict[str, object]) -> None:
    leave(tmp_path, "a-rank0", **changed)
    assert timed_beside(tmp_path / "a.sqlite") == ()


def test_the_change_and_how_uncertain_it_is() -> None:
    timed = TimedSteps(2, tuple(QUICK), tuple(SLOW))
    change, error = timed.change
    # Standard deviations of 1633 ns over four steps on each side.
    assert change == pytest.approx(0.1)
    assert error == pytest.approx(2 * 1632.99 * (2 / 4) ** 0.5 / 100_000, rel=1e-4)
    assert timed.sentence() == (
        "recording made a step 10.0 % longer (±2.3 %): 4 steps before it took 100 µs in the mean"
        " (100 µs in the median), 4 recorded ones 110 µs (110 µs) on rank 2"
    )
    same = TimedSteps(None, tuple(QUICK), tuple(reversed(QUICK)))
    assert same.sentence().startswith(
        "recording made a step no longer or shorter than steps vary (±2.3 %): "
    )
    slower = TimedSteps(1, tuple(SLOW), tuple(QUICK))
    assert longest([timed, slower, same]) is slower
    assert longest([]) is None


def test_an_analysis_says_it(reports: list[Path]) -> None:
    leave(reports[0].parent, f"{reports[0].stem}-rank1")
    analysis = analyze(reports[:1])
    notes = [note for _, note in analysis.notes if note.startswith("recording made")]
    (timed,) = document(analysis.result).reports[0].timed
    assert notes == [TimedSteps(0, tuple(QUICK), tuple(SLOW)).sentence()]
    assert (timed.unrecorded_ns, timed.recorded_ns) == (tuple(QUICK), tuple(SLOW))


@pytest.mark.parametrize(("num_nodes", "is_said"), [(40, True), (2, False)])
def test_nodes_of_graphs_take_the_recorder_time(
    tmp_path: Path, num_nodes: int, is_said: bool
) -> None:
    builder = TraceBuilder().kernel(0, 100_000)
    for replay in range(1, 4):
        start = replay * 300_000
        correlation = 1000 + replay
        builder.api("cudaGraphLaunch_v10000", start, start + 10, correlation=correlation)
        for node in range(num_nodes):
            begin = start + 100 + node * 2000
            builder.kernel(begin, begin + 1000, correlation=correlation, launch=False)
    builder.kernel(1_500_000, 1_600_000)
    analysis = analyze(builder.write(tmp_path / "a.sqlite"))
    notes = [note for _, note in analysis.notes if ONE_BY_ONE in note]
    assert bool(notes) == is_said
    if is_said:  # of 1.6 ms
        assert notes[0].startswith("120 kernels of CUDA graphs were recorded one by one; at 0.8 µs")
        assert "may hold 96 µs of the recorder's work (6.0 % of the recorded time)" in notes[0]
