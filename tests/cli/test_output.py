"""`-o`: a file appears whole or not at all."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder
from tests.support.commands import run
from tests.support.selection import long_after
from traceprof.cli.main import EXIT_DONE, EXIT_ERROR

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


def test_a_full_disk_leaves_the_old_file_as_it_was(
    report: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = out / "result.json"
    with small_disk(500):
        code = run("analyze", "--jobs", "1", "--format", "json", "-o", target, report)
    assert code == EXIT_ERROR
    assert target.read_text() == OLD
    assert names(out) == [target.name]  # nothing left behind
    assert f"cannot write {target}" in capsys.readouterr().err


def test_a_result_replaces_the_old_one_with_its_permissions(report: Path, out: Path) -> None:
    target, link = out / "result.json", out / "link.json"
    target.chmod(0o640)
    link.symlink_to(target.name)
    with target.open() as reader:  # who still reads the old one goes on reading it
        assert run("analyze", "--format", "json", "-o", link, report) == EXIT_DONE
        assert reader.read() == OLD
    assert link.is_symlink()
    assert json.loads(target.read_text())["schema"] == "traceprof.analysis/1"
    assert target.stat().st_mode & 0o777 == 0o640
    assert names(out) == ["link.json", "result.json"]


def test_a_new_file_has_the_permissions_of_any_new_file(report: Path, out: Path) -> None:
    (out / "other").touch()
    assert run("analyze", "-o", out / "new.txt", report) == EXIT_DONE
    assert (out / "new.txt").stat().st_mode == (out / "other").stat().st_mode


@pytest.mark.parametrize("output_format", long_after(1, ["html", "text", "json"]))
def test_a_dash_is_stdout(
    report: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    output_format: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("analyze", "--format", output_format, report) == EXIT_DONE
    expected = capsys.readouterr().out
    assert expected
    assert run("analyze", "--format", output_format, "-o", "-", report) == EXIT_DONE
    assert capsys.readouterr().out == expected
    assert not (tmp_path / "-").exists()
