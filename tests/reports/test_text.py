"""The text report: short, whole, and safe to print."""

import io
from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from tests.support.builders import ALL_REDUCE as NCCL
from tests.support.builders import TraceBuilder, solver
from tests.support.selection import known, long_after
from tests.support.traces import REAL_FOLDER, SAMPLE_FOLDER, SAMPLES, analysis_of
from traceprof.analyses.verdict.run_result import RunResult
from traceprof.analyses.verdict.savings import Gate
from traceprof.analyses.verdict.three_lines import three_lines
from traceprof.analyses.verdict.yields import UsualYield
from traceprof.analysis import analyze_reports
from traceprof.findings import Basis, Saving
from traceprof.reports import html, text
from traceprof.reports.claims import claim
from traceprof.units import duration, percent, ranks_text

MAX_WORDS = 400  # of a report without `--verbose`
MAX_TABLE_WIDTH = 130  # prose is narrower; tables are as wide as the longest GPU name needs


def shown(path: Path) -> str:
    with analysis_of(path) as analysis:
        return text.render(analysis.result, is_verbose=True)


def many_ranks(tmp_path: Path, count: int) -> Path:
    builder = TraceBuilder()
    for rank in range(count):
        builder.kernel(0, 500, device=rank, pid=rank + 1)
        builder.kernel(500, 900 + rank, NCCL, stream=20, device=rank, pid=rank + 1)
    return builder.write(tmp_path)


def _smallest_first(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: path.stat().st_size)


@pytest.mark.one_export
def test_every_real_export_is_shown(real_trace: Path) -> None:
    with analysis_of(real_trace) as analysis:
        shown_text = text.render(analysis.result, is_verbose=True)
    lines = [line for line in shown_text.splitlines() if not line.startswith("   at ")]
    assert max(map(len, lines)) <= max(MAX_TABLE_WIDTH, len(str(real_trace)) + 60)
    evidence = [line for line in shown_text.splitlines() if line.startswith("   at ")]
    assert not any(line.endswith("…") for line in evidence)  # nothing is cut
    _fits(analysis.result)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_sample_fits_on_a_page(path: Path) -> None:
    with analysis_of(path) as analysis:
        _fits(analysis.result)


@pytest.mark.long
@pytest.mark.parametrize(
    "folder", ["kineto/dlrm_8ranks", "jacobi_mpi", "rtx3090x9_3nodes_tree", "rtx3090x6_2nodes_ring"]
)
def test_every_real_run_fits_on_a_page(traces: Path, folder: str) -> None:
    names = {path.name for path in (traces / folder).iterdir()}
    _fits(analyze_reports([traces / folder / name for name in sorted(names)]))


@pytest.mark.parametrize(
    "trace",
    long_after(2, _smallest_first(REAL_FOLDER.glob("kineto/*.json.gz"))) if REAL_FOLDER else [],
    ids=lambda path: path.name[:40],
)
def test_every_real_trace_of_the_profiler_fits_on_a_page(trace: Path) -> None:
    _fits(analyze_reports([trace]))


def _fits(result: RunResult) -> None:
    """Hold that a page names each finding, and that verbose text has all that it has."""
    page, whole = (text.render(result, is_verbose=verbose) for verbose in (False, True))
    assert len(page.split()) <= MAX_WORDS
    for finding in result.findings:
        assert finding.id in page
        assert finding.id in whole
    for gap in result.not_applicable:
        assert gap.id in whole
    assert page.endswith("--verbose shows the rest.\n") == bool(result.breakdown)
    assert "--verbose" not in whole


def test_the_headline_says_by_how_much_the_replay_misses() -> None:
    result = analyze_reports([SAMPLE_FOLDER / "launch-bound.sqlite"])
    headline = known(result.headline)
    replay = known(headline.savings.replay)
    others = [replace(gate, value=0.5) for gate in replay.gates if gate.name != "misfit"]
    gates = *others, Gate("misfit", -0.233, 0.3, holds=True)
    savings = replace(headline.savings, replay=replace(replay, gates=gates))
    headline = replace(headline, savings=savings)
    result = replace(result, verdict=replace(result.verdict, headline=headline))
    assert ", 23.3 % off)." in " ".join(text.render(result, is_verbose=True).split())


def test_what_costs_nothing_is_never_first_and_saves_nothing() -> None:
    said = " ".join(shown(SAMPLE_FOLDER / "exposed-queued.sqlite").split())
    assert "Communication of rank 1 that no compute hides takes 9." in said
    of_queue = said.partition(" info nccl-serialization ")[2].partition(" exposed-")[0]
    assert "(costs nothing)" in of_queue
    assert "without it a step takes as long (no-serialization)" in of_queue


def test_a_single_step_is_no_median(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(10, 500).nvtx("step 1", 0, 600)
    assert "(one step)." in shown(builder.write(tmp_path))


@pytest.mark.parametrize(
    ("launched_ns", "num_steps", "said"),
    [
        (300_000, 1, "(one step, without the 300 µs on the host before its first launch)."),
        (4_000, 1, "(one step)."),  # under 3 % of the step
        (300_000, 2, "(mean of 2)."),  # in the step before
    ],
)
def test_time_before_the_only_step_is_named(
    launched_ns: int, num_steps: int, said: str, tmp_path: Path
) -> None:
    builder = TraceBuilder()
    for step in range(num_steps):
        begin = step * 1_000_000
        launch = begin + launched_ns, begin + launched_ns + 1000
        builder.nvtx(f"step {step}", begin, begin + 900_000)
        # It waits for others in the queue, which is not the host's time.
        builder.kernel(begin + 400_000, begin + 900_000, launch=launch)
    assert said in " ".join(shown(builder.write(tmp_path)).split())


def test_the_same_finding_on_many_ranks_is_told_once(tmp_path: Path) -> None:
    shown_text = shown(many_ranks(tmp_path, 8))
    assert shown_text.count(" exposed-communication   ranks ") == 1
    assert "ranks 0-7" in shown_text
    assert "rank 7: 407 ns of 407 ns of communication is not hidden by compute" in shown_text


def test_a_table_in_a_pipe_is_as_wide_as_its_content(tmp_path: Path) -> None:
    name = f"NVIDIA {'long ' * 12}name"
    shown_text = shown(TraceBuilder().gpu(name).kernel(0, 500).kernel(700, 900).write(tmp_path))
    assert name in shown_text
    (line,) = (line for line in shown_text.splitlines() if name in line)
    assert line.endswith(" -")  # the last column stands there, too


def test_the_bar_draws_the_identity(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 500).kernel(500, 750, NCCL).memcpy(750, 850)
    assert "██████████▒▒▒▒▒░░···" in shown(builder.memset(999, 1000).write(tmp_path))


def test_a_terminal_without_unicode_gets_ascii(tmp_path: Path) -> None:
    buffer = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="replace")
    text.render(analyze_reports([many_ranks(tmp_path, 1)]), Console(file=buffer, width=100))
    buffer.seek(0)
    assert "###########=========" in buffer.read()


def test_a_report_without_gpu_work_says_what_it_holds(tmp_path: Path) -> None:
    path = TraceBuilder().nvtx("step 0", 0, 9).api("cudaMalloc_v3020", 1, 2)
    shown_text = shown(path.write(tmp_path))
    assert "no GPU operation, so no rank; it holds 1 CUDA API call, 1 NVTX event" in shown_text
    assert "nsys profile --trace=cuda,nvtx" in shown_text


@pytest.mark.long
def test_names_are_neither_markup_nor_terminal_codes(tmp_path: Path) -> None:
    name = "[red]\x1b[31m<script_gemm"
    result = analyze_reports([TraceBuilder().kernel(0, 10, name).kernel(900, 999).write(tmp_path)])
    assert "\nNothing can be gained from gpu-idle, 89.1 % of the training" in text.render(result)
    shown_text = text.render(result, is_verbose=True)
    assert "\x1b" not in shown_text
    assert r"after [red]\x1b[31m<script_gemm before gemm" in shown_text
    page = html.render(result)
    assert "<script" not in page
    assert page.startswith("<!DOCTYPE html>")


def test_a_replay_that_takes_out_more_than_the_finding_costs_says_so() -> None:
    """Without waits of the host, copies hide as well: more goes than the GPU was idle."""
    result = analyze_reports([SAMPLE_FOLDER / "launch-bound.sqlite"])
    finding = next(one for one in result.findings if one.id == "gpu-idle")
    cost = finding.metrics["per_step_ns"]
    assert isinstance(cost, int)

    def said(saving: Saving) -> str:
        return "; ".join(claim(result, [replace(finding, saving=saving)]).sentences)

    more = ": more than its cost, as the host then launches ahead"
    assert more in said(Saving.at_most(2 * cost, "no-sync"))
    assert more in said(Saving(2 * cost, cost, 3 * cost, Basis.REPLAY, "no-sync"))
    assert more not in said(Saving(cost, 0, 3 * cost, Basis.REPLAY, "no-sync"))
    assert more not in said(Saving.at_most(cost, "no-sync"))
    assert "more than its cost" not in said(Saving.at_most(2 * cost))


def test_two_findings_of_one_rank_are_no_two_ranks() -> None:
    """As both directions of a link, each at its limit."""
    result = analyze_reports([SAMPLE_FOLDER / "launch-bound.sqlite"])
    finding = next(one for one in result.findings if one.id == "gpu-idle")
    other = replace(finding, title="The other direction", impact_ns=finding.impact_ns - 1)
    said = "; ".join(claim(result, [finding, other]).sentences)
    assert "lowest" not in said
    assert "also: The other direction (" in said
    assert ranks_text([one.rank for one in (finding, other)]) == "rank 0"


def test_half_precision_gains_more_than_multiplications_cost_and_why_is_said() -> None:
    """It halves what kernels move, too; what a finding costs in a step follows from its impact."""
    result = analyze_reports([SAMPLE_FOLDER / "full-precision-matmul.sqlite"])
    finding = next(one for one in result.findings if one.id == "full-precision-matmul")
    assert "per_step_ns" not in finding.metrics
    why = "cost, as kernels that only move numbers become faster, too"
    for share, is_more in ((0.9, False), (1.3, True)):
        most = Saving.at_most(round(share * finding.impact_ns / 5), "half-precision")
        said = "; ".join(claim(result, [replace(finding, saving=most)]).sentences)
        assert (why in said) == is_more


def test_a_limit_above_the_cost_says_why() -> None:
    """Single kernels and launching are in the limit of `unfused-kernels`, not in its cost."""
    result = analyze_reports([SAMPLE_FOLDER / "launch-bound.sqlite"])
    said = three_lines(result)
    assert said is not None
    assert said.gain is not None
    assert "more than the cost: single kernels and launching count, too" in said.gain


@pytest.mark.parametrize(
    ("num", "few"),
    [
        (0, "no such change was measured"),
        (1, "only 1 such change was measured"),
        (3, "only 3 such changes were measured"),
    ],
)
def test_too_few_measured_changes_are_counted(
    num: int, few: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought = UsualYield("gpu-idle", None, num, low=0.1, middle=0.2, high=0.3, expected=0.3)
    usual = "traceprof.analyses.verdict.three_lines.usual_yield"
    monkeypatch.setattr(usual, lambda _: brought if num else None)
    said = three_lines(analyze_reports([SAMPLE_FOLDER / "sleeping-loader.sqlite"]))
    assert said is not None
    assert said.gain is not None
    assert said.gain.endswith(f"; {few}")


def test_the_gain_stands_under_the_unit_with_its_article(tmp_path: Path) -> None:
    said = text.render(analyze_reports([solver(12).write(tmp_path)]))
    assert "an iteration gains" in said


def test_a_share_follows_the_time_that_it_is_of() -> None:
    """A title may name other times only: what kernels take, of which a part could go."""
    result = analyze_reports([SAMPLE_FOLDER / "full-precision-matmul.sqlite"])
    finding = next(one for one in result.findings if one.id == "full-precision-matmul")
    cost = duration(finding.impact_ns)
    assert cost not in finding.title
    said = " ".join(text.render(result, is_verbose=True).split())
    assert f" (it costs {cost}, {percent(finding.impact_fraction)} of the training)" in said
