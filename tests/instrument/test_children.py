"""Processes that a script starts itself have ranges, where they communicate."""

import gzip
import json
import multiprocessing
import os
import shutil
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from instrument import torch_trace
from instrument.children import VARIABLE
from instrument.core import nvtx_ranges, steps
from tests.support.commands import ended, output_of
from tests.support.selection import missing

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PTH = ROOT / "instrument" / "traceprof_instrument.pth"
PROGRAM = ROOT / "tests" / "support" / "programs" / "spawned.py"
FORKED = PROGRAM.with_name("unmarked.py")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment that has the file, and all of this one's."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    shutil.copy(PTH, packages)
    paths = [str(ROOT), sysconfig.get_path("purelib")]
    (packages / "_paths.pth").write_text("\n".join(paths))
    return folder / "bin" / "python"


def run(python: Path, *arguments: str, **environment: str) -> str:
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return output_of(python, *arguments, env=kept | environment)


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "variables", "said"),
    [
        ([], {VARIABLE: "1"}, "True"),
        ([], {VARIABLE: "0"}, "False"),
        ([], {}, "False"),
        (["-m", "instrument"], {}, "True"),
    ],
)
def test_spawned_ranks_are_instrumented(
    python: Path,
    tool: Path,
    tmp_path: Path,
    command: list[str],
    variables: dict[str, str],
    said: str,
) -> None:
    environment = {nvtx_ranges.VARIABLE: str(tool), **variables}
    run(python, *command, str(PROGRAM), str(tmp_path), "1", **environment)
    answers = [(tmp_path / f"rank-{rank}").read_text() for rank in range(2)]
    assert answers == [said, "False"]


@pytest.mark.long
def test_spawned_ranks_record(python: Path, tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    recorder = {"TRACEPROF_RECORD_WITH": "torch", "TRACEPROF_RECORD_TO": str(tmp_path / "traces")}
    run(python, str(PROGRAM), str(tmp_path), "0", **{VARIABLE: "1"}, **recorder)
    assert (tmp_path / "rank-0").read_text() == "True"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # the child does nothing else
def test_a_forked_process_ends_its_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "unwatch", (tmp_path / "ended").touch)
    end = torch_trace._end_with_forked_process
    process = multiprocessing.get_context("fork").Process(target=end)
    process.start()
    process.join()
    assert (process.exitcode, (tmp_path / "ended").exists()) == (0, True)


@pytest.mark.long  # always: the one above, and those of tests/recording/test_record.py
@pytest.mark.parametrize("command", [[], ["-m", "instrument"]], ids=["file", "command"])
def test_forked_ranks_record_to_their_last_step(
    python: Path, tmp_path: Path, command: list[str]
) -> None:
    # As notebooks' launchers start them: such a process runs no functions of atexit.
    traces = tmp_path / "traces"
    recorder = {"TRACEPROF_RECORD_WITH": "torch", "TRACEPROF_RECORD_TO": str(traces)}
    run(python, *command, str(FORKED), "3", "0", **{VARIABLE: "1"}, **recorder)
    files = sorted(path for path in traces.iterdir() if not path.name.startswith("."))
    assert [file.name.partition("-rank")[2] for file in files] == [
        f"{rank}.pt.trace.json.gz" for rank in range(2)
    ]
    for file in files:
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
        assert [event.get("name") for event in events].count("optimizer step") == 3


@pytest.mark.long
def test_forked_ranks_are_told_that_nsight_does_not_see_them(
    python: Path, tool: Path, tmp_path: Path
) -> None:
    attached = {VARIABLE: "1", nvtx_ranges.VARIABLE: str(tool)}
    done = ended(python, FORKED, "1", "0", env=os.environ | attached)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("was forked, and Nsight Systems records no ranges") == 2


def test_the_command_tells_children_by_a_variable(python: Path, tool: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import os; print(os.environ[{VARIABLE!r}])")
    attached = {nvtx_ranges.VARIABLE: str(tool)}
    assert run(python, "-m", "instrument", str(script), **attached) == "1\n"


def test_starting_imports_next_to_nothing(python: Path, tool: Path) -> None:
    def imported(**environment: str) -> set[str]:
        code = "import sys; print(*sys.modules)"
        attached = {nvtx_ranges.VARIABLE: str(tool)}
        return {*run(python, "-c", code, **attached, **environment).split()}

    unless_asked = imported()
    assert not {"instrument", "torch"} & unless_asked
    extra = imported(**{VARIABLE: "1"}) - unless_asked
    assert "instrument.children" in extra
    assert extra <= {"__future__", "instrument", "instrument.children"}


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_both_kinds_of_installation_have_the_file(tmp_path: Path, kind: str) -> None:
    code = f"import sys; from hatchling import build\nprint(build.build_{kind}({str(tmp_path)!r}))"
    done = ended(sys.executable, "-c", code, cwd=ROOT)
    if "No module named 'hatchling'" in done.stderr:
        missing("hatchling is not installed")
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(PTH.name) == PTH.read_bytes()
