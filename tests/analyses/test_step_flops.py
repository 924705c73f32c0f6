"""FLOPs of a mean step: by the shapes of operators, or as the user says."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import run
from tests.support.profiler_events import PID, annotation, call, event, kernel, write
from tests.support.traces import SAMPLE_FOLDER
from traceprof.analyses.compute_parts import StepFlops
from traceprof.analysis import Options, analyze_reports
from traceprof.documents.analysis.records import document
from traceprof.errors import UsageError

GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
A100 = {"deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]}
SHAPES = {"Input Dims": [[512, 256], [256, 1024]], "Concrete Inputs": ["", ""]}
FLOPS = 2 * 512 * 256 * 1024


def profile(num_steps: int = 6, unknown_us: float = 0) -> list[dict[str, Any]]:
    """Return steps of 100 µs, each a product of known shapes, 40 µs of a kernel and 20 of another.

    In each, `unknown_us` of a product of unknown shapes follow.
    """
    events = []
    for step in range(num_steps):
        at, number = 100.0 * step, 10 * step
        events += [
            annotation(f"ProfilerStep#{step}", at, at + 100),
            event("cpu_op", "aten::mm", at + 1, 20, (PID, 1), **SHAPES),
            call(at + 5, at + 6, number=number), kernel(at + 7, at + 47, name=GEMM, number=number),
            call(at + 8, at + 9, number=number + 1),
            kernel(at + 47, at + 67, name="fill", number=number + 1),
        ]  # fmt: skip
        if unknown_us:
            start, number = at + 70, number + 2
            events += [
                call(at + 30, at + 31, number=number),
                kernel(start, start + unknown_us, name=GEMM, number=number),
            ]
    return events


def measured(path: Path, **options: Any) -> list[StepFlops]:
    return document(analyze_reports([path], Options(savings=False, **options))).step_flops


def test_shapes_give_the_share_of_the_peak(tmp_path: Path) -> None:
    (found,) = measured(write(tmp_path / "t.json", profile(), **A100))
    assert (found.source, found.flops, found.coverage) == ("shapes", FLOPS, 1)
    assert (found.precision, found.peak_flops_per_s) == ("bf16", 312e12)
    assert found.flops_per_s == pytest.approx(FLOPS / (found.step_ns / 1e9), rel=1e-4)
    assert found.step_ns == pytest.approx(100_000, rel=0.1)
    assert found.mfu == pytest.approx(found.flops_per_s / 312e12)


@pytest.mark.parametrize(("unknown_us", "coverage"), [(10, 0.8), (20, 2 / 3), (50, None)])
def test_unknown_shapes_make_a_lower_bound(
    tmp_path: Path, unknown_us: float, coverage: float | None
) -> None:
    found = measured(write(tmp_path / "t.json", profile(unknown_us=unknown_us), **A100))
    assert [one.coverage for one in found] == ([] if coverage is None else [coverage])
    assert all(one.flops == FLOPS for one in found)


def test_the_user_may_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "t.json", profile(unknown_us=50), **A100)
    assert run("analyze", path, "--no-savings", "--flops-per-step", "4e9", "--format", "json") == 0
    (found,) = json.loads(capsys.readouterr().out)["step_flops"]
    assert (found["source"], found["flops"], found["coverage"]) == ("given", 4e9, 1)
    assert found["mfu"] == pytest.approx(4e9 / (found["step_ns"] / 1e9) / 312e12, rel=1e-4)
    assert run("analyze", path, "--no-savings", "--flops-per-step", "4e9", "--verbose") == 0
    assert f"an MFU of {100 * found['mfu']:.1f} %" in " ".join(capsys.readouterr().out.split())


def test_no_number_where_no_step_is_marked(tmp_path: Path) -> None:
    events = [one for one in profile() if one["cat"] != "user_annotation"]
    found = measured(write(tmp_path / "t.json", events, **A100), flops_per_step=4e9)
    assert {one.source for one in found} == {"shapes"}
    assert not measured(SAMPLE_FOLDER / "mpi-wait.sqlite", flops_per_step=4e9)


def test_a_report_without_shapes_needs_the_user() -> None:
    assert not measured(SAMPLE_FOLDER / "ddp.sqlite")
    assert {one.source for one in measured(SAMPLE_FOLDER / "ddp.sqlite", flops_per_step=1e9)} == {
        "given"
    }


@pytest.mark.parametrize("flops", [0, -1, float("nan"), float("inf"), 2e18, True, "1e9"])
def test_impossible_numbers_are_refused(flops: Any) -> None:
    with pytest.raises(UsageError, match="flops_per_step"):
        Options(flops_per_step=flops).check()
