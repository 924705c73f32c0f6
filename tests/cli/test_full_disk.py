"""Writers on a disk that is full: the result is whole, or not there at all, and one line says why.

Each is given a disk of 5 sizes up to what it takes, of 20 by `make verify`, and one with room.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.commands import Outcome, in_process
from tests.support.recording import profile
from tests.support.selection import long_after, missing, rows_long_after
from tests.support.traces import SAMPLE, SAMPLES
from traceprof import open_trace
from traceprof.cli.main import EXIT_DONE, EXIT_ERROR

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="file systems in memory are Linux's"),
]

_FEW, _MANY = 5, 20  # sizes
_WITH_ROOM = 5  # times what is there at the end: a database has all it changes twice meanwhile
_PAGE = 4096
_ROOM = 64 << 20  # more than any of these writes
OUT = "{out}"


class Disk:
    """A file system in memory."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.path = path
        done = self._mount(f"size={_ROOM}")
        if done.returncode:
            missing(f"no file system can be mounted ({done.stderr.strip()})", "mount")

    def _mount(self, options: str) -> subprocess.CompletedProcess[str]:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.path)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def resize(self, num_bytes: int) -> None:
        done = self._mount(f"remount,size={num_bytes}")
        assert done.returncode == 0, done.stderr

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)

    def used(self) -> int:
        state = os.statvfs(self.path)
        return (state.f_blocks - state.f_bfree) * state.f_frsize

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.path)): path.read_bytes()
            for path in sorted(self.path.rglob("*"))
            if path.is_file()
        }

    def clear(self) -> None:
        for path in self.path.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "disk")
    yield disk
    disk.unmount()


def walk(
    disk: Disk, write: Callable[[], Outcome], num_sizes: int, before: Callable[[], object] | None
) -> None:
    """Give a writer less room than it takes, some times, and more each time.

    Args:
        disk: where it writes.
        write: the writer.
        num_sizes: of the disk.
        before: puts what is there before it writes.
    """
    sizes = [_ROOM]
    num_refused, num_done = 0, 0
    whole: dict[str, bytes] = {}
    for number in range(num_sizes + 2):
        disk.resize(_ROOM)
        disk.clear()
        if before is not None:
            before()
        was_there, used = disk.files(), disk.used()
        if number:
            taken = sizes[0] - used  # at the end: while it writes it may take more
            share = number if number <= num_sizes else _WITH_ROOM * num_sizes
            disk.resize(used + max(_PAGE, taken * share // num_sizes))
        outcome = write()
        disk.resize(_ROOM)
        assert "Traceback" not in outcome.err
        if number == 0:
            assert outcome.code == EXIT_DONE, outcome.err
            whole = disk.files()
            sizes[0] = disk.used()
        elif outcome.code == EXIT_DONE:
            num_done += 1
            assert disk.files().keys() == whole.keys()
        else:
            num_refused += 1
            assert outcome.code == EXIT_ERROR
            assert disk.files() == was_there, outcome.err
            assert "cannot" in outcome.err
            assert outcome.err.count("\n") == 1, outcome.err
    assert num_refused >= num_sizes // 4
    assert num_done


def answered(*arguments: str | Path) -> Callable[[], Outcome]:
    return lambda: in_process(*arguments)


@pytest.mark.parametrize(
    "arguments",
    rows_long_after(
        1,
        (
            [("export", "parquet", "-o", OUT, SAMPLE)],
            [("export", "csv", "-o", OUT, SAMPLE)],
            [("export", "perfetto", "-o", OUT, SAMPLE)],
            [("analyze", "--save", OUT, SAMPLE)],
            [("analyze", "--format", "json", "-o", OUT, SAMPLE)],
            [("analyze", "--format", "html", "-o", OUT, SAMPLE)],
            [("analyze", "--format", "markdown", "-o", OUT, SAMPLE)],
            [("whatif", "--format", "json", "-o", OUT, SAMPLE)],
            [("compare", "--format", "html", "-o", OUT, SAMPLE, SAMPLE)],
        ),
    ),
    ids=lambda words: "-".join(words[:3]),
)
@pytest.mark.parametrize("is_there", [False, True], ids=["new", "there"])
@pytest.mark.parametrize("num_sizes", long_after(1, [_FEW, _MANY]))
def test_commands(
    disk: Disk, arguments: Sequence[str | Path], num_sizes: int, *, is_there: bool
) -> None:
    filled = [disk.path / "out" if word is OUT else word for word in arguments]
    is_folder = "csv" in arguments or "parquet" in arguments
    before = small(disk.path / "out", arguments, is_folder=is_folder) if is_there else None
    walk(disk, answered(*filled), num_sizes, before)


def small(out: Path, arguments: Sequence[str | Path], *, is_folder: bool) -> Callable[[], object]:
    """Return what puts an earlier result there: a store of one run, or something shorter."""
    if "--save" in arguments:
        return answered("analyze", "--save", out, SAMPLES[0])

    def put() -> None:
        if is_folder:
            out.mkdir()
        (out / f"steps.{arguments[1]}" if is_folder else out).write_text("before")

    return put


@pytest.mark.long
def test_conversions(
    disk: Disk, tmp_path: Path, nsys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "reports" / "r.nsys-rep"
    report.parent.mkdir()
    program = "for number in range(3000): open('/dev/null').close()"
    flags = ["--trace=osrt", "--sample=none", "--cpuctxsw=none", "--osrt-threshold=0"]
    profile(nsys, flags, report, [sys.executable, "-c", program])
    monkeypatch.setattr(tempfile, "tempdir", str(disk.path))
    whole = in_process("info", report)
    assert whole.code == EXIT_DONE, whole.err
    with closing(open_trace(report)):
        taken = disk.used()
    codes = []
    for share in (*range(_MANY + 1), _WITH_ROOM * _MANY):
        disk.resize(max(_PAGE, taken * share // _MANY))
        outcome = in_process("info", report)
        codes.append(outcome.code)
        if outcome.code == EXIT_DONE:
            assert outcome.out.startswith(whole.out.rstrip("\n")[:-1]), outcome.out
        else:
            assert "no space is left for its export in" in outcome.line, (share, outcome.err)
        assert disk.files() == {}
    assert {*codes} == {EXIT_DONE, EXIT_ERROR}
