"""A folder as an argument: every report directly in it, once."""

import os
from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder
from traceprof.errors import TraceFileError
from traceprof.trace.folder import reports_in

CAPTURE = b"NVIDIA Tegra Profiler Report and what follows"


def names(folder: Path) -> list[str]:
    return [path.name for path in reports_in(folder)]


def export(path: Path) -> Path:
    return TraceBuilder().kernel(0, 10).write(path)


def test_reports_are_told_by_content_and_sorted_by_number(tmp_path: Path) -> None:
    for name in ("rank_10.sqlite", "rank_2.sqlite", "rank_1.db", ".hidden.sqlite"):
        export(tmp_path / name)
    (tmp_path / "truth.json").write_text("{}")
    (tmp_path / "train.log").write_text("SQLite format 3")  # which alone begins none
    (tmp_path / "below").mkdir()
    export(tmp_path / "below" / "rank_3.sqlite")
    (tmp_path / "folder.sqlite").mkdir()
    assert names(tmp_path) == ["rank_1.db", "rank_2.sqlite", "rank_10.sqlite"]


@pytest.mark.parametrize("suffix", [".nsys-rep", ".qdrep"])
def test_a_capture_beside_its_export_counts_once(tmp_path: Path, suffix: str) -> None:
    export(tmp_path / "a.sqlite")
    (tmp_path / f"a{suffix}").write_bytes(CAPTURE)
    (tmp_path / f"b{suffix}").write_bytes(CAPTURE)
    (tmp_path / "b.sqlite").touch()  # an export that was interrupted
    assert names(tmp_path) == ["a.sqlite", f"b{suffix}"]


def test_what_is_damaged_is_not_passed_over(tmp_path: Path) -> None:
    export(tmp_path / "a.sqlite")
    (tmp_path / "b.sqlite").touch()
    (tmp_path / "c.nsys-rep").write_bytes(b"noise")
    (tmp_path / "d.sqlite").symlink_to("nowhere")
    os.mkfifo(tmp_path / "e.sqlite")
    os.mkfifo(tmp_path / "f")
    assert names(tmp_path) == ["a.sqlite", "b.sqlite", "c.nsys-rep", "d.sqlite", "e.sqlite"]


def test_a_folder_without_reports_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(TraceFileError, match="no report lies directly in this folder"):
        reports_in(tmp_path)
