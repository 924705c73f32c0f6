"""How a recording ends, with the real nsys and torch: what is left, and the exit code."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nsys import has_failed

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "support" / "programs" / "unmarked.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
EXIT_ERROR = 2
MAX_S = 120
MAX_RECORDINGS = 3

pytestmark = [
    pytest.mark.usefixtures("nsys"),
    pytest.mark.parametrize("tool", ["nsys", "torch"]),
]


class Recording:
    """A `traceprof record` that runs; one that fails for a reason of nsys is started again."""

    def __init__(
        self,
        folder: Path,
        tool: str,
        *command: str,
        options: tuple[str, ...] = (),
        temporary: Path | None = None,
    ) -> None:
        words = ["record", "-o", str(folder), "--with", tool, *options, "--", *command]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        if temporary is not None:  # where nsys leaves what it cannot move
            environment["TMPDIR"] = str(temporary)
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "traceprof", *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self) -> tuple[int, str]:
        """Return its exit code and what it printed."""
        printed, _ = self.process.communicate(timeout=MAX_S)
        return self.process.returncode, printed

    @property
    def names(self) -> set[str]:
        """The files that it left, without those about the machine and the page."""
        names = {path.name for path in self.folder.iterdir()}
        return {name for name in names if not name.startswith("doctor-")} - {"report.html"}


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


def ended(
    folder: Path,
    tool: str,
    *command: str,
    options: tuple[str, ...] = (),
    temporary: Path | None = None,
) -> tuple[int, str]:
    """Record a command, and again where nsys fails for a reason of its own; return how it ended."""
    for _ in range(MAX_RECORDINGS):
        shutil.rmtree(folder, ignore_errors=True)
        code, printed = Recording(
            folder, tool, *command, options=options, temporary=temporary
        ).end()
        if not has_failed(printed):
            break
    return code, printed


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


@pytest.mark.parametrize(
    ("command", "steps", "reason"),
    [
        (["true"], None, "nothing was recorded"),
        ([*TORCHRUN, str(PROGRAM), "5", "0"], "20:30", "did it reach steps 20:30?"),
    ],
)
def test_nothing_recorded_is_an_error_with_its_reason(
    tmp_path: Path, tool: str, command: list[str], steps: str | None, reason: str
) -> None:
    options = () if steps is None else ("--steps", steps)
    code, printed = ended(tmp_path / "out", tool, *command, options=options)
    assert (code, reason in printed) == (EXIT_ERROR, True), printed
    if steps:
        assert "steps 20:30 were to be recorded, and the process made 5 steps" in printed
    else:
        code, _ = ended(tmp_path / "failed", tool, "sh", "-c", "exit 7")
        assert code == 7


def test_a_failure_of_nsys_itself_is_not_the_status_of_the_command(
    tmp_path: Path, tool: str
) -> None:
    """Nsight's exit status is 1 both where it fails and where the command's is 1."""
    said = "nsys ended with exit status 1 before it started the command"
    fails = {"nsys": EXIT_ERROR, "torch": 1}[tool]
    for temporary, status in ((tmp_path / "missing", fails), (tmp_path, 1)):
        code, printed = ended(tmp_path / "out", tool, "sh", "-c", "exit 1", temporary=temporary)
        assert (code, said in printed) == (status, status == EXIT_ERROR), printed


SIGNALS = [
    pytest.param([(signal.SIGINT, 0), (signal.SIGINT, 0.001)], id="as timeout sends them"),
    pytest.param(
        [(signal.SIGINT, 0), (signal.SIGINT, 0.5)], marks=pytest.mark.long, id="twice in 0.5 s"
    ),
    pytest.param(
        [(signal.SIGINT, 0), (signal.SIGINT, 5)], marks=pytest.mark.long, id="twice in 5 s"
    ),
    pytest.param([(signal.SIGHUP, 0)], marks=pytest.mark.long, id="hangup"),
]


@pytest.mark.parametrize("signals", SIGNALS)
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
    done = subprocess.run(
        [*analyze, str(recording.folder)], capture_output=True, text=True, check=True
    )
    document = json.loads(done.stdout)
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


def test_a_full_disk_is_named_and_left_clean(tmp_path: Path, small_disk: Path, tool: str) -> None:
    (small_disk / "filler").write_bytes(bytes(900_000))
    command = (*TORCHRUN, str(PROGRAM), "300", "0")
    code, printed = ended(small_disk / "out", tool, *command, temporary=tmp_path)
    assert (code, "no space left" in printed.lower()) == (EXIT_ERROR, True), printed
    left = [path.name for path in (small_disk / "out").iterdir()]
    assert not [name for name in left if name.startswith(".") or name.endswith(".tmp")]
    if tool == "nsys":
        assert f"nsys left a recording in {tmp_path}/" in printed
