"""Reports of runs whose ranks have no GPU, alone and beside ranks that have one."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dashboards.address import Address
from dashboards.pages import overview
from dashboards.server.app import create_app
from dashboards.view import View
from tests.support import dashboard
from tests.support.builders import ALL_REDUCE as NCCL
from tests.support.builders import TraceBuilder, global_tid
from tests.support.claims import validator
from tests.support.commands import printed
from tests.support.kept_claims import KeptText, claim_text
from tests.support.traces import closed_analysis
from traceprof.analyses import breakdown, exposed_communication, gpu_idle
from traceprof.analyses.registry import ANALYSES
from traceprof.analyses.verdict.three_lines import three_lines
from traceprof.analysis import Analysis, analyze
from traceprof.reports import html, text
from traceprof.reports import json as json_report
from traceprof.trace.nsight import schema

MS = 1_000_000


def training(builder: TraceBuilder, *ranks: int) -> TraceBuilder:
    """Two steps of data-parallel training on each rank: one bucket, a send to the next rank."""
    for rank in ranks:
        how: dict[str, Any] = {"pid": 100 + rank}
        for step in range(2):
            start = 100 * MS * step
            facts = f"dtype=float32 group=0 rank={rank} size={len(ranks)}"
            builder.label(f"step {step}", start, start + 90 * MS, **how)
            builder.label("forward", start, start + 30 * MS, **how)
            builder.label("backward", start + 30 * MS, start + 70 * MS, **how)
            bucket = "bucket index=0 bytes=25600 dtype=float32 last=1"
            builder.label(bucket, start + 50 * MS, start + 68 * MS, in_flight=True, **how)
            call = f"all_reduce bytes=25600 {facts} seq={step}"
            builder.label(call, start + 51 * MS, start + 52 * MS, **how)
            builder.label(call, start + 51 * MS, start + 68 * MS, in_flight=True, **how)
            builder.label("optimizer step", start + 70 * MS, start + 80 * MS, **how)
            peer = ranks[(ranks.index(rank) + 1) % len(ranks)]
            send = f"send dst={peer} bytes=512 {facts} seq={step}"
            builder.label(send, start + 80 * MS, start + 85 * MS, **how)
    return builder


def document(analysis: Analysis) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json_report.render(analysis.result))
    validator().validate(loaded)
    return loaded


def test_json(tmp_path: Path, kept_text: KeptText) -> None:
    """Of each rank: 2 times 63 ms of compute, 17 ms of a reduction and 5 ms of a send."""
    found = document(closed_analysis(training(TraceBuilder(), 0, 1).write(tmp_path)))
    names = (
        *("ranks", "breakdown", "steps", "step_totals"),
        *("collectives", "buckets", "not_applicable", "notes"),
    )
    kept_text("\n".join(f"{name} {row}" for name in names for row in found[name]))


def test_text(tmp_path: Path, kept_text: KeptText, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # lines are broken where names of files are long
    analysis = closed_analysis(training(TraceBuilder(), 0, 1).write(Path("t.sqlite")))
    kept_text(text.render(analysis.result, is_verbose=True))


def test_a_receive_tells_from_whom(tmp_path: Path) -> None:
    builder = TraceBuilder().label("recv src=3 group=pp rank=0 size=4 seq=0", 0, MS)
    assert "Recv from 3" in text.render(
        closed_analysis(builder.write(tmp_path)).result, is_verbose=True
    )


def test_many_groups_are_cut_short(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for group in range(60):
        builder.label(f"all_reduce bytes=4 group={group} rank=0 size=2 seq=0", group, group + 1)
    shown = text.render(closed_analysis(builder.write(tmp_path)).result, is_verbose=True)
    assert "… and 36 more rows: --format json has them all" in shown


def test_html_and_dashboard(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    builder = training(TraceBuilder(), 0, 1)
    builder.label(f"all_reduce bytes=4 group={hostile} rank=0 size=2 seq=0", 0, 1, pid=100)
    with closing(analyze(builder.write(tmp_path))) as analysis:
        page = html.render(analysis.result)
        assert create_app(analysis).server.test_client().get("/").status_code == 200
        assert dashboard.text(overview.layout(View(analysis, Address()))).count("CPU") == 2
    assert "CPU" in page
    assert hostile not in page


def test_ranks_with_and_without_a_gpu(tmp_path: Path) -> None:
    builder = training(TraceBuilder(), 1)
    builder.kernel(0, 60 * MS, pid=50).kernel(60 * MS, 90 * MS, NCCL, stream=20, pid=50)
    builder.label("all_reduce bytes=4 group=0 rank=0 size=2 seq=0", 0, 5, pid=50)
    analysis = closed_analysis(builder.write(tmp_path))
    assert [(rank.rank, rank.device) for rank in analysis.run.ranks] == [(0, 0), (1, None)]
    assert [row.rank for row in analysis.of(breakdown)] == [0, 1]
    assert [row.rank for row in analysis.of(gpu_idle)] == [0]
    assert [module.name for module in ANALYSES if module.is_for_cpu] == [
        breakdown.__name__, exposed_communication.__name__,
    ]  # fmt: skip
    assert [groups.rank for groups in analysis.result.measured.shown_process_groups] == [1]
    assert [buckets.rank for buckets in analysis.measured.buckets] == [0, 1]
    found = document(analysis)
    # What is missing of all ranks with a GPU is said of the run, once.
    assert [gap for gap in found["not_applicable"] if gap["rank"] is not None] == []
    assert "rank 1: no GPU operation was recorded of this process" in found["notes"][0]["note"]
    assert " CPU " in text.render(analysis.result, is_verbose=True)


def test_no_communication_range_and_no_compute_range(tmp_path: Path, kept_text: KeptText) -> None:
    said: list[str] = []
    for name in ("forward", "all_reduce bytes=4 group=0 rank=0 size=2 seq=0"):
        path = TraceBuilder().label(name, 0, 9).write(tmp_path / f"{len(said)}.sqlite")
        (missing,) = closed_analysis(path).not_applicable
        said.append(f"{missing.id}: {missing.reason}")
    kept_text("\n".join(said))


def test_time_of_a_host_that_no_range_covers_is_no_healthy_step(
    tmp_path: Path, kept_text: KeptText
) -> None:
    said = []
    for computed_ms in (98, 96):
        builder = TraceBuilder()
        for start in (0, 100 * MS, 200 * MS):
            builder.label(f"step {start // MS // 100}", start, start + 100 * MS)
            builder.label("forward", start, start + computed_ms * MS)
            builder.label("all_reduce bytes=4 group=0 rank=0 size=2", start, start + 1)
        path = builder.write(tmp_path / f"{computed_ms}.sqlite")
        said.append(str(three_lines(closed_analysis(path).result)))
    kept_text("\n".join(said))


def test_exposed_communication_of_a_host_advises_hosts(tmp_path: Path, kept_text: KeptText) -> None:
    findings = closed_analysis(training(TraceBuilder(), 0, 1).write(tmp_path)).findings
    kept_text("\n".join(map(claim_text, findings)))


def test_labels_of_gpu_copies_ask_for_the_gpus_trace(tmp_path: Path) -> None:
    builder = training(TraceBuilder(), 0).label("to h2d bytes=4 pinned=1", 0, 1, pid=100)
    notes = [note for _, note in closed_analysis(builder.write(tmp_path)).notes]
    assert any(
        "record the GPU's work with nsys profile --trace=cuda,nvtx" in note for note in notes
    )


def test_info(tmp_path: Path, kept_text: KeptText) -> None:
    unlabelled = TraceBuilder().label("forward", 0, 9).write(tmp_path / "unlabelled.sqlite")
    labelled = training(TraceBuilder(), 0, 1).write(tmp_path)
    kept_text("".join(printed("info", path) for path in (labelled, unlabelled)))


@pytest.mark.parametrize("name", ["traceprof", "my-program"])
def test_info_warns_of_a_domain_without_ranges(tmp_path: Path, name: str) -> None:
    builder = TraceBuilder().kernel(0, 9)
    for number, domain in enumerate((name, "NCCL", "cuBLAS"), 1):
        row = {"start": 0, "eventType": schema.NVTX_DOMAIN, "globalTid": global_tid()}
        builder.raw("NVTX_EVENTS", **row, domainId=number, text=domain)
    path = builder.write(tmp_path)
    out = printed("info", path)
    assert f"nothing was recorded of the NVTX domain '{name}'" in out
    assert "nvtx==0.2.11" in out
    assert out.count("nothing was recorded") == 1  # libraries make domains that they never use
    assert (len(closed_analysis(path).notes) == 1) == (name == "traceprof")


@pytest.mark.parametrize("event_type", [schema.NVTX_PUSH_POP, 60, schema.NVTX_MARK])
def test_info_is_silent_about_a_domain_with_any_event(tmp_path: Path, event_type: int) -> None:
    builder = TraceBuilder().kernel(0, 9)
    builder.nvtx("x", 0, 5, domain="my-program", event_type=event_type)
    assert "nothing was recorded" not in printed("info", builder.write(tmp_path))
