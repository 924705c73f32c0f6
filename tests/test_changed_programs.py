"""Programs whose kernels are more, fewer, twice, elsewhere or in another order: all commands.

Whatever a program does, each command gives an answer, or says in one line why it has none: never
an internal error, neither as a whole nor of a part.
"""

import contextlib
import io
import logging
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from dashboards.address import Address
from dashboards.pages.registry import PAGES
from dashboards.view import View
from tests.support.fuzz import programs
from tests.support.selection import long_after
from traceprof.analysis import analyze
from traceprof.cli.main import EXIT_DONE, EXIT_ERROR, _run
from traceprof.errors import TraceprofError

_PER_TEST = 25
_EVERY = 5  # of the exports that are made degenerate in one way


@pytest.mark.slow
@pytest.mark.parametrize("first", long_after(2, [0, 10, 20, 30]))
def test_forty_changed_programs(tmp_path: Path, first: int) -> None:
    assert_answers(tmp_path, first, 10, 3)


@pytest.mark.long
@pytest.mark.parametrize("first", range(40, 2040, _PER_TEST))
def test_two_thousand_changed_programs(tmp_path: Path, first: int) -> None:
    assert_answers(tmp_path, first, _PER_TEST, len(COMMANDS))


@pytest.mark.slow
@pytest.mark.parametrize("way", long_after(1, programs.DEGENERATE))
def test_degenerate_programs(tmp_path: Path, way: str) -> None:
    wrong, turn = [], [*programs.DEGENERATE].index(way)
    for export in programs.exports(tmp_path)[turn % _EVERY :: _EVERY]:
        path = programs.degenerate(export, tmp_path / "degenerate.sqlite", way)
        for command in (*COMMANDS, *OF_PARTS):
            said, _ = asked(command, [path], export, tmp_path / "out")
            if "internal error" in said.lower() or "traceback" in said.lower():
                wrong.append(f"{export.stem}\n{command}: {said[-2000:]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_a_step_that_launched_nothing_is_not_replayed(tmp_path: Path) -> None:
    (export,) = [path for path in programs.exports(tmp_path) if path.stem == "optimizer"]
    path = tmp_path / "degenerate.sqlite"
    programs.degenerate(export, path, "two operations of a kind")
    said, is_answer = asked(("export", "perfetto"), [path], export, tmp_path / "out")
    assert is_answer, said
    assert "no critical path" in said


def assert_answers(folder: Path, first: int, num: int, num_commands: int) -> None:
    """Change programs, half of them as traces of torch.profiler, and give each to commands."""
    exports = programs.exports(folder)
    wrong, num_answers = [], 0
    for number in range(first, first + num):
        chosen = random.Random(f"program {number}")
        export = chosen.choice(exports)
        path = folder / f"{number}.sqlite"
        what = f"{number}: {export.stem}, {programs.changed_program(export, path, chosen)}"
        paths = [path] if number % 2 else programs.as_profiler_traces(path)
        for place in range(num_commands):
            command = COMMANDS[(number * num_commands + place) % len(COMMANDS)]
            said, is_answer = asked(command, paths, export, folder / f"{number}-out")
            num_answers += is_answer
            if "internal error" in said.lower() or "traceback" in said.lower():
                wrong.append(f"{what}\n{command}: {said[-2000:]}")
    assert not wrong, "\n".join(wrong)
    # A program of which nothing is left has no answer.
    assert num_answers > 0.8 * num * num_commands


COMMANDS = (
    ("analyze",),
    ("analyze", "--format", "json", "--no-period"),
    ("info",),
    ("whatif",),
    ("whatif", "--assume", "no-sync"),
    ("compare",),
    ("export", "csv"),
    ("export", "perfetto"),
    ("dashboard",),
)


OF_PARTS = (
    ("analyze", "--steps", "0:3"),
    ("analyze", "--time-range", "0ms:1ms"),
    ("whatif", "--path-of", "1"),
)


def asked(
    command: Sequence[str], paths: Sequence[Path], export: Path, out: Path
) -> tuple[str, bool]:
    """Return what a command says about a program, and whether it is an answer."""
    if command[0] == "dashboard":
        return shown(paths)
    arguments = [*command, *map(str, paths)]
    if command[0] == "compare":
        before = paths[0].parent if len(paths) > 1 else paths[0]
        arguments = ["compare", str(before), str(export)]
    if command[0] == "export":
        arguments += ["-o", str(out.with_name(f"{out.name}-{command[1]}"))]
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    logging.getLogger("traceprof").addHandler(handler)
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = _run(arguments)
    logging.getLogger("traceprof").removeHandler(handler)
    assert code in {EXIT_DONE, EXIT_ERROR}, said.getvalue()
    return said.getvalue(), code == EXIT_DONE


def shown(paths: Sequence[Path]) -> tuple[str, bool]:
    """Build each page of the dashboard; return what it says instead, and whether all are there."""
    try:
        analysis = analyze(*paths)
    except TraceprofError as error:
        return str(error), False
    try:
        for page in PAGES:
            page.layout(View(analysis, Address(page.PATH)))
    except Exception as error:  # noqa: BLE001  (whatever it is, it is told)
        return f"internal error: {page.TITLE}: {error!r}", False
    finally:
        analysis.close()
    return "", True
