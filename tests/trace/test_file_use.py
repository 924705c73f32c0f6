"""Files that are closed when no thread reads them any more."""

import threading
from pathlib import Path

import pytest

from traceprof.errors import UsageError
from traceprof.trace.file_use import FileUse


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
