"""A few damaged exports; `python -m tests.fuzz` tries them by the thousand."""

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Outcome
from tests.support.fuzz import commands, corpus, running
from tests.support.fuzz.running import Fuzzer, results
from traceprof.cli.main import EXIT_DONE

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="files are given to child processes"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


@pytest.mark.slow
def test_few_damaged_files(tmp_path: Path, restart_watchdog: Callable[[], None]) -> None:
    assert_answers(tmp_path, restart_watchdog, 2)


@pytest.mark.slow
def test_inputs_that_were_answered_wrongly_once(
    tmp_path: Path, restart_watchdog: Callable[[], None]
) -> None:
    wrong, names = [], [*corpus.kept()]
    with closing(Fuzzer(tmp_path, 1)) as fuzzer:
        for name in names:
            problem = fuzzer.problem(corpus.read(name), tmp_path / name.stem)
            restart_watchdog()
            if problem is not None:
                wrong.append(f"{name.stem}: {problem}")
    assert len(names) >= 6
    assert not wrong, "\n".join(wrong)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 10_000, 250))
def test_ten_thousand_damaged_files(
    tmp_path: Path, restart_watchdog: Callable[[], None], first: int
) -> None:
    assert_answers(tmp_path, restart_watchdog, 250, first)


def assert_answers(
    folder: Path, restart_watchdog: Callable[[], None], num: int, first: int = 0
) -> None:
    tried = []
    for result in results(folder, num, 1, first):
        tried.append(result)
        restart_watchdog()
    assert len(tried) == num
    assert [result for result in tried if result.problem is not None] == []


def raising(path: Path) -> None:
    raise ValueError(path)


def endless(path: Path) -> None:
    while path.name:
        pass


def large(path: Path) -> None:
    assert path.name
    bytearray(running.MAX_MB * 1_200_000)[::4096] = b"1" * -(-running.MAX_MB * 1_200_000 // 4096)


def littering(path: Path) -> None:
    path.with_name("litter").touch()


def accepting_all(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:4096] + bytes(len(data) - 4096))


@pytest.mark.long
@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (raising, "ValueError"),
        (endless, "more than 1 s of CPU time"),
        (large, " MB"),
        (littering, "left behind: ['litter']"),
        (accepting_all, "accepted, and SQLite says: "),
    ],
)
def test_wrong_answers_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Callable[[Path], None], problem: str
) -> None:
    def tried(path: Path, *_: object, **__: Any) -> Outcome:
        answer(path)
        return Outcome(EXIT_DONE, "", "")

    monkeypatch.setattr(running, "tried", tried)
    monkeypatch.setattr(running, "MAX_S", 1)
    monkeypatch.setattr(running, "_KINDS", ("sql",))
    whole = ["analyze", "--format", "json", commands.REPORT]
    monkeypatch.setattr(commands, "chosen_arguments", lambda *_: whole)
    # One after the other, until one was damaged where it matters.
    problems = (result.problem or "" for result in results(tmp_path, 9, 1))
    assert any(problem in text for text in problems)
