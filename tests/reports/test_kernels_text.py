"""The kernels in the reports: the text's table and the JSON's list."""

import json
from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder
from tests.support.commands import run
from traceprof.analysis import analyze_reports
from traceprof.documents.analysis.records import document
from traceprof.reports import html, text
from traceprof.reports import json as json_report
from traceprof.reports.kernels_text import MAX_KERNELS

ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float,"
    " float, at::native::MulFunctor<float>>, at::detail::Array<char *, 3>>(int, T2, T3)"
)


def export(path: Path, *, num_names: int = 3) -> Path:
    """Write an export with kernels of several names."""
    builder = TraceBuilder().kernel(0, 5000, "ampere_sgemm_128x64_tn").kernel(5000, 8000, ADD)
    for index in range(num_names - 2):
        builder.kernel(10_000 + 100 * index, 10_010 + 100 * index, f"mine_{index:02}")
    return builder.write(path)


def test_the_table_names_what_each_kernel_does(tmp_path: Path) -> None:
    shown = text.render(analyze_reports([export(tmp_path / "t.sqlite")]), shows_kernels=True)
    assert "Kernels, by name" in shown
    assert "matmul 62.4 %, elementwise 37.5 %, not known by name 0.1 %" in shown
    first, second = (line for line in shown.splitlines() if line.lstrip()[:4] in {"5 µs", "3 µs"})
    assert first.split() == ["5", "µs", "62.4", "%", "1", "5", "µs", "matmul", "fp32",
                             "ampere_sgemm_128x64_tn"]  # fmt: skip
    assert second.endswith("at::native::vectorized_elementwise_kernel: MulFunctor")
    assert "more name" not in shown
    assert "per step" not in shown


def test_what_the_table_leaves_out_has_a_line(tmp_path: Path) -> None:
    path = export(tmp_path / "t.sqlite", num_names=MAX_KERNELS + 3)
    shown = text.render(analyze_reports([path]), shows_kernels=True)
    assert "… and 3 more names: 30 ns, 0.4 %" in shown
    assert "mine_17" in shown
    assert "mine_18" not in shown


def test_of_several_ranks_the_busiest_is_shown(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 10, device=0).kernel(0, 20, "relu", device=1)
    result = analyze_reports([builder.write(tmp_path)])
    shown = text.render(result, shows_kernels=True)
    assert "rank 1, whose kernels take longest together (20 ns)" in shown
    assert [row.name for row in document(result).kernels] == ["gemm", "relu"]


def test_without_kernels_it_says_so(tmp_path: Path) -> None:
    path = TraceBuilder().memcpy(0, 100).write(tmp_path)
    assert "No kernel ran." in text.render(analyze_reports([path]), shows_kernels=True)


def test_the_table_is_shown_where_it_is_asked_for(tmp_path: Path) -> None:
    result = analyze_reports([export(tmp_path / "t.sqlite")])
    assert "Kernels, by name" not in text.render(result)
    assert "Kernels, by name" not in html.render(result)
    assert "Kernels, by name" in html.render(result, shows_kernels=True)


def test_json_has_all_kernels(tmp_path: Path) -> None:
    document = json.loads(json_report.render(analyze_reports([export(tmp_path / "t.sqlite")])))
    kernels = document["kernels"]
    # Without steps all of the training is one, of whose mean nothing is known.
    assert [kernel.pop("per_steady_step_ns") for kernel in kernels] == [5000, 3000, 10]
    assert [kernel.pop("steady_error_ns") for kernel in kernels] == [None] * 3
    places = [kernel.pop("place") for kernel in kernels]
    assert places == sorted(places)
    assert 0 == places[0] < places[-1] < 1
    unknown = ("operator", "module", "source", "range", "flops", "flops_per_s", "moved_bytes",
               "gb_per_s", "peak_gb_per_s")  # fmt: skip
    assert {kernel.pop(name) for kernel in kernels for name in unknown} == {None}
    assert {kernel.pop("peak_flops_per_s") for kernel in kernels} <= {None, 19.5e12}
    assert kernels == [
        {
            "rank": 0, "name": "ampere_sgemm_128x64_tn", "category": "matmul", "precision": "fp32",
            "tensor_cores": False, "count": 1, "total_ns": 5000, "median_ns": 5000,
            "per_step_ns": None,
        },
        {
            "rank": 0, "name": ADD, "category": "elementwise", "precision": "fp32",
            "tensor_cores": False, "count": 1, "total_ns": 3000, "median_ns": 3000,
            "per_step_ns": None,
        },
        {
            "rank": 0, "name": "mine_00", "category": "other", "precision": None,
            "tensor_cores": None, "count": 1, "total_ns": 10, "median_ns": 10, "per_step_ns": None,
        },
    ]  # fmt: skip


@pytest.mark.parametrize("output_format", ["text", "html", "json"])
def test_the_option(tmp_path: Path, output_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = export(tmp_path / "t.sqlite")
    assert run("analyze", path, "--kernels", "--format", output_format) == 0
    assert "ampere_sgemm_128x64_tn" in capsys.readouterr().out
