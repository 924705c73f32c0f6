"""The table of assumptions: what is made from it; buckets of another size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.commands import run
from tests.support.traces import SAMPLE_FOLDER, analysis_of
from traceprof.analyses.gpu_idle import BY_CAUSE, FASTEST_LAUNCHES
from traceprof.analyses.registry import FINDINGS
from traceprof.replay.assumptions import run_change
from traceprof.replay.assumptions.assumption import combined, parse
from traceprof.replay.assumptions.run_change import _Buckets, opened_buckets
from traceprof.replay.assumptions.table import ASSUMPTIONS, Entry, markdown

PAGE = Path(__file__).parents[3] / "docs" / "whatif.md"


@pytest.mark.parametrize("entry", ASSUMPTIONS, ids=[entry.form for entry in ASSUMPTIONS])
def test_every_entry_can_be_assumed(entry: Entry) -> None:
    changes = [one for one in (entry.change, entry.run_change) if one is not None]
    assert len(changes) == (entry.form != "equal-stages")  # which no replay answers
    assert parse(entry.form).text == entry.form
    (atom,) = parse(entry.form).atoms
    assert atom.entry is entry
    assert bool(atom.value) == (entry.value is not None)


def test_forms_are_unique() -> None:
    assert len({entry.form for entry in ASSUMPTIONS}) == len(ASSUMPTIONS)


def test_the_documentation_has_the_table() -> None:
    assert markdown() in PAGE.read_text(encoding="utf-8"), "run `python docs/assumptions.py`"


def test_the_help_lists_every_assumption(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run("whatif", "--help") == 0
    text = capsys.readouterr().out
    for entry in ASSUMPTIONS:
        assert any(entry.form in line and entry.meaning[:40] in line for line in text.splitlines())


def test_findings_name_assumptions_of_the_table() -> None:
    forms = {entry.form for entry in ASSUMPTIONS}
    named = {*BY_CAUSE.values(), FASTEST_LAUNCHES, "equal-stages"}
    for kind in FINDINGS.values():
        if not callable(kind.removed_by):
            named |= set(kind.removed_by)
    assert len(named) > 5
    assert named <= forms


def test_waits_are_a_limit_and_those_for_kernels_are_not() -> None:
    """What a program waits for may come to wait elsewhere."""
    assert parse("no-sync").is_bound
    assert not parse("no-kernel-sync").is_bound
    assert parse("no-sync + no-kernel-sync").is_bound


def test_conditions_are_listed_once() -> None:
    both = combined([parse("send-order=ready-first")] * 2 + [parse("launch=0")])
    parts = ("sends are launched at the same times as before", "what a graph costs is left out")
    with analysis_of(SAMPLE_FOLDER / "host-sync.sqlite") as analysis:
        assert both.condition(analysis) == "; ".join(parts)
    assert both.is_bound


@pytest.mark.parametrize(
    ("cap", "expected"),
    [
        (50, [1, 0, 1, 0, 1, 0]),
        (51, [1, 0, 0, 1, 1, 0]),  # a bucket is closed by what fills it
        (25, [1, 1, 1, 1, 1, 1]),
        (100, [1, 0, 0, 0, 1, 0]),  # and by the step's end
    ],
)
def test_where_buckets_are_closed(cap: float, expected: list[int]) -> None:
    sizes = np.array([25, 25, 25, 20, 25, 25])
    begins_step = np.array([True, False, False, False, True, False])
    assert opened_buckets(sizes, begins_step, cap) == expected


def buckets(sizes: list[int], took_ns: list[float]) -> _Buckets:
    none = np.empty((len(sizes), 1), np.int64)
    is_first = np.arange(len(sizes)) == 0
    return _Buckets(np.array(sizes), is_first, none, none, np.array(took_ns, np.float64))


@pytest.mark.parametrize(
    ("sizes", "took_ns", "latencies"),
    [
        ([100, 100], [5000.0, 9000.0], (7_000.0, 20_000.0)),  # a convention: sizes show nothing
        ([1000, 1000, 9000, 9000], [9_000.0, 11_000.0, 18_000.0, 18_000.0], (9_000.0,)),
        ([1000, 9000], [1_000.0, 9_001.0], (0.0,)),
    ],
)
def test_the_latency_is_what_sizes_show(
    sizes: list[int], took_ns: list[float], latencies: tuple[float, ...]
) -> None:
    made = buckets(sizes, took_ns)
    assert run_change._latencies(made) == pytest.approx(latencies, abs=0.5)


def test_bytes_take_what_is_left_beyond_the_latency() -> None:
    made = buckets([1000, 2000, 4000], [6_000.0, 7_000.0, 5_000.0])
    assert run_change._ns_per_byte(made, 5_000.0) == pytest.approx(1.0)  # of 1, 1 and 0
