"""GPU times that are off by a constant are moved to the host's clock; others are left, and said."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.changes import with_late_gpu
from tests.support.commands import run
from tests.support.selection import known, rows_long_after
from tests.support.traces import SAMPLES, analysis_of
from traceprof.analysis import Options, analyze
from traceprof.run.host_clock import clocks_disagree
from traceprof.run.opening import Rank

MS = 1_000_000
SAMPLE = {sample.stem: sample for sample in SAMPLES}


def ranks_of(path: Path) -> Iterator[Rank]:
    with closing(analyze(path, options=Options(savings=False))) as analysis:
        yield from analysis.run.ranks


@pytest.mark.parametrize(
    ("name", "by_ns"),
    rows_long_after(
        2,
        [
            ("host-sync", 325 * MS),
            ("ddp", -156 * MS),  # the host reads nothing: only operations before their launch show
            ("host-sync", -156 * MS),
            ("training", 325 * MS),
            ("training", -156 * MS),
        ],
    ),
)
def test_a_constant_is_found_and_what_is_said_is_the_same(
    name: str, by_ns: int, tmp_path: Path
) -> None:
    sample = SAMPLE[name]
    path = with_late_gpu(sample, tmp_path / "t.sqlite", by_ns)
    with analysis_of(sample) as before, closing(analyze(path)) as after:
        assert [rank.moved_ns for rank in before.run.ranks] == [0] * len(before.run.ranks)
        for rank in after.run.ranks:
            assert rank.moved_ns == pytest.approx(-by_ns, abs=10_000)
            assert not clocks_disagree(rank)
        one, two = before.result, after.result
        way = "later" if by_ns > 0 else "earlier"
        (note,) = [
            note
            for _, note in two.notes
            if "they are moved by it, which is right to about 10 µs" in note
        ]
        assert "operations of GPUs 0, 1 were" in note
        assert f"{way} than the host's clock" in note
        assert known(two.headline).step_ns == pytest.approx(known(one.headline).step_ns, abs=1)
        for first, second in zip(one.findings, two.findings, strict=True):
            assert (second.id, second.rank) == (first.id, first.rank)
            assert second.impact_fraction == pytest.approx(first.impact_fraction, abs=0.005)
            gains_ns = known(first.saving).high_ns, known(second.saving).high_ns
            assert gains_ns[1] == pytest.approx(
                gains_ns[0], abs=0.005 * known(one.headline).step_ns
            )


def test_info_names_the_windows_that_analyze_uses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = with_late_gpu(SAMPLE["host-sync"], tmp_path / "t.sqlite", 325 * MS)
    with closing(analyze(path)) as analysis:
        begins = [f"from {rank.window.start_ns / 1e9:.6f} s" for rank in analysis.run.ranks]
    assert run("info", str(path)) == 0
    text = capsys.readouterr().out
    for begin in begins:
        assert begin in text
    assert "recorded 325 ms later than the host's clock allows" in text


@pytest.mark.parametrize(("by_ns", "drift"), [(325 * MS, 0.01), (-156 * MS, 0.01)])
def test_a_clock_that_drifts_is_not_joined(by_ns: int, drift: float, tmp_path: Path) -> None:
    path = with_late_gpu(SAMPLE["host-sync"], tmp_path / "t.sqlite", by_ns, drift)
    for rank in ranks_of(path):
        assert rank.moved_ns == 0
        assert clocks_disagree(rank)


DELETE = "DELETE FROM CUPTI_ACTIVITY_KIND_"
COPIES = "UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET start = start + {0}, end = end + {0}"


@pytest.mark.parametrize(
    ("damage", "moved_ms"),
    [
        # Kernels say that the GPU is late by 325 ms, and copies that it is by 350 ms.
        (COPIES.format(25 * MS), 0),
        # The host still copies from its staging memory: the quickest launches say how late it is.
        (f"{COPIES.format(-60_000)} WHERE dstKind = 0", -325),
        # How late rank 1 is does not show, but both are late alike: only rank 0 reads its loss.
        (f"{DELETE}MEMCPY WHERE dstKind = 0 AND deviceId = 1", 0),
        (f"{DELETE}RUNTIME WHERE globalTid > (SELECT MAX(globalPid) FROM PROCESSES)", 0),
        (f"{DELETE}KERNEL WHERE rowid > 100", 0),  # too few are left
    ],
)
def test_ranks_are_moved_together_or_not_at_all(damage: str, moved_ms: int, tmp_path: Path) -> None:
    path = with_late_gpu(SAMPLE["host-sync"], tmp_path / "t.sqlite", 325 * MS)
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(damage).rowcount
    moved = [rank.moved_ns for rank in ranks_of(path)]
    assert moved == pytest.approx([moved_ms * MS] * 2, abs=10_000 if moved_ms else 0)
