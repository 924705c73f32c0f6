"""Ranges reach the tool with every nvtx, keep no label, and never harm."""

from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from instrument.core import nvtx_ranges

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TOOL = {"NVTX_INJECTION64_PATH": "/nonexistent/tool.so"}
"""As under a tool, which takes nothing."""


def run(code: str, **environment: str) -> str:
    kept = {key: value for key, value in os.environ.items() if key not in TOOL}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=kept | environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_without_a_tool_or_nvtx_nobody_records() -> None:
    code = "from instrument.core import nvtx_ranges; print(nvtx_ranges.is_recording())"
    assert run(code) == "False"
    assert run(code, **TOOL) == "True"
    assert run(code, **TOOL, NVTX_DISABLE="1") == "False"
    assert run("import sys; sys.modules['nvtx'] = None; " + code, **TOOL) == "False"


def test_nothing_happens_where_nobody_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvtx_ranges, "_write", None)
    nvtx_ranges.push("a")
    nvtx_ranges.pop()
    nvtx_ranges.end(nvtx_ranges.start("b"), nvtx_ranges.start_and_push("c"))
    nvtx_ranges.push(nvtx_ranges.prepare("d"))


def test_distinct_labels_are_not_kept() -> None:
    code = """
import resource
from instrument.core import nvtx_ranges
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
def write(labels):
    for number in labels:
        nvtx_ranges.push(f"all_reduce bytes=26214400 dtype=float32 group=0 rank=3 seq={number}")
        nvtx_ranges.pop()
        started = nvtx_ranges.start_and_push(f"bucket index={number}")
        nvtx_ranges.pop()
        nvtx_ranges.end(nvtx_ranges.start(f"bucket index={number} last=1"), started)
write(range(1000))
before = peak()
write(range(1000, 101_000))
print(peak() - before)
"""
    assert int(run(code, **TOOL)) < 2000  # KiB; nvtx's own functions would take 70 MB


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Make the writer fail at its first range, or always; return what it has written."""

    def make(*, always: bool) -> list[str]:
        written: list[str] = []

        def push(text: str) -> str:
            written.append(text)
            if always or len(written) == 1:
                raise ValueError("cannot be written")
            return text

        def end(handles: tuple[str]) -> str:
            return push(*handles)

        writer = SimpleNamespace(
            push=push, pop=lambda: push("pop"), start=push, start_and_push=push, end=end
        )
        monkeypatch.setattr(nvtx_ranges, "_write", writer)
        monkeypatch.setattr(nvtx_ranges, "_complained", False)
        return written

    return make


def test_ranges_stay_balanced_when_a_text_cannot_be_written(
    broken: Callable[..., list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    written = broken(always=False)
    with caplog.at_level(logging.WARNING):
        nvtx_ranges.push("\ud800")
        nvtx_ranges.pop()
    assert written == ["\ud800", "?", "pop"]
    assert [record.name for record in caplog.records] == ["traceprof.instrument"]


def test_ranges_stay_balanced_when_both_of_a_text_cannot_be_written(
    broken: Callable[..., list[str]],
) -> None:
    written = broken(always=False)
    assert nvtx_ranges.start_and_push("\ud800") is None
    nvtx_ranges.pop()
    assert written == ["\ud800", "?", "pop"]


def test_nothing_raises_and_one_line_is_logged(
    broken: Callable[..., list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    broken(always=True)
    with caplog.at_level(logging.WARNING):
        nvtx_ranges.push("a")
        nvtx_ranges.pop()
        assert nvtx_ranges.start("b") is None
        nvtx_ranges.end("b")
        assert nvtx_ranges.start_and_push("b") is None
        assert nvtx_ranges.prepare("c") == "c"
    assert len(caplog.records) == 1


def test_an_unknown_nvtx_is_used_by_its_public_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, ...]] = []

    def start(text: str, domain: str) -> int:
        written.append(("start", text, domain))
        return 7

    nvtx = SimpleNamespace(
        enabled=lambda: True,
        push_range=lambda text, domain: written.append(("push", text, domain)),
        pop_range=lambda domain: written.append(("pop", domain)),
        start_range=start,
        end_range=lambda handle: written.append(("end", str(handle))),
    )
    monkeypatch.setattr(nvtx_ranges, "nvtx", nvtx)
    monkeypatch.setattr(nvtx_ranges, "_write", nvtx_ranges._writer())
    nvtx_ranges.push("a")
    nvtx_ranges.pop()
    nvtx_ranges.end(nvtx_ranges.start("b"))
    nvtx_ranges.push(nvtx_ranges.prepare("c"))
    nvtx_ranges.end(None, nvtx_ranges.start_and_push("d"))
    assert written == [
        *(("push", "a", "traceprof"), ("pop", "traceprof")),
        *(("start", "b", "traceprof"), ("end", "7")),
        ("push", "c", "traceprof"),
        *(("start", "d", "traceprof"), ("push", "d", "traceprof"), ("end", "7")),
    ]


def test_nsight_systems_records_every_range(nsys: str, tmp_path: Path) -> None:
    code = """
import threading
from instrument.core import nvtx_ranges
prepared = nvtx_ranges.prepare("all_reduce bytes=8 seq=0")
nvtx_ranges.push("all_reduce bytes=8 seq=0")
handle = nvtx_ranges.start(prepared)
nvtx_ranges.pop()
nvtx_ranges.push(prepared)
nvtx_ranges.pop()
thread = threading.Thread(target=nvtx_ranges.end, args=(handle,))
thread.start()
thread.join()
handle = nvtx_ranges.start_and_push("all_reduce bytes=8 seq=1")
nvtx_ranges.push("inside")
nvtx_ranges.pop()
nvtx_ranges.pop()
nvtx_ranges.end(handle)
"""
    report = tmp_path / "report"
    command = [nsys, "profile", "--trace=nvtx", "--sample=none", "--cpuctxsw=none"]
    command += ["--export=sqlite", f"--output={report}", sys.executable, "-c", code]
    subprocess.run(command, check=True, capture_output=True)
    with closing(sqlite3.connect(report.with_suffix(".sqlite"))) as database:
        rows = database.execute(
            "SELECT eventType, COALESCE(text, value), end IS NOT NULL, globalTid = endGlobalTid"
            " FROM NVTX_EVENTS LEFT JOIN StringIds ON StringIds.id = textId"
            " WHERE eventType IN (59, 60) ORDER BY start"
        ).fetchall()
    label, other = "all_reduce bytes=8 seq=0", "all_reduce bytes=8 seq=1"
    assert [row[:3] for row in rows] == [
        *((59, label, 1), (60, label, 1), (59, label, 1)),
        *((60, other, 1), (59, other, 1), (59, "inside", 1)),
    ]
    assert rows[1][3] == 0
