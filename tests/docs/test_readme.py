"""The commands of the README and of docs/export.md do what these pages show."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import run
from traceprof.cli.main import EXIT_DONE, cli

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXPORT = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
_CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sessions() -> list[tuple[str, str]]:
    """Return (command, output) of every console block."""
    found = []
    for block in _CONSOLE.findall(README) + _CONSOLE.findall(EXPORT):
        command, _, output = block.partition("\n")
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
    assert "".join(capfd.readouterr()) == output


def test_every_command_is_in_the_readme() -> None:
    for name in cli.list_commands(None):  # type: ignore[arg-type]
        assert f"`traceprof {name} " in README
