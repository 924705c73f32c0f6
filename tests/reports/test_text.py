"""The text report: short, whole, and safe to print."""

import io
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from shutil import copyfile
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace
from rich.console import Console

from dashboards.address import Address
from dashboards.pages import ranks
from dashboards.view import View
from tests.support.builders import ALL_REDUCE as NCCL
from tests.support.builders import TraceBuilder, solver
from tests.support.commands import alter
from tests.support.dashboard import named
from tests.support.kept_claims import KeptText
from tests.support.profiler_events import annotation, event
from tests.support.profiler_events import write as write_events
from tests.support.selection import known, long_after
from tests.support.traces import (
    OWN_CPU_PROFILES,
    OWN_PROFILES,
    REAL_FOLDER,
    SAMPLE,
    SAMPLE_FOLDER,
    SAMPLES,
    analysis_of,
    result_of,
)
from traceprof.analyses import pipeline_bubble
from traceprof.analyses.verdict.run_result import RunResult
from traceprof.analyses.verdict.savings import Gate
from traceprof.analyses.verdict.three_lines import three_lines
from traceprof.analyses.verdict.yields import UsualYield
from traceprof.analysis import analyze, analyze_reports
from traceprof.documents.analysis.records import document
from traceprof.findings import Basis, Finding, Saving
from traceprof.ranks.passes import BACKWARD, FORWARD
from traceprof.reports import html, text
from traceprof.reports.claims import sentences
from traceprof.reports.drawings import CLASSES, LABELS, WIDTH, pipeline_drawing, pipeline_drawings
from traceprof.reports.ranks_text import MAX_KERNELS, compute_lines
from traceprof.trace.nsight import schema
from traceprof.units import ranks_text

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


@pytest.mark.one_export
@pytest.mark.cpu_export
def test_every_real_export_is_shown(real_trace: Path) -> None:
    with analysis_of(real_trace) as analysis:
        shown_text = text.render(analysis.result, is_verbose=True)
    lines = [line for line in shown_text.splitlines() if not line.startswith("   at ")]
    assert max(map(len, lines)) <= max(MAX_TABLE_WIDTH, len(str(real_trace)) + 60)
    evidence = [line for line in shown_text.splitlines() if line.startswith("   at ")]
    assert not any(line.endswith("…") for line in evidence)  # nothing is cut
    _fits(analysis.result)


@pytest.mark.all_samples
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_sample_is_shown_as_kept_beside_it(path: Path) -> None:
    """`make sample` writes the texts; their difference is what a change does to reports."""
    with analysis_of(path) as analysis:
        _fits(analysis.result)
    kept = path.with_suffix(".txt").read_text(encoding="utf-8")
    assert shown(path).replace(f"{SAMPLE_FOLDER}/", "sample_traces/") == kept


@pytest.mark.long
@pytest.mark.parametrize(
    "folder", ["kineto/dlrm_8ranks", "jacobi_mpi", "rtx3090x9_3nodes_tree", "rtx3090x6_2nodes_ring"]
)
def test_every_real_run_fits_on_a_page(traces: Path, folder: str) -> None:
    names = {path.name for path in (traces / folder).iterdir()}
    _fits(analyze_reports([traces / folder / name for name in sorted(names)]))


@pytest.mark.parametrize(
    "trace",
    [
        *(*OWN_PROFILES[:1], *OWN_CPU_PROFILES[:1]),
        *long_after(
            2,
            sorted(
                REAL_FOLDER.glob("kineto/*.json.gz") if REAL_FOLDER else (),
                key=lambda path: path.stat().st_size,
            ),
        ),
    ],
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
    result = result_of(SAMPLE_FOLDER / "launch-bound.sqlite")
    headline = known(result.headline)
    replay = known(headline.savings.replay)
    others = [replace(gate, value=0.5) for gate in replay.gates if gate.name != "misfit"]
    gates = *others, Gate("misfit", -0.233, 0.3, holds=True)
    savings = replace(headline.savings, replay=replace(replay, gates=gates))
    headline = replace(headline, savings=savings)
    result = replace(result, verdict=replace(result.verdict, headline=headline))
    assert ", 23.3 % off)." in " ".join(text.render(result, is_verbose=True).split())


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


def test_a_terminal_without_unicode_gets_ascii(tmp_path: Path) -> None:
    buffer = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="replace")
    report = text.report(analyze_reports([many_ranks(tmp_path, 1)]))
    Console(file=buffer, width=100).print(report)
    buffer.seek(0)
    assert "###########=========" in buffer.read()


def test_what_can_be_judged_is_said(
    tmp_path: Path, kept_text: KeptText, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside an upload of 800 ns, multiplications of 40 ns are 5 % of the time, or 38 %."""
    monkeypatch.chdir(tmp_path)
    traces = {
        "one operation": TraceBuilder().kernel(0, 100),
        "two operations": TraceBuilder().kernel(0, 100).kernel(100, 200),
        "a small part": TraceBuilder().memcpy(0, 800, launch=(0, 1)),
        "a larger part": TraceBuilder().memcpy(0, 800, launch=(0, 1)),
        "no GPU work": TraceBuilder().nvtx("step 0", 0, 9).api("cudaMalloc_v3020", 1, 2),
    }
    for name, num in (("a small part", 1), ("a larger part", 12)):
        for begin in range(1000, 1000 + 100 * num, 100):
            launch = (begin - 20, begin - 10)
            traces[name].kernel(begin, begin + 40, "gemm_f16f16", launch=launch)
    bar = TraceBuilder().kernel(0, 500).kernel(500, 750, NCCL).memcpy(750, 850)
    traces["all parts"] = bar.memset(999, 1000)
    events = [annotation("step", 1, 9), event("mtia_ccp_events", "matmul", 2, 1, (0, 3))]
    other = write_events(Path("another accelerator.json"), events)
    paths = *(trace.write(Path(f"{name}.sqlite")) for name, trace in traces.items()), other
    kept_text("\n".join(text.render(analyze_reports([path])) for path in paths))


def sample_finding(sample: str, id_: str) -> tuple[RunResult, Finding]:
    result = result_of(SAMPLE_FOLDER / f"{sample}.sqlite")
    return result, next(one for one in result.findings if one.id == id_)


def with_savings(result: RunResult, finding: Finding, *savings: Saving) -> str:
    found = (sentences(result, [replace(finding, saving=saving)]) for saving in savings)
    return "\n".join(map("; ".join, found))


def test_a_replay_that_takes_out_more_than_the_finding_costs_says_so(kept_text: KeptText) -> None:
    """Without waits of the host, copies hide as well: more goes than the GPU was idle."""
    result, finding = sample_finding("launch-bound", "gpu-idle")
    cost = int(finding.metrics["per_step_ns"])  # type: ignore[arg-type]
    savings = (
        Saving.at_most(2 * cost, "no-sync"),
        Saving(2 * cost, cost, 3 * cost, Basis.REPLAY, "no-sync"),
        Saving(cost, 0, 3 * cost, Basis.REPLAY, "no-sync"),
        Saving.at_most(cost, "no-sync"),
        Saving.at_most(2 * cost),
    )
    kept_text(with_savings(result, finding, *savings))


def test_two_findings_of_one_rank_are_no_two_ranks(kept_text: KeptText) -> None:
    """As both directions of a link, each at its limit."""
    result, finding = sample_finding("launch-bound", "gpu-idle")
    other = replace(finding, title="The other direction", impact_ns=finding.impact_ns - 1)
    kept_text("\n".join(sentences(result, [finding, other])))
    assert ranks_text([one.rank for one in (finding, other)]) == "rank 0"


def test_half_precision_gains_more_than_multiplications_cost_and_why_is_said(
    kept_text: KeptText,
) -> None:
    """It halves what kernels move, too; what a finding costs in a step follows from its impact."""
    result, finding = sample_finding("full-precision-matmul", "full-precision-matmul")
    assert "per_step_ns" not in finding.metrics
    most = (round(share * finding.impact_ns / 5) for share in (0.9, 1.3))
    savings = (Saving.at_most(ns, "half-precision") for ns in most)
    kept_text(with_savings(result, finding, *savings))


def test_one_rank_of_many_does_not_show_whether_it_waits_for_others(traces: Path) -> None:
    name = "TraceLens_tests_traces_mi300_resnet_act_checkpoint.json.gz"
    said = three_lines(analyze_reports([traces / "kineto" / name]))
    assert said is not None
    assert said.action == "Give the reports of all ranks together"
    assert said.trust is not None
    assert said.trust.endswith("only 2 steps")


def test_unnamed_sends_may_wait_for_another_rank(tmp_path: Path) -> None:
    """Then the time that they take is no reason to send fewer bytes."""
    path = tmp_path / "run.sqlite"
    copyfile(SAMPLE_FOLDER / "pipeline-sends.sqlite", path)
    alter(path, f"DROP TABLE {schema.NVTX.name}")
    said = three_lines(result_of(path))
    assert said is not None
    assert "mostly since it, waits included, outlasts the compute beside it" in said.problem
    assert str(said.action).startswith("Record with python -m instrument, which names groups")


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
    said = three_lines(result_of(SAMPLE_FOLDER / "sleeping-loader.sqlite"))
    assert said is not None
    assert said.gain is not None
    assert said.gain.endswith(f"; {few}")


def test_the_gain_stands_under_the_unit_with_its_article(tmp_path: Path) -> None:
    said = text.render(analyze_reports([solver(12).write(tmp_path)]))
    assert "an iteration gains" in said


_ON = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn"
_OFF = "ampere_sgemm_128x64_tn"
_UNKNOWN = "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1"


def test_tensor_cores(tmp_path: Path, kept_text: KeptText) -> None:
    said: list[str] = []
    for pair in ((_ON, _ON), (_ON, _OFF), (_ON, _UNKNOWN), (_OFF, _UNKNOWN), (_UNKNOWN, _UNKNOWN)):
        trace = TraceBuilder()
        for number, name in enumerate(pair):
            trace.kernel(number * 1000, number * 1000 + 990, name)
        path = trace.write(tmp_path / f"{len(said)}.sqlite")
        said.append(compute_lines(analyze(path).result)[1])
    kept_text("\n".join(said))


ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float,"
    " float, at::native::MulFunctor<float>>, at::detail::Array<char *, 3>>(int, T2, T3)"
)


def export(path: Path, *, num_names: int = 3) -> Path:
    builder = TraceBuilder().kernel(0, 5000, "ampere_sgemm_128x64_tn").kernel(5000, 8000, ADD)
    for index in range(num_names - 2):
        builder.kernel(10_000 + 100 * index, 10_010 + 100 * index, f"mine_{index:02}")
    return builder.write(path)


def kernel_lines(path: Path) -> str:
    """Return the table of kernels of a report, without what follows it."""
    shown = text.render(analyze_reports([path]), shows_kernels=True)
    return shown.partition("Kernels, by name")[2]


@pytest.mark.parametrize("num_names", [3, MAX_KERNELS + 3])
def test_the_table_names_what_each_kernel_does(
    num_names: int, tmp_path: Path, kept_text: KeptText
) -> None:
    kept_text(kernel_lines(export(tmp_path / "t.sqlite", num_names=num_names)))


def test_of_several_ranks_the_busiest_is_shown(tmp_path: Path, kept_text: KeptText) -> None:
    builder = TraceBuilder().kernel(0, 10, device=0).kernel(0, 20, "relu", device=1)
    kept_text(kernel_lines(builder.write(tmp_path)))


def test_without_kernels_it_says_so(tmp_path: Path) -> None:
    path = TraceBuilder().memcpy(0, 100).write(tmp_path)
    assert "No kernel ran." in text.render(analyze_reports([path]), shows_kernels=True)


def test_the_table_is_shown_where_it_is_asked_for(tmp_path: Path) -> None:
    result = analyze_reports([export(tmp_path / "t.sqlite")])
    assert "Kernels, by name" not in text.render(result)
    assert "Kernels, by name" not in html.render(result)
    assert "Kernels, by name" in html.render(result, shows_kernels=True)


def test_json_has_all_kernels(tmp_path: Path, kept_text: KeptText) -> None:
    """Without steps all of the training is one, of whose mean nothing is known."""
    kernels = document(analyze_reports([export(tmp_path / "t.sqlite")])).kernels
    kept_text("\n".join(map(str, kernels)))


PASSES = {"forward": FORWARD, "backward": BACKWARD}
_SAMPLE = SAMPLE.with_stem("pipeline-bubble")


def test_a_step_shows_every_pass_and_what_lies_between() -> None:
    with analysis_of(_SAMPLE) as analysis:
        found = pipeline_bubble.run(analysis.result.measured)
        drawing = pipeline_drawing(found.pipelines[0], found.ranks)
    assert drawing is not None
    rows: dict[int, list[tuple[float, float]]] = {}
    for box in drawing.boxes:
        assert box.kind in CLASSES
        assert box.x >= LABELS
        assert box.x + box.width <= WIDTH + 0.2
        rows.setdefault(int(box.y), []).append((box.x, box.x + box.width))
    assert len(rows) == 2 * 3  # each stage as it ran, and ideally
    for spans in rows.values():
        spans.sort()
        assert all(low[1] <= high[0] + 0.3 for low, high in pairwise(spans))
    numbers = [box.text for box in drawing.boxes if box.kind == "forward"]
    assert numbers == [str(number) for number in range(4)] * 2 * 3


def test_a_production_job_is_drawn(traces: Path) -> None:
    """Two pipelines of four stages side by side, without event records or ranges of its own."""
    with closing(analyze(traces / "kineto" / "bytedance_st")) as analysis:
        found = pipeline_bubble.run(analysis.result.measured).pipelines
        drawings = pipeline_drawings(analysis.measured)
        pictures = named(ranks.layout(View(analysis, Address())), "Img")
        assert html.render(analysis.result).count("As it ran") == len(found)
    assert len(found) == len(drawings) == len(pictures) == 2
    assert all("in step 8" in drawing.caption for drawing in drawings)
    for pipeline, drawing in zip(found, drawings, strict=True):
        assert [stage.member % 2 for stage in pipeline.stages] == [pipeline.stages[0].member] * 4
        times = 2  # as it ran, and ideally
        for kind in ("forward", "backward"):
            of_step = [
                int(((stage.kind == PASSES[kind]) & (stage.step == 8)).sum())
                for stage in pipeline.stages
            ]
            drawn = [box for box in drawing.boxes if box.kind == kind]
            assert len(drawn) == times * sum(of_step) > 0
        assert {"warm_up", "imbalance"} <= {box.kind for box in drawing.boxes}


@pytest.mark.parametrize(("sample", "is_drawn"), [("pipeline-bubble", True), ("training", False)])
def test_the_dashboard_shows_the_same_drawing(sample: str, is_drawn: bool) -> None:
    with analysis_of(SAMPLE.with_stem(sample)) as analysis:
        page = ranks.layout(View(analysis, Address()))
        of_one = ranks.layout(View(analysis, Address(rank=(1,))))
        drawings = pipeline_drawings(analysis.measured)
        assert ("<h2>Pipeline</h2>" in html.render(analysis.result)) == is_drawn
    sources = [image.src for image in named(page, "Img")]
    assert sources == [image.src for image in named(of_one, "Img")]
    assert len(sources) == len(drawings) == is_drawn
    for source, drawing in zip(sources, drawings, strict=True):
        svg = ET.fromstring(unquote(source.partition(",")[2]))  # noqa: S314  (our own)
        boxes = [
            (box.get("class"), float(box.get("x", "")), float(box.get("width", "")))
            for box in svg.iter("{http://www.w3.org/2000/svg}rect")
        ]
        assert boxes == [
            *((box.kind, box.x, box.width) for box in drawing.boxes),
            *((kind, x, 10) for kind, x, _ in drawing.legend),
        ]


def test_parts_of_waits_fill_each_gap_up_to_the_next_pass() -> None:
    with analysis_of(_SAMPLE) as analysis:
        stages = pipeline_bubble.run(analysis.measured).pipelines[0].stages
    for stage in stages:
        expected = []
        for end, parts in zip(stage.gap_end_ns.tolist(), stage.parts_ns.tolist(), strict=True):
            start = end - sum(parts)
            for part, length in enumerate(parts):
                if length:
                    expected.append((start, start + length, part))
                    start += length
        assert [*zip(*(column.tolist() for column in stage.waits), strict=True)] == expected


def test_an_action_is_said_once_and_none_is_said_where_none_is_due() -> None:
    result = analyze_reports([SAMPLE])
    headline = known(result.headline)
    named = headline.causes
    assert len(named) > 2
    normal = "In the first steps this is normal: they allocate memory that later steps reuse"
    for second, num in ((named[0].advice, 1), (("Do something else",), 1), ((normal,), 0)):
        worst = (named[0], replace(named[1], advice=second), *named[2:])
        changed = replace(headline, worst=worst)
        shown = text.render(replace(result, verdict=replace(result.verdict, headline=changed)))
        assert "None" not in shown
        assert shown.count(f"{named[1].id}: ") == (second == ("Do something else",))
        assert " ".join(shown.split()).count(second[0][:30]) == num
