"""Optional inference never ends the program: each guarded part fails in turn, in each command."""

import pkgutil
from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from pathlib import Path

import pytest

import traceprof
from dashboards.questions import PathQuestion, WhatIfQuestion, answered
from tests.support.commands import in_process, run
from tests.support.traces import SAMPLE_FOLDER
from traceprof.analyses.registry import FINDING_IDS
from traceprof.analysis import RunResult, analyze
from traceprof.documents.analysis.model import Document
from traceprof.documents.analysis.records import document
from traceprof.errors import REPORT_IT, UsageError
from traceprof.findings import NotApplicable
from traceprof.progress import UNHEARD
from traceprof.replay.results import WhatIf
from traceprof.reports import text
from traceprof.run import guard
from traceprof.run.guard import OptionalPart, collected_failures, optional

for _module in pkgutil.walk_packages(traceprof.__path__, "traceprof."):
    if not _module.name.endswith("__main__"):
        import_module(_module.name)
_EVERY = 3  # of the parts each third fails in the quick tests, too
PARTS = [
    pytest.param(
        part,
        id=f"{part.ids[0]} {part.function.__qualname__}",
        marks=[pytest.mark.long] if number % _EVERY else [],
    )
    # Workers of pytest-xdist may import modules in another order.
    for number, part in enumerate(
        sorted(guard.PARTS, key=lambda part: (part.ids, part.function.__qualname__))
    )
]
TWO_RANKS, UNMARKED = (SAMPLE_FOLDER / f"{name}.sqlite" for name in ("ddp", "exposed-waiting"))


@pytest.fixture(autouse=True)
def _caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "raises", False)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[OptionalPart], list[object]]:
    """Return a function that makes a part fail, and returns its calls."""

    def fail(part: OptionalPart) -> list[object]:
        calls: list[object] = []

        def broken(*_: object, **__: object) -> object:
            calls.append(part)
            raise IndexError("planted")

        monkeypatch.setattr(part, "function", broken)
        return calls

    return fail


@pytest.fixture(scope="module")
def whole() -> Document:
    """Return the analysis in which nothing fails."""
    return document(_analyzed(TWO_RANKS))


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_an_analysis_says_in_one_line_what_failed(
    part: OptionalPart, whole: Document, failing: Callable[[OptionalPart], list[object]]
) -> None:
    calls = failing(part)
    analysis = _analyzed(TWO_RANKS)
    written = text.render(analysis, is_verbose=True)
    found = document(analysis)
    assert found.breakdown == whole.breakdown or "period" in part.ids or "steps" in part.ids
    assert len(found.ranks) == 2
    if calls and part.ids[0] != "pictures":
        gaps = [gap for gap in found.not_applicable if gap.how_to_collect == REPORT_IT]
        assert {*part.ids} <= {gap.id for gap in gaps}
        assert all("IndexError: planted" in gap.reason for gap in gaps if gap.id in part.ids)
        assert f"{', '.join(part.ids)}" in written


def _analyzed(path: Path) -> RunResult:
    with closing(analyze(path, jobs=1)) as analysis:
        return analysis.result


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("sample", [TWO_RANKS, UNMARKED], ids=["two ranks", "unmarked"])
def test_every_command_goes_on(
    part: OptionalPart,
    sample: Path,
    tmp_path: Path,
    failing: Callable[[OptionalPart], list[object]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    failing(part)
    assert run("analyze", "--format", "html", "-o", tmp_path / "page.html", sample) == 0
    assert run("info", sample) == 0
    assert run("whatif", sample) == 0
    assert run("compare", sample, TWO_RANKS) == 0
    assert run("export", "perfetto", sample, "-o", tmp_path / "trace") == 0
    assert run("export", "csv", sample, "-o", tmp_path / "tables") == 0
    assert "Traceback" not in capsys.readouterr().err
    with closing(analyze(sample, jobs=1)) as analysis:
        replayed = answered(analysis, WhatIfQuestion(("no-sync",)), UNHEARD)
        assert isinstance(replayed, WhatIf)
        answered(analysis, PathQuestion(None), UNHEARD)


def test_every_analysis_but_the_breakdown_is_optional() -> None:
    names = [id_ for part in guard.PARTS for id_ in part.ids]
    assert {*FINDING_IDS} <= {*names}
    assert {"period", "clocks", "replay", "launched", "host-clock", "arrivals", "completeness"} <= {
        *names
    }


def test_the_command_shows_what_failed(
    failing: Callable[[OptionalPart], list[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (part,) = (part for part in guard.PARTS if part.ids == ("placed",))
    failing(part)
    command = ("analyze", "--jobs", "1", "--format", "json", TWO_RANKS)
    output = in_process(*command)
    gaps = [gap for gap in output.document["not_applicable"] if gap["id"] == "placed"]
    assert gaps == [
        {
            "id": "placed",
            "reason": "internal error: IndexError: planted",
            "how_to_collect": REPORT_IT,
            "rank": rank,
        }
        for rank in (0, 1)
    ]
    assert not output.err
    monkeypatch.setenv("TRACEPROF_TRACEBACK", "1")
    assert "IndexError: planted" in in_process(*command).err


def test_errors_for_the_user_pass() -> None:
    @optional("some", otherwise=lambda: 0)
    def wrong() -> int:
        raise UsageError("cannot", "it is wrong", "do otherwise")

    try:
        with pytest.raises(UsageError), collected_failures() as failures:
            wrong()
        assert not failures
    finally:
        guard.PARTS.pop()


def test_a_part_that_fails_again_and_again_is_named_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @optional("some", otherwise=lambda number: -number)
    def broken(number: int) -> int:
        raise ValueError("always")

    monkeypatch.setenv("TRACEPROF_TRACEBACK", "1")
    try:
        with collected_failures(rank=3) as failures:
            assert [broken(1), broken(2)] == [-1, -2]
        why = "internal error: ValueError: always"
        assert [*failures] == [NotApplicable("some", why, REPORT_IT, 3)]
        assert capsys.readouterr().err.count("ValueError: always") == 1
    finally:
        guard.PARTS.pop()
