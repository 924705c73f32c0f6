"""Commands on sample traces print what the README and the pages of docs/ show."""

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import blocks, run, shows
from traceprof.cli.main import EXIT_DONE, cli

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE_NAMES = ("compare", "export", "symptoms", "whatif")
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [README, *((ROOT / "docs" / f"{name}.md").read_text() for name in PAGE_NAMES)]


def sessions() -> list[tuple[str, str]]:
    """Return (command, output) of every console block about a sample."""
    found = []
    for block in [block for page in PAGES for block in blocks(page, "console")]:
        command, _, output = block.partition("\n")
        if "sample_traces/" in command:
            found.append((command.removeprefix("$ "), output))
    return found


@pytest.mark.parametrize(("command", "output"), sessions())
def test_commands_print_what_the_page_shows(
    command: str,
    output: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "sample_traces").symlink_to(ROOT / "sample_traces")
    monkeypatch.chdir(tmp_path)
    first, _, others = command.removeprefix("traceprof ").partition("; ")
    assert run(*shlex.split(first)) == EXIT_DONE
    subprocess.run(others, shell=True, check=True)  # noqa: S602  (commands of our own README)
    printed = "".join(capfd.readouterr())
    assert shows(output, printed), printed


def test_lines_left_out_are_marked() -> None:
    assert shows("a\n…\nd\n", "a\nb\nc\nd\n")
    assert shows("…\nd\n…\n", "d\n")
    assert not shows("a\nd\n", "a\nb\nd\n")
    assert not shows("…\nb\n", "a\nb\nc\n")


def test_every_command_is_in_the_readme() -> None:
    for name in cli.list_commands(None):  # type: ignore[arg-type]
        assert f"`traceprof {name} " in README


def test_the_readme_is_read_in_minutes() -> None:
    assert len(README.splitlines()) <= 150
