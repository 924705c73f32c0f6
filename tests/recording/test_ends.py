"""How a recording ends, with the real nsys and torch: what is left, and the exit code."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import output_of
from tests.support.recording import MAX_RECORDINGS, Recording, has_failed, recorded
from tests.support.selection import long_after

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "support" / "programs" / "unmarked.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
EXIT_ERROR = 2
MAX_S = 120
NO_SPACE = "no space left"
TRAINING = """
import sys, torch

layer = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(int(sys.argv[1])):
    layer(torch.ones(4)).sum().backward()
    optimizer.step()
"""
COPIES = """
from contextlib import nullcontext
import instrument, torch

with instrument.step():
    torch.ones(4).copy_(torch.zeros(4))
"""


pytestmark = pytest.mark.usefixtures("nsys")
with_each_tool = pytest.mark.parametrize("tool", long_after(1, ["nsys", "torch"]))


def started(tmp_path: Path, tool: str, folder: Path | None = None) -> Recording:
    """Start a training that does not end, and wait until it is in its twentieth step."""
    for attempt in range(MAX_RECORDINGS):
        told = tmp_path / f"told-{attempt}"
        told.mkdir(parents=True)
        target = folder or tmp_path / f"out-{attempt}"
        recording = Recording(target, tool, *TORCHRUN, str(PROGRAM), "1000000", "0", str(told))
        last = time.monotonic() + MAX_S
        while not (told / "step-20").exists() and recording.process.poll() is None:
            assert time.monotonic() < last
            time.sleep(0.02)
        if recording.process.poll() is None:
            return recording
        assert has_failed(recording.end()[1])
    pytest.fail("nsys failed again and again")


def running(folder: Path) -> list[int]:
    """Return the ranks that run with this folder as an argument."""
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = command.read_bytes().split(b"\0")
        except OSError:
            continue
        if str(PROGRAM).encode() in words and str(folder).encode() in b" ".join(words):
            found.append(int(command.parent.name))
    return found


@pytest.fixture
def training(tmp_path: Path) -> tuple[str, ...]:
    """Return the command of a training of one process, without the number of its steps."""
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    return sys.executable, str(script)


@with_each_tool
def test_nothing_recorded_is_an_error_with_its_reason(tmp_path: Path, tool: str) -> None:
    code, printed = recorded(tmp_path / "out", tool, "true")
    assert (code, "nothing was recorded" in printed) == (EXIT_ERROR, True), printed
    assert ("or step that instrument.step marks" in printed) == (tool == "torch"), printed


@pytest.mark.long  # steps that are reached: tests/recording/test_record.py
@pytest.mark.parametrize("tool", ["nsys", "torch"])
def test_steps_that_are_not_reached_are_named(
    tmp_path: Path, tool: str, training: tuple[str, ...]
) -> None:
    code, printed = recorded(tmp_path / "out", tool, *training, "5", options=("--steps", "20:30"))
    assert (code, "did it reach steps 20:30?" in printed) == (EXIT_ERROR, True), printed
    assert "steps 20:30 were to be recorded, and the process made 5 steps" in printed


@pytest.mark.long  # the marks themselves: tests/instrument/test_recording.py
@pytest.mark.parametrize("is_marked", [True, False])
def test_a_program_without_passes_is_recorded_from_a_marked_step_on(
    tmp_path: Path, is_marked: bool
) -> None:
    script = tmp_path / "copies.py"
    script.write_text(COPIES if is_marked else COPIES.replace("instrument.step", "nullcontext"))
    recording = Recording(tmp_path / "out", "torch", sys.executable, str(script))
    code, printed = recording.end()
    assert (code, len(recording.names)) == ((0, 1) if is_marked else (EXIT_ERROR, 0)), printed
    assert ("or step that instrument.step marks" in printed) == (not is_marked), printed


@pytest.mark.long  # with a program that ends as nsys does: tests/recording/test_import.py
@pytest.mark.parametrize("tool", ["nsys", "torch"])
def test_a_failure_of_nsys_itself_is_not_the_status_of_the_command(
    tmp_path: Path, tool: str
) -> None:
    """Nsight's exit status is 1 both where it fails and where the command's is 1."""
    said = "nsys ended with exit status 1 before it started the command"
    fails = {"nsys": EXIT_ERROR, "torch": 1}[tool]
    for temporary, status in ((tmp_path / "missing", fails), (tmp_path, 1)):
        code, printed = recorded(tmp_path / "out", tool, "sh", "-c", "exit 1", temporary=temporary)
        assert (code, said in printed) == (status, status == EXIT_ERROR), printed


ENDS = {
    "as timeout sends them": [(signal.SIGTERM, 0), (signal.SIGTERM, 0.001)],
    "interrupts as timeout sends them": [(signal.SIGINT, 0), (signal.SIGINT, 0.001)],
    "twice in 0.5 s": [(signal.SIGINT, 0), (signal.SIGINT, 0.5)],
    "twice in 5 s": [(signal.SIGINT, 0), (signal.SIGINT, 5)],
    "hangup": [(signal.SIGHUP, 0)],
}


@pytest.mark.long  # always: tests/instrument/test_recording.py and tests/recording/test_child.py
@pytest.mark.parametrize("signals", ENDS.values(), ids=ENDS)
@with_each_tool
def test_a_signal_leaves_the_recording_and_no_rank(
    tmp_path: Path, tool: str, signals: list[tuple[signal.Signals, float]]
) -> None:
    for _ in range(MAX_RECORDINGS):
        recording = started(tmp_path / str(time.monotonic_ns()), tool)
        for number, delay_s in signals:
            time.sleep(delay_s)
            recording.process.send_signal(number)
        code, printed = recording.end()
        if not has_failed(printed):
            break
    assert code not in {0, EXIT_ERROR}, printed
    assert not running(tmp_path)
    names = {name.partition(".")[2] for name in recording.names}
    # The second signal may end the export of a report, not the report.
    assert names - {"sqlite"} == {"nsys-rep" if tool == "nsys" else "pt.trace.json.gz"}
    analyze = [sys.executable, "-m", "traceprof", "analyze", "--format", "json"]
    document = json.loads(output_of(*analyze, recording.folder))
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1]
    for rank in range(2):
        assert len([step for step in document["steps"] if step["rank"] == rank]) >= 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a file system of 1 MB, which takes root to mount."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("no small file system can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@with_each_tool
def test_a_full_disk_is_named_and_left_clean(
    tmp_path: Path, small_disk: Path, tool: str, training: tuple[str, ...]
) -> None:
    (small_disk / "filler").write_bytes(bytes(900_000))
    # A report of nsys does not fit in there, whatever the command does.
    command = ("true",) if tool == "nsys" else (*training, "300")
    code, printed = recorded(small_disk / "out", tool, *command, temporary=tmp_path)
    assert (code, NO_SPACE in printed.lower()) == (EXIT_ERROR, True), printed
    left = [path.name for path in (small_disk / "out").iterdir()]
    assert not [name for name in left if name.startswith(".") or name.endswith(".tmp")]
    if tool == "nsys":
        assert f"nsys left a recording in {tmp_path}/" in printed
