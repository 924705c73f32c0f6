"""`-o`: a file appears whole or not at all."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder
from tests.support.commands import in_process, printed
from tests.support.selection import long_after

OLD = "what was there before\n"


@pytest.fixture
def report(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return TraceBuilder().kernel(0, 250).kernel(750, 1000).write(tmp_path / "in" / "idle.sqlite")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "result.json").write_text(OLD)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def small_disk(num_bytes: int) -> Iterator[None]:
    """Have every write to a file fail after so many bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_old_file_as_it_was(report: Path, out: Path) -> None:
    target = out / "result.json"
    with small_disk(500):
        outcome = in_process("analyze", "--jobs", "1", "--format", "json", "-o", target, report)
    assert f"cannot write {target}" in outcome.line
    assert target.read_text() == OLD
    assert names(out) == [target.name]  # nothing left behind


def test_a_result_replaces_the_old_one_with_its_permissions(report: Path, out: Path) -> None:
    target, link = out / "result.json", out / "link.json"
    target.chmod(0o640)
    link.symlink_to(target.name)
    with target.open() as reader:  # who still reads the old one goes on reading it
        printed("analyze", "--format", "json", "-o", link, report)
        assert reader.read() == OLD
    assert link.is_symlink()
    assert json.loads(target.read_text())["schema"] == "traceprof.analysis/1"
    assert target.stat().st_mode & 0o777 == 0o640
    assert names(out) == ["link.json", "result.json"]


@pytest.mark.parametrize("output_format", long_after(1, ["html", "text", "json"]))
def test_a_file_has_what_stdout_has(
    report: Path, out: Path, monkeypatch: pytest.MonkeyPatch, output_format: str
) -> None:
    monkeypatch.chdir(out)
    command = ("analyze", "--format", output_format, report)
    expected = printed(*command)
    assert len(expected) > 500
    assert printed(*command, "-o", "-") == expected
    assert printed(*command, "-o", "new") == ""
    assert (out / "new").read_text() == expected
    (out / "other").touch()
    assert (out / "new").stat().st_mode == (out / "other").stat().st_mode
    assert names(out) == ["new", "other", "result.json"]
