"""Files that are closed when no thread reads them any more."""

import json
import sys
import threading
from pathlib import Path

import pytest

from tests.support.commands import export
from tests.support.commands import outcome_of as process
from traceprof.errors import UsageError
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


def test_an_error_ends_a_block_too(use: FileUse, closed: list[str]) -> None:
    def fail() -> None:
        with use:
            use.close()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
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
