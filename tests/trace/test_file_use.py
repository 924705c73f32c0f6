"""Reports in a folder, each once; files that are closed when no thread reads them any more."""

import json
import os
import sys
import threading
from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder
from tests.support.commands import export
from tests.support.commands import outcome_of as process
from traceprof.errors import UsageError
from traceprof.trace.open import reports_in
from traceprof.trace.sqlite.database import FileUse


@pytest.fixture
def closed() -> list[str]:
    return []


@pytest.fixture
def use(closed: list[str]) -> FileUse:
    return FileUse(Path("a.sqlite"), lambda: closed.append("closed"))


def test_what_nobody_uses_is_closed_at_once(use: FileUse, closed: list[str]) -> None:
    with use:
        pass
    use.close()
    assert closed == ["closed"]
    with pytest.raises(UsageError, match="it has been closed"), use:
        pass


def test_what_is_used_is_closed_after_the_last_block(use: FileUse, closed: list[str]) -> None:
    with use:
        with use:
            use.close()
            with use:  # it is still open
                assert closed == []
        assert closed == []
    assert closed == ["closed"]


def test_another_thread_holds_it_open(use: FileUse, closed: list[str]) -> None:
    is_open, is_over = threading.Event(), threading.Event()

    def work() -> None:
        with use:
            is_open.set()
            is_over.wait()

    thread = threading.Thread(target=work)
    thread.start()
    is_open.wait()
    use.close()
    assert closed == []
    is_over.set()
    thread.join()
    assert closed == ["closed"]


def test_a_report_stays_open_until_the_process_ends(tmp_path: Path) -> None:
    # Threads of the dashboard may read it until then: what runs last of `atexit` still finds it.
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 1}
    kineto = tmp_path / "trace.json"
    kineto.write_text(json.dumps({"traceEvents": [event | {"args": {"device": 0, "stream": 7}}]}))
    code = """
import atexit, sys
from os.path import realpath
def print_open():
    links = [realpath(f"/proc/self/fd/{file}") for file in range(64)]
    print([links.count(path) for path in sys.argv[1:]])
atexit.register(print_open)
from pathlib import Path
from traceprof.trace.open import open_trace
reports = [open_trace(Path(path)) for path in sys.argv[1:]]
"""
    done = process(sys.executable, "-c", code, kineto, export(tmp_path))
    assert (done.out, done.err) == ("[1, 2]\n", "")  # SQLite has the export open, too


CAPTURE = b"NVIDIA Tegra Profiler Report and what follows"


def names(folder: Path) -> list[str]:
    return [path.name for path in reports_in(folder)]


def report(path: Path) -> Path:
    return TraceBuilder().kernel(0, 10).write(path)


def test_reports_are_told_by_content_and_sorted_by_number(tmp_path: Path) -> None:
    for name in ("rank_10.sqlite", "rank_2.sqlite", "rank_1.db", ".hidden.sqlite"):
        report(tmp_path / name)
    (tmp_path / "truth.json").write_text("{}")
    (tmp_path / "train.log").write_text("SQLite format 3")  # which alone begins none
    (tmp_path / "below").mkdir()
    report(tmp_path / "below" / "rank_3.sqlite")
    (tmp_path / "folder.sqlite").mkdir()
    assert names(tmp_path) == ["rank_1.db", "rank_2.sqlite", "rank_10.sqlite"]


@pytest.mark.parametrize("suffix", [".nsys-rep", ".qdrep"])
def test_a_capture_beside_its_export_counts_once(tmp_path: Path, suffix: str) -> None:
    report(tmp_path / "a.sqlite")
    (tmp_path / f"a{suffix}").write_bytes(CAPTURE)
    (tmp_path / f"b{suffix}").write_bytes(CAPTURE)
    (tmp_path / "b.sqlite").touch()  # an export that was interrupted
    assert names(tmp_path) == ["a.sqlite", f"b{suffix}"]


def test_what_is_damaged_is_not_passed_over(tmp_path: Path) -> None:
    report(tmp_path / "a.sqlite")
    (tmp_path / "b.sqlite").touch()
    (tmp_path / "c.nsys-rep").write_bytes(b"noise")
    (tmp_path / "d.sqlite").symlink_to("nowhere")
    os.mkfifo(tmp_path / "e.sqlite")
    os.mkfifo(tmp_path / "f")
    assert names(tmp_path) == ["a.sqlite", "b.sqlite", "c.nsys-rep", "d.sqlite", "e.sqlite"]
