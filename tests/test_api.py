"""The public functions: what they take, what they refuse, and what they show of themselves."""

import html
import inspect
import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import traceprof
from tests.support.builders import TraceBuilder
from tests.support.kept_claims import KeptText
from tests.support.traces import SAMPLE, result_of
from traceprof.analyses.verdict.run_result import Verdict
from traceprof.analysis import Analysis
from traceprof.comparison.sides import stored_series
from traceprof.errors import TraceFileError, UsageError
from traceprof.frames import events
from traceprof.store import save

GLOO = SAMPLE.with_name("gloo.sqlite")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    shutil.copy(SAMPLE, folder / "a.sqlite")
    save(folder / "runs.db", result_of(SAMPLE), "first")
    return folder


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return traceprof.analyze(SAMPLE)


def num_ranks(*paths: Any) -> int:
    opened = traceprof.open_run(*paths)
    with opened:
        return len(opened.ranks)


def test_folders_patterns_and_lists_are_reports(folder: Path) -> None:
    for named in (folder, str(folder), f"{folder}/*.sqlite", [folder / "a.sqlite"]):
        assert num_ranks(named) == 2
        traceprof.analyze(named, options=traceprof.Options(savings=False)).close()
    assert num_ranks(folder, folder / "a.sqlite", str(folder / "a.sqlite").encode()) == 2
    answers = traceprof.whatif(folder, assume=["no-sync"])
    assert len(answers.whatif.answers) == 1
    assert repr(answers) == "<Asked of a.sqlite, answers: 1>"


WRONG: tuple[Callable[[], object], ...] = (
    traceprof.analyze,
    lambda: traceprof.whatif([]),
    lambda: traceprof.analyze(5),  # type: ignore[arg-type]
    lambda: traceprof.open_run([["a"]]),  # type: ignore[list-item]
    lambda: traceprof.open_run(None),  # type: ignore[arg-type]
    lambda: traceprof.analyze(SAMPLE, jobs=0),
    lambda: traceprof.analyze(SAMPLE, jobs=True),
    lambda: traceprof.whatif(SAMPLE, jobs=1.5),  # type: ignore[arg-type]
    lambda: traceprof.analyze(SAMPLE, options={"only": 1}),  # type: ignore[arg-type]
    lambda: traceprof.whatif(SAMPLE, assume="no-sync"),
    lambda: traceprof.whatif(SAMPLE, paths_of=5),  # type: ignore[arg-type]
    lambda: traceprof.analyze(SAMPLE, listener=5),  # type: ignore[arg-type]
    lambda: traceprof.open_trace(5),  # type: ignore[arg-type]
    lambda: of().to_pandas(None),  # type: ignore[arg-type]
    lambda: traceprof.compare(SAMPLE, SAMPLE, gates="step:+2%"),
    lambda: traceprof.compare([], SAMPLE),
    lambda: traceprof.compare(SAMPLE, 5),  # type: ignore[arg-type]
    lambda: traceprof.compare([5], SAMPLE),  # type: ignore[list-item]
)


def of(**options: Any) -> Analysis:
    return traceprof.analyze(SAMPLE, options=traceprof.Options(**options))


def test_wrong_arguments(kept_text: KeptText) -> None:
    said = []
    for call in WRONG:
        with pytest.raises(UsageError) as error:
            call()
        said.append(str(error.value))
    kept_text("\n".join(said))


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_names_that_no_file_has(name: str) -> None:
    with pytest.raises(TraceFileError, match="no file has such a name; check the path"):
        traceprof.analyze(name)


def test_shown_in_a_line(analysis: Analysis, tmp_path: Path) -> None:
    num_findings = len(analysis.findings)
    start = f"<Analysis of {SAMPLE.name}, ranks: 2, findings: {num_findings}, step: "
    assert repr(analysis).startswith(start)
    both = traceprof.open_run(SAMPLE, GLOO)
    assert repr(both) == f"<RunFrames of {SAMPLE.name} and 1 more, ranks: {len(both.ranks)}>"
    both.close()
    odd = tmp_path / "a\n\x1b.sqlite"
    shutil.copy(SAMPLE, odd)
    assert "\n" not in repr(traceprof.analyze(odd))


def test_shown_in_a_notebook(tmp_path: Path) -> None:
    """All of a title is there; names from a report are text, wherever they stand."""
    path = tmp_path / "<b>&.sqlite"
    builder = TraceBuilder().kernel(0, 60).kernel(70, 90, "<script>alert(1)</script>")
    with closing(traceprof.analyze(builder.write(path))) as analysis:
        shown = analysis._repr_html_()
        findings = analysis.findings
    assert findings
    assert shown.startswith("<p>Nothing can be gained from gpu-idle, 11.1 % of the training")
    assert "<p>Analysis of &lt;b&gt;&amp;.sqlite, ranks: 1, findings: " in shown
    assert "<script" not in shown
    places = [shown.index(html.escape(finding.title, quote=False)) for finding in findings]
    assert places == sorted(places)
    assert f"<p>{len(findings)} rows " in shown


def test_what_a_thread_reads_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    is_reading, is_closed = threading.Event(), threading.Event()
    kernels = events.kernels

    def slowly(rank: Any) -> Any:
        is_reading.set()
        assert is_closed.wait(60)
        return kernels(rank)

    monkeypatch.setattr(events, "kernels", slowly)
    run = traceprof.open_run(SAMPLE)
    frames: list[Any] = []
    thread = threading.Thread(target=lambda: frames.append(run.kernels()))
    thread.start()
    assert is_reading.wait(60)
    run.close()
    is_closed.set()
    thread.join()
    assert len(frames[0]) > 0
    with pytest.raises(UsageError, match="it has been closed"):
        run.kernels()


def test_a_closed_trace_is_not_read() -> None:
    trace = traceprof.open_trace(SAMPLE)
    trace.close()
    with pytest.raises(UsageError, match="it has been closed"):
        _ = trace.operations


@pytest.mark.parametrize("name", ["nccl-serialization", "gloo"])
def test_scalars_are_means_of_steady_steps(name: str, tmp_path: Path) -> None:
    with closing(traceprof.analyze(SAMPLE.with_name(f"{name}.sqlite"))) as analysis:
        steps, scalars = analysis.to_pandas("steps"), analysis.scalars()
        save(tmp_path / "runs.db", analysis.result, "one")
    parts = ["compute_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns"]
    means = steps[steps["left_out"].isna()].groupby("rank")[["window_ns", *parts]].mean()
    expected = {"step_ns": means["window_ns"].max(), **means.mean()[parts]}
    assert {key: scalars[key] for key in expected} == pytest.approx(expected, abs=1)
    assert sum(scalars[part] for part in parts) == round(means["window_ns"].mean())
    possible_ns = scalars.get("possible_step_ns", 0)
    assert (0 < possible_ns < scalars["step_ns"]) == (name != "gloo")
    stored = stored_series(tmp_path / "runs.db")  # what `runs --format csv` writes
    row = dict(zip(stored.columns, stored.rows[0], strict=True))
    assert {key: row[key] for key in expected} == {key: scalars[key] for key in expected}


def test_scalars_without_a_rank(analysis: Analysis) -> None:
    assert replace(analysis.result, verdict=Verdict()).scalars == {}


@pytest.mark.parametrize(
    ("name", "module"),
    [("whatif", "traceprof.replay.savings"), ("compare", "traceprof.comparison.ask")],
)
def test_a_public_function_has_its_signature(name: str, module: str) -> None:
    import_module(module)
    function = getattr(traceprof, name)
    assert inspect.isfunction(function)
    assert "options" in inspect.signature(function).parameters
