"""Ranges reach the tool, keep no label, and never harm."""

import os
import re
import sys
from pathlib import Path

import pytest

from instrument.core import nvtx_ranges
from tests.support.commands import ended
from tests.support.databases import query
from tests.support.recording import profile
from tests.support.selection import long_after
from traceprof import labels

COUNTS = """
import ctypes, os, resource
from instrument.core import nvtx_ranges
def counts(*names):
    tool = ctypes.CDLL(os.environ["NVTX_INJECTION64_PATH"])
    return [ctypes.c_long.in_dll(tool, name).value for name in names]
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
def write(numbers, num_buckets=8):
    for number in numbers:
        text = f"all_reduce bytes=26214400 dtype=float32 group=0 rank=3 seq={number}"
        nvtx_ranges.push(nvtx_ranges.message(text))
        nvtx_ranges.pop()
        bucket = nvtx_ranges.prepare(f"bucket index={number % num_buckets} last=1")
        nvtx_ranges.end(nvtx_ranges.start(bucket))
"""


def run(code: str, **environment: str) -> str:
    kept = {key: value for key, value in os.environ.items() if key != nvtx_ranges.VARIABLE}
    done = ended(sys.executable, "-c", code, env=kept | environment)
    assert done.returncode == 0, done.stderr
    return (done.stdout + done.stderr).strip()


def test_only_an_attached_tool_records(tool: Path) -> None:
    code = "from instrument.core import nvtx_ranges; print(nvtx_ranges.is_recording())"
    attached = {nvtx_ranges.VARIABLE: str(tool)}
    assert run(code) == "False"
    assert run(code, **attached) == "True"
    assert run(code, **attached, NVTX_DISABLE="1") == "False"
    assert run(code, **attached, NVTX_DISABLE="0") == "True"
    without = run("import sys; sys.modules['nvtx'] = None; " + code, **attached)
    assert without.splitlines() == [
        "False",
        "no range is recorded: pip install nvtx, which writes them",
    ]


@pytest.mark.parametrize("library", ["/nonexistent/tool.so", "libc.so.6"])
def test_a_tool_that_cannot_be_used_is_a_warning(library: str) -> None:
    code = "from instrument.core import nvtx_ranges; print(nvtx_ranges.is_recording())"
    lines = run(code, **{nvtx_ranges.VARIABLE: library}).splitlines()
    assert lines[0] == "False"
    assert lines[1].startswith("a tool is attached that cannot record NVTX ranges: ")
    assert len(lines) == 2


def test_nothing_happens_where_nobody_records() -> None:
    code = """
from instrument.core import nvtx_ranges
nvtx_ranges.push(nvtx_ranges.message("a"))
nvtx_ranges.pop()
nvtx_ranges.end(nvtx_ranges.start(nvtx_ranges.prepare("b")))
"""
    assert run(code) == ""


def test_running_numbers_are_not_registered_and_other_texts_up_to_a_bound(tool: Path) -> None:
    code = (
        COUNTS
        + """
write(range(1000))
before = peak()
write(range(1000, 51_000), 1 << 20)
print(peak() - before, *counts("pushed", "popped", "started", "ended", "registered"))
"""
    )
    printed = run(code, **{nvtx_ranges.VARIABLE: str(tool)}).splitlines()
    growth, *counted = map(int, printed[0].split())
    assert printed[1:] == ["over 10000 different texts: new ones have no sizes"]
    assert growth < 20_000  # KiB; if all were registered, they would take 60 MB
    # Texts of buckets differ by `index`; without sizes they differ, too.
    num_texts = nvtx_ranges.MAX_TEXTS + nvtx_ranges.MAX_SHORT_TEXTS + 1
    assert counted == [51_000] * 4 + [num_texts]


def test_beyond_the_bound_texts_have_no_sizes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written: list[tuple[str, int | None]] = []
    functions = nvtx_ranges.Functions(
        print, print, print, print, lambda *made: written.append(made)
    )
    monkeypatch.setattr(nvtx_ranges, "_functions", functions)
    monkeypatch.setattr(nvtx_ranges, "_attributes", functions.attributes)
    monkeypatch.setattr(nvtx_ranges, "MAX_TEXTS", 2)
    monkeypatch.setattr(nvtx_ranges, "MAX_SHORT_TEXTS", 1)
    monkeypatch.setattr(nvtx_ranges, "_texts", {})
    monkeypatch.setattr(nvtx_ranges, "_short", set())
    for number in range(4):
        nvtx_ranges.message(f"all_reduce bytes={number} group=0 seq={number}")
    nvtx_ranges.message("all_reduce bytes=0 group=0 seq=4")
    nvtx_ranges.message("one too many")
    assert written == [
        *((f"all_reduce bytes={size} group=0 seq=", number) for number, size in enumerate("01??")),
        ("all_reduce bytes=0 group=0 seq=", 4),
        (labels.UNNAMED, None),
    ]
    assert caplog.messages == ["over 2 different texts: new ones have no sizes"]


@pytest.mark.parametrize(
    ("text", "written"), [("step 1", b"step "), ("é", "é".encode()), ("\ud800", b"?")]
)
@pytest.mark.parametrize("way", long_after(1, ["message", "prepare"]))
def test_texts_arrive_whatever_they_are(tool: Path, text: str, written: bytes, way: str) -> None:
    code = (
        COUNTS
        + f"""
nvtx_ranges.push(nvtx_ranges.{way}({text!r}))
tool = ctypes.CDLL(os.environ["NVTX_INJECTION64_PATH"])
print(*((ctypes.c_char * 9).in_dll(tool, name).value for name in ("last_text", "last_domain")))
"""
    )
    assert run(code, **{nvtx_ranges.VARIABLE: str(tool)}) == f"{written!r} b'traceprof'"


def test_nothing_grows_under_nsight_systems_that_captures_nothing(
    nsys: str, tmp_path: Path
) -> None:
    code = (
        COUNTS
        + """
write(range(1000))
before = peak()
write(range(1000, 101_000))
print("grown by", peak() - before, "KiB")
"""
    )
    options = ["--trace=nvtx", "--sample=none", "--cpuctxsw=none"]
    options += ["--capture-range=nvtx", "--nvtx-capture=never@never"]
    done = profile(nsys, options, tmp_path / "report", [sys.executable, "-c", code])
    (growth,) = re.findall(r"grown by (\d+) KiB", done.stdout)
    assert int(growth) < 2000


@pytest.mark.parametrize("version", long_after(1, ["installed", "0.2.11"]))
def test_nsight_systems_records_every_range(
    nsys: str, tmp_path: Path, version: str, request: pytest.FixtureRequest
) -> None:
    own = [] if version == "installed" else [str(request.getfixturevalue("nvtx_0_2_11"))]
    paths = os.pathsep.join([*own, str(Path(__file__).parents[3])])
    code = """
import threading
from instrument.core import nvtx_ranges
prepared = nvtx_ranges.prepare("all_reduce bytes=8 seq=0")
message = nvtx_ranges.message
nvtx_ranges.push(message("all_reduce bytes=8 seq=0"))
handle = nvtx_ranges.start(prepared)
nvtx_ranges.pop()
nvtx_ranges.push(prepared)
nvtx_ranges.pop()
thread = threading.Thread(target=nvtx_ranges.end, args=(handle,))
thread.start()
thread.join()
handle = nvtx_ranges.start(message("all_reduce bytes=8 seq=1"))
nvtx_ranges.push(message("all_reduce bytes=8 seq=1"))
nvtx_ranges.push(message("inside"))
nvtx_ranges.pop()
nvtx_ranges.pop()
nvtx_ranges.end(handle)
"""
    report = tmp_path / "report"
    options = ["--trace=nvtx", "--sample=none", "--cpuctxsw=none", "--export=sqlite"]
    environment = {**os.environ, "PYTHONPATH": paths}
    profile(nsys, options, report, [sys.executable, "-c", code], environment)
    rows = query(
        report.with_suffix(".sqlite"),
        "SELECT eventType, value || COALESCE(int64Value, ''), end IS NOT NULL,"
        " globalTid = endGlobalTid"
        " FROM NVTX_EVENTS LEFT JOIN StringIds ON StringIds.id = textId"
        " WHERE eventType IN (59, 60) ORDER BY start",
    )
    label, other = "all_reduce bytes=8 seq=0", "all_reduce bytes=8 seq=1"
    assert [row[:3] for row in rows] == [
        *((59, label, 1), (60, label, 1), (59, label, 1)),
        *((60, other, 1), (59, other, 1), (59, "inside", 1)),
    ]
    assert rows[1][3] == 0
