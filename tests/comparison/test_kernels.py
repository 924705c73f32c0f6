"""Kernels are matched by name, by canonical name, by place; captures are told apart."""

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tests.support.claims import DDP, LATE, OPTIONS, document_of
from traceprof.analysis import analyze_captures
from traceprof.comparison.ask import compare
from traceprof.comparison.kernels import kernels
from traceprof.documents.analysis.model import Document


@pytest.fixture(scope="module")
def ddp() -> Document:
    return document_of(DDP)


def renamed(original: Document, rename: Callable[[str], str]) -> Document:
    kernels = [replace(kernel, name=rename(kernel.name)) for kernel in original.kernels]
    return replace(original, kernels=kernels)


def rungs(before: Document, after: Document) -> dict[str, float]:
    return {
        rung.rung: rung.before for rung in kernels([before], [after], 0).matching if rung.before
    }


def test_the_same_names_match(ddp: Document) -> None:
    assert rungs(ddp, ddp) == {"name": pytest.approx(1.0)}


def test_other_numbers_in_names_match_by_canonical_name(ddp: Document) -> None:
    other = renamed(ddp, lambda name: name.replace("128", "64").replace("ldg8", "ldg4"))
    found = rungs(ddp, other)
    assert found["canonical name"] > 0.3
    assert sum(found.values()) == pytest.approx(1.0)
    assert set(found) == {"name", "canonical name"}
    changes = kernels([ddp], [other], 0).changes
    assert all(change.change_ns == 0 for change in changes)


def test_other_names_match_by_place(ddp: Document) -> None:
    largest = max(
        (kernel for kernel in ddp.kernels if kernel.category == "matmul"),
        key=lambda kernel: kernel.total_ns,
    )
    other = renamed(ddp, lambda name: "another_library_gemm" if name == largest.name else name)
    assert set(rungs(ddp, other)) == {"name", "place in the step"}
    placed = [c for c in kernels([ddp], [other], 0).changes if c.rung == "place in the step"]
    assert [(c.before, c.after, c.change_ns) for c in placed] == [
        (largest.name, "another_library_gemm", 0)
    ]


def test_what_runs_on_one_side_only_is_told(ddp: Document) -> None:
    gone = next(k.name for k in ddp.kernels if k.category != "communication")
    without = replace(ddp, kernels=[kernel for kernel in ddp.kernels if kernel.name != gone])
    (change,) = [c for c in kernels([ddp], [without], 0).changes if c.rung == "only before"]
    assert (change.before, change.after, change.after_ns) == (gone, None, 0)
    assert change.is_significant
    assert kernels([ddp], [without], 5).beside_ns == 5 - change.change_ns


def test_a_planted_change_of_one_kernel_is_the_only_significant_one(ddp: Document) -> None:
    planted = next(k.name for k in ddp.kernels if k.category == "matmul")
    slower = [
        replace(kernel, per_steady_step_ns=round(1.5 * kernel.per_steady_step_ns))
        if kernel.name == planted and kernel.per_steady_step_ns
        else kernel
        for kernel in ddp.kernels
    ]
    other = replace(ddp, kernels=slower)
    changes = kernels([ddp], [other], 0).changes
    assert [change.before for change in changes if change.is_significant] == [planted]


@pytest.mark.long
def test_reports_of_ranks_are_one_recording_and_repetitions_are_several(
    reports: list[Path], tmp_path: Path
) -> None:
    (together,) = analyze_captures(reports, OPTIONS)
    assert len(together.run.reports) == len(reports)
    again = [Path(shutil.copy(path, tmp_path / f"again_{path.name}")) for path in reports]
    twice = analyze_captures([*reports, *again], OPTIONS)
    assert [len(result.run.reports) for result in twice] == [len(reports)] * 2
    assert [rank.rank for rank in twice[1].run.ranks] == [rank.rank for rank in together.run.ranks]


def test_of_several_recordings_the_interval_is_over_recordings(ddp: Document) -> None:
    def scaled(factor: float) -> Document:
        other = msgspec.convert(msgspec.to_builtins(ddp), Document)
        for step in other.steps:
            msgspec.structs.force_setattr(step, "window_ns", round(factor * step.window_ns))
        return other

    before, after = [scaled(1.0), scaled(1.01)], [scaled(0.9), scaled(0.91), scaled(0.905)]
    allowed = ["recording"]
    step = compare(before, after, allow_different=allowed).step
    assert step.basis == "captures"
    assert step.verdict == "faster"
    assert step.low is not None
    assert step.high is not None
    assert step.low < step.change < step.high < 0  # type: ignore[operator]
    one = compare(before[0], after)
    assert one.step.basis == "captures"
    assert not one.notes
    gates = ["step:+50%", "idle:+1pp"]
    again = [scaled(1.0), scaled(1.015)]
    same = compare(before, again, gates=gates, allow_different=allowed)
    assert same.step.verdict in {"same", "inconclusive"}
    assert [gate.outcome for gate in same.gates] == ["met", "met"]


def test_a_report_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.sqlite").write_bytes(b"SQLite format 3\0 and nothing")
    comparison = compare([DDP, tmp_path / "broken.sqlite"], LATE, options=OPTIONS)
    assert (comparison.before.name, comparison.after.name) == (f"{DDP} and 1 more", str(LATE))
    assert len(comparison.before.left_out_reports) == 1
    assert comparison.before.num_captures == 1
