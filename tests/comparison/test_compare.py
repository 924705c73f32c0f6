"""Two recordings against each other: sums, sides, what makes them comparable, gates."""

import re
import shutil
import statistics
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import asdict

from tests.support.builders import TraceBuilder
from tests.support.claims import DDP, LATE, OPTIONS, TRAINING, analysis, document_of
from tests.support.kept_claims import KeptText
from tests.support.selection import known, long_after
from tests.support.traces import SAMPLE_FOLDER, SAMPLES
from traceprof.analysis import analyze, analyze_reports
from traceprof.comparison.ask import compare
from traceprof.documents.analysis.model import Document
from traceprof.documents.comparison import Comparable, Comparison, GateResult, Step
from traceprof.errors import TraceprofError
from traceprof.findings import NotApplicable
from traceprof.reports.blocks import Paragraph
from traceprof.reports.comparison_sections import (
    MAX_DIFFERENCES,
    comparison_sections,
    render_comparison,
)
from traceprof.reports.json import render
from traceprof.run.step_ranges import StepsSource
from traceprof.store import save


def assert_sums(comparison: Comparison) -> None:
    """Every split must be exact."""
    for parts in (comparison.parts, comparison.mean_before, comparison.mean_after):
        split = (
            parts.compute_ns
            + parts.exposed_communication_ns
            + parts.exposed_copy_ns
            + parts.idle_ns
            + parts.lost_ns
        )
        assert split == parts.mean_step_ns
    changes = {part.part: part.change_ns for part in comparison.part_changes}
    assert sum(change or 0 for change in changes.values()) == comparison.parts.mean_step_ns
    assert sum(cause.change_ns for cause in comparison.idle) == comparison.parts.idle_ns
    assert sum(cause.before_ns for cause in comparison.idle) == comparison.mean_before.idle_ns
    sizes = [abs(cause.change_ns) for cause in comparison.idle]
    assert sizes == sorted(sizes, reverse=True)
    kernels = sum(kernel.change_ns for kernel in comparison.kernels)
    assert kernels + comparison.kernels_beside_ns == comparison.parts.compute_ns
    for side in ("before", "after"):
        shares = sum(getattr(rung, side) for rung in comparison.kernel_matching)
        has_kernels = any(getattr(kernel, f"{side}_ns") for kernel in comparison.kernels)
        assert shares == pytest.approx(1.0 if has_kernels else 0.0)


def rounded(value: object) -> object:
    return round(value, 6) if isinstance(value, float) else value


def fields_of(part: Step | Comparable) -> list[str]:
    """Return what is known, but for the spread between recordings."""
    fields = ((name, rounded(value)) for name, value in asdict(part).items())
    return [
        f"  {name}: {value}"
        for name, value in fields
        if value not in (None, []) and not name.startswith(("between", "usual"))
    ]


def line_of(gate: GateResult) -> str:
    numbers = [rounded(number) for number in (gate.value, gate.low, gate.high, gate.limit)]
    return f"{gate.gate} {gate.outcome}: {numbers} {gate.unit}; {gate.reason}"


@pytest.fixture(scope="module")
def changed() -> Comparison:
    return compare(document_of(LATE), document_of(DDP))


def test_what_is_told_sums(changed: Comparison) -> None:
    assert_sums(changed)


@pytest.mark.parametrize("sample", long_after(2, [*SAMPLES[:12], SAMPLE_FOLDER / "gloo.sqlite"]))
def test_all_samples_can_be_compared(sample: Path) -> None:
    document = document_of(sample)
    comparison = compare(document_of(TRAINING), document, gates=["step:+2%"])
    if document.headline.steps_source != StepsSource.NONE:
        assert comparison.step.after_ns == document.headline.step_ns
    assert_sums(comparison)
    msgspec.json.encode(comparison)


@pytest.mark.parametrize(("path", "name"), [(LATE, "before"), (DDP, "after")])
def test_numbers_are_those_of_the_analyses(changed: Comparison, path: Path, name: str) -> None:
    document = analysis(path)
    kept = []
    for totals in document["step_totals"]:
        rows = [step for step in document["steps"] if step["rank"] == totals["rank"]]
        assert len(rows) - 1 not in totals["steps"]  # it ends with its last operation
        kept.append([rows[place] for place in totals["steps"]])
    lengths = [
        statistics.mean(row["window_ns"] for row in rows) for rows in zip(*kept, strict=True)
    ]
    side, mean = getattr(changed, name), getattr(changed, f"mean_{name}")
    assert side.num_steps == len(lengths)
    assert side.num_steps + side.num_left_out == len(document["steps"]) // len(kept)
    # What a step takes is the mean on the rank where that is longest, as `analyze` says.
    longest = max(kept, key=lambda rows: statistics.mean(row["window_ns"] for row in rows))
    own = [row["window_ns"] for row in longest]
    assert getattr(changed.step, f"{name}_ns") == document["headline"]["step_ns"]
    median_ns = getattr(changed.step, f"median_{name}_ns")
    assert median_ns == document["headline"]["median_step_ns"] == round(statistics.median(own))
    assert mean.mean_step_ns == pytest.approx(statistics.mean(lengths), abs=1)
    for part in ("compute_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns"):
        values = [row[part] for rows in kept for row in rows]
        assert getattr(mean, part) == pytest.approx(statistics.mean(values), abs=2)


def test_a_change_is_found_and_placed(kept_text: KeptText) -> None:
    """Most of what was gained is exposed communication; its cost per step is of steady steps."""
    before, after = document_of(LATE), document_of(DDP)
    for side, path in ((before, LATE), (after, DDP)):
        side.reports[0].path = path.name  # lines are broken where names of files are long
    kept_text(render_comparison(compare(before, after)))


def refusal(side: object, **options: Any) -> str:
    with pytest.raises(TraceprofError) as error:
        compare(side, document_of(DDP), **options)  # type: ignore[arg-type]
    return str(error.value)


def test_a_gate_that_is_none_is_refused(kept_text: KeptText) -> None:
    gates = "stepp:+2%", "step", "step:2", "step:+1pp", "finding:nccl-serialisation", ""
    kept_text("\n".join(refusal(DDP, gates=[gate]) for gate in gates))


def test_all_kinds_of_sides_are_the_same(tmp_path: Path, changed: Comparison) -> None:
    result = analyze_reports([LATE], OPTIONS)
    saved = tmp_path / "before.json"
    saved.write_text(render(result))
    save(tmp_path / "runs.db", result, "before")
    folder = tmp_path / "reports"
    folder.mkdir()
    shutil.copy(LATE, folder)
    open_reports = analyze(LATE, options=OPTIONS)
    sides = [saved, f"{tmp_path}/runs.db#before", folder, [str(LATE)], result, open_reports]
    for side in sides:
        again = compare(side, document_of(DDP), options=OPTIONS)  # type: ignore[arg-type]
        assert again.step == changed.step
        assert again.kernels == changed.kernels
        assert again.findings == changed.findings
    open_reports.close()


def test_the_same_recording_is_recognized_by_content(tmp_path: Path) -> None:
    copy = Path(shutil.copy(DDP, tmp_path / "other.sqlite"))
    comparison = compare(document_of(DDP), copy)
    assert comparison.comparable.reasons == ["the same recording stands on both sides"]
    assert comparison.step.change == 0
    assert comparison.step.verdict == "not comparable"
    assert comparison.parts.mean_step_ns == 0
    assert {finding.status for finding in comparison.findings} == {"same"}


def test_other_gpus_and_ranks_are_not_comparable(kept_text: KeptText) -> None:
    document, other = document_of(DDP), document_of(LATE)
    for rank in other.ranks:
        rank.gpu = (rank.gpu or "").removeprefix("NVIDIA ")
    assert compare(document, other).comparable.is_comparable
    for rank in other.ranks:
        rank.gpu = "NVIDIA H100 80GB HBM3"
    other.ranks.pop()
    other.reports[0].recorded.append("samples")
    gates, said = ["step:+50%", "finding:nccl-serialization"], []
    for allowed in ([], ["gpu"], ["gpu", "world-size"]):
        found = compare(document, other, gates=gates, allow_different=allowed)
        said += [f"allowed: {allowed}", *fields_of(found.comparable), *fields_of(found.step)]
        said += map(line_of, found.gates)
    kept_text("\n".join(said))
    with pytest.raises(TraceprofError, match="choose one of gpu, world-size, recording"):
        compare(document, other, allow_different=["gpus"])


def test_of_many_differences_those_known_on_both_sides_are_shown() -> None:
    document, other = document_of(DDP), document_of(LATE)
    document.reports[0].environment = {f"TORCH_{num}": "1" for num in range(12)}
    other.reports[0].environment = {"TORCH_11": "2"}
    head = next(iter(comparison_sections(compare(document, other))))
    lines = [block.text for block in head.blocks if isinstance(block, Paragraph)]
    shown = [line for line in lines if line.startswith("differs:")]
    assert len(shown) == MAX_DIFFERENCES
    assert "differs: TORCH_11: 1 before, 2 after" in shown
    (rest,) = (line for line in lines if line.startswith("differs, too: "))
    assert rest.endswith("TORCH_9: --format json has the values")


@pytest.mark.parametrize("rank", [None, 0])
def test_what_one_side_could_not_judge_is_unknown(rank: int | None, kept_text: KeptText) -> None:
    """A graph that hides names is no cure. What a side has all the same, it could judge."""
    before, blind, other = document_of(LATE), document_of(DDP), document_of(DDP)
    gap = NotApplicable("late-allreduce", "graphs hide names", "trace nodes", rank)
    blind.not_applicable.append(gap)
    has_gap = document_of(LATE)
    has_gap.not_applicable.append(gap)
    sides = {
        "blind after": (before, blind),
        "blind before": (blind, before),
        "both seen": (before, other),
        "found in spite of a gap": (has_gap, document_of(LATE)),
    }
    said = []
    for name, side in sides.items():
        found = compare(*side, gates=["finding:late-allreduce"])
        (row,) = (one for one in found.findings if one.id == "late-allreduce")
        said.append(f"{name}: {row.status}, {row.came_ns}; {line_of(*found.gates)}")
    kept_text("\n".join(said))


def with_lengths(document: Document, *lengths_ns: float) -> Document:
    changed = msgspec.convert(msgspec.to_builtins(document), Document)
    (first, *_), (totals, *_) = changed.steps, changed.step_totals
    starts = np.cumsum([0, *lengths_ns[:-1]]).astype(int).tolist()
    changed.steps = [
        msgspec.structs.replace(
            first, step=place, start_ns=start, end_ns=start + int(ns), window_ns=int(ns)
        )
        for place, (start, ns) in enumerate(zip(starts, lengths_ns, strict=True))
    ]
    changed.step_totals = [
        msgspec.structs.replace(
            totals,
            num_steps=len(lengths_ns),
            steps=tuple(range(len(lengths_ns))),
            window_ns=sum(map(int, lengths_ns)),
        )
    ]
    return changed


def test_at_the_same_mix_the_common_change_decides_and_the_mean_stands_beside() -> None:
    source = np.random.default_rng(7)
    document = document_of(DDP)

    def mixed(factor: float) -> Document:
        lengths = np.where(source.random(120) < 0.3, 7e6, 1e6) * source.normal(1, 0.01, 120)
        return with_lengths(document, *(factor * lengths).tolist())

    comparison = compare(mixed(1.0), mixed(1.05), gates=["step:+4%", "step:+6%"])
    step = comparison.step
    assert known(step.low) < 0 < known(step.high)
    assert step.verdict == "slower"
    mix = known(step.at_same_mix)
    assert mix.change == pytest.approx(0.05, abs=0.01)
    assert 0.04 < mix.low < mix.change < mix.high < 0.06
    assert [gate.outcome for gate in comparison.gates] == ["not met", "met"]
    assert "at the same mix of short and long steps; the mean " in comparison.headline


def test_what_would_decide_is_said_of_an_open_verdict() -> None:
    """26 (cv / d)² steps a side; marks, where nothing is known of steps."""
    source = np.random.default_rng(3)
    document = document_of(DDP)

    def noisy(spread: float, num: int) -> Document:
        return with_lengths(document, *(1e6 * source.lognormal(0, spread, num)).tolist())

    found = compare(noisy(0.3, 60), noisy(0.3, 60))
    assert found.step.verdict == "inconclusive"
    (steps,) = re.findall(r"of about (\d+) steps each, not \d+$", known(found.step.to_decide))
    size = max(abs(known(found.step.change)), 0.01)
    assert int(steps) == pytest.approx(26 * (0.3 / size) ** 2, rel=0.9)
    few = compare(noisy(0.01, 2), noisy(0.01, 3))
    assert few.step.to_decide == "Record 60 steps a side, not 2"
    several = compare([noisy(0.3, 20), noisy(0.3, 20)], [noisy(0.3, 20)])
    assert several.step.to_decide == "Record more a side than 2 and 1"
    sure = compare(noisy(0.01, 60), with_lengths(document, *[2e6, 2.01e6] * 30))
    assert (sure.step.verdict, sure.step.to_decide) == ("slower", None)


def test_trends_and_what_a_mean_cannot_reach_are_said() -> None:
    source = np.random.default_rng(8)
    document = document_of(DDP)
    rising = with_lengths(document, *(1e6 * np.linspace(1, 1.2, 60)).tolist())
    lengths = 1e6 * source.lognormal(0, 0.15, 60)
    noisy = with_lengths(document, *lengths.tolist())
    found = compare(rising, noisy)
    notes = " ".join(found.notes)
    # 1 + 0.2 (30 + ... + 59) / 30 / 59 of 1 + 0.2 (0 + ... + 29) / 30 / 59
    assert "before, the steps change within the recording" in notes
    assert "those of the second half take +9.7 %" in notes
    assert found.step.verdict == "inconclusive"
    expected = r"over steps\)\. Record (three a side, of )?about \d+ steps (a side|each), not 60\.$"
    assert re.search(expected, found.headline)
    median = np.median(lengths) / 1e6
    assert f"takes 1.10 ms before and {1000 * median:.0f} µs after ({median / 1.1 - 1:+.1%}" in (
        notes.replace(" %", "%")
    )
    few = compare(with_lengths(document, 1e6, 1e6), with_lengths(document, 1e6, 1e6, 1e6))
    assert few.step.low is None
    assert "before, steps to compare: 2; an interval needs at least 3" in few.notes
    assert not any(note.startswith("after, steps to compare") for note in few.notes)


def test_steps_of_one_length_change_by_exactly_their_difference(kept_text: KeptText) -> None:
    document = document_of(DDP)
    before, after = (with_lengths(document, *[ns] * 4) for ns in (1e6, 1.1e6))
    found = compare(before, after, gates=["step:+50us", "step:+20%", "step:-1ms"])
    assert found.parts.mean_step_ns == 100_000
    back = compare(after, before).step
    kept_text("\n".join((*fields_of(found.step), *fields_of(back), *map(line_of, found.gates))))


def test_without_steps_the_training_is_the_step() -> None:
    healthy = SAMPLE_FOLDER / "exposed-copy.sqlite"
    first = analysis(healthy)
    if first["steps"]:
        first["steps"] = []
        for totals in first["step_totals"]:
            totals["num_steps"], totals["steps"] = 0, []
    document = msgspec.convert(first, Document)
    allowed = ["recording"]
    comparison = compare(document, document, gates=["step:+2%"], allow_different=allowed)
    step = comparison.step
    assert (step.verdict, step.basis) == ("inconclusive", "training")
    assert step.low is step.high is None
    totals = first["step_totals"]
    assert step.before_ns == step.after_ns == max(one["window_ns"] for one in totals)
    assert [gate.outcome for gate in comparison.gates] == ["inconclusive"]
    assert comparison.headline.endswith(" Name the range around a step (--step-pattern).")


def test_what_is_no_side_is_refused(
    tmp_path: Path, kept_text: KeptText, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(Path("runs.db"), analyze_reports([DDP], OPTIONS), "one")
    Path("old.json").write_text('{"schema": "traceprof.analysis/1"}')
    Path("whatif.json").write_text('{"schema": "traceprof.whatif/1"}')
    Path("broken.json").write_text('{"schema": "traceprof.analysis/1"')
    sides = "missing.sqlite", "runs.db", "runs.db#two", "old.json", "whatif.json", "broken.json"
    kept_text("\n".join(map(refusal, sides)))


@pytest.mark.parametrize(
    ("call", "alone"),
    [("cudaLaunchKernel_v7000", []), ("cudaEventRecord_v3020", [("nothing", "event records")])],
)
def test_a_program_without_events_lacks_no_records_of_them(
    call: str, alone: list[tuple[str, str]], tmp_path: Path
) -> None:
    sides = []
    for number in range(2):
        builder = TraceBuilder().gpu("Tesla T4").kernel(0, 100 + number).api(call, 200, 210)
        if number:
            event = {"start": 60, "deviceId": 0, "contextId": 1, "streamId": 7, "eventId": 1}
            builder.raw("CUPTI_ACTIVITY_KIND_CUDA_EVENT", correlationId=99, **event)
        (tmp_path / str(number)).mkdir()
        sides.append(builder.write(tmp_path / str(number)))
    found = compare(*sides).comparable
    assert found.is_comparable
    differences = [one for one in found.differences if one.what == "recorded on one side only"]
    assert [(one.before, one.after) for one in differences] == alone
