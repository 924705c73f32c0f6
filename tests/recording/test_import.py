"""What nsys failed to import, and counters that another nsys holds: with programs that stand in."""

import os
import sys
from pathlib import Path

import pytest

from tests.support.selection import known
from tests.support.traces import SAMPLE
from traceprof.recording import record as recording
from traceprof.recording.machine import NO_SPACE, Machine
from traceprof.recording.nsys import UNKNOWN_CALL, Nsys, find, find_importer, import_recorded
from traceprof.recording.plan import make_plan
from traceprof.recording.record import NOT_IMPORTED, Recorded, record

RECORDED, REPORT = "what was recorded", "NVIDIA Tegra Profiler Report"
# Records, and leaves what it recorded as it is; exports.
NSYS = f"""
case "$1" in
  export) for word; do case $word in --output=*) cp '{SAMPLE}' "${{word#*=}}";; esac; done;;
  profile) for word; do case $word in --output=*) printf '{RECORDED}' > "${{word#*=}}.qdstrm";; esac
           [ "$word" = --help ] && printf '  -o, --output=\\n'; done;;
esac
exit 0
"""
WORKS = """
while [ $# -gt 0 ]; do
  case $1 in --input-file) from=$2;; --output-file) to=$2;; esac; shift
done
[ "$(cat "$from")" = 'what was recorded' ] && printf 'NVIDIA Tegra Profiler Report' > "$to"
"""
# As an importer of CUDA 12.4 prints of a training with CUDA 13, which leaves few GPU events.
DROPS = """
while [ $# -gt 0 ]; do [ "$1" = --output-file ] && echo some > "$2"; shift; done
echo '**** Analysis failed with:
[QuadDCommon::tag_message*] = Unknown runtime API function index: 468' >&2
"""
FAILS = "echo 'Importing' ; echo 'the file is damaged' >&2; exit 1"


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}")
    path.chmod(0o755)
    return path


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "nsight-systems"
    nsys = program(folder / "target-linux-x64" / "nsys", NSYS)
    links = tmp_path / "bin"
    links.mkdir()
    (links / "nsys").symlink_to(nsys)
    monkeypatch.setenv("PATH", f"{links}:/usr/bin:/bin")
    return folder


@pytest.mark.parametrize(
    ("tool", "newest", "is_named"),
    [("nsys", "12.4", True), ("nsys", "13.0", False), ("torch", "12.4", False)],
)
def test_an_nsys_older_than_cuda_is_named_before_the_command_starts(
    installed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tool: str,
    newest: str,
    is_named: bool,
) -> None:
    (installed / "target-linux-x64" / f"libcupti.so.{newest}").touch()
    monkeypatch.setattr("traceprof.recording.training.Training.cuda", "13.0")
    monkeypatch.setattr("traceprof.recording.nvidia_smi.gpus", lambda: ([], "580.65.06"))
    said = list[str]()
    record(make_plan([sys.executable, "-c", "pass"], tmp_path / "out", {}, tool=tool), said.append)
    begin = "GPU work may be lost: this nsys knows CUDA up to 12.4, and PyTorch is"
    assert [line.startswith(begin) for line in said].count(True) == is_named
    assert said[0].startswith(begin) is is_named
    assert len([*(tmp_path / "out").glob("doctor-*.json")]) == 1


def recorded(tmp_path: Path, *, is_whole: bool = False) -> tuple[Path, list[Path] | None, str]:
    """Record a command; return the folder, the reports, and what was said."""
    folder, said = tmp_path / "out", list[str]()
    plan = make_plan([sys.executable, "-c", "pass"], folder, {}, tool="nsys")
    status, reports, was_whole = record(plan, said.append)
    assert (status, was_whole) == (0, is_whole)
    assert not plan.capture.exists() or not plan.unimported.exists()
    return folder, reports, "\n".join(said)


def test_it_is_imported_again_by_the_importer_of_nsys(installed: Path, tmp_path: Path) -> None:
    importer = program(installed / "host-linux-x64" / "QdstrmImporter", WORKS)
    folder, reports, said = recorded(tmp_path, is_whole=True)
    (capture,) = folder.glob("*.nsys-rep")
    assert capture.read_text() == REPORT
    assert reports == [capture.with_suffix(".sqlite")]
    assert f"{NOT_IMPORTED}: {importer} imports it again" in said
    assert f"it is in {capture} now" in said
    assert not [*folder.glob("*.qdstrm")]


@pytest.mark.parametrize(
    ("importer", "said", "not_said"),
    [
        (FAILS, "that failed, too: the file is damaged", "nothing was recorded"),
        (DROPS, UNKNOWN_CALL, "record again"),
        (None, "QdstrmImporter, in the folder host-linux-x64", "imports it again"),
        (None, UNKNOWN_CALL, "imports it again"),
    ],
)
def test_what_is_not_imported_is_left(
    installed: Path, tmp_path: Path, importer: str | None, said: str, not_said: str
) -> None:
    if importer is not None:
        program(installed / "host-linux-x64" / "QdstrmImporter", importer)
    folder, reports, printed = recorded(tmp_path)
    (left,) = folder.glob("*.qdstrm")
    assert left.read_text() == RECORDED
    assert (reports, [*folder.glob("*.nsys-rep")]) == ([], [])
    assert said in printed
    assert not_said not in printed


@pytest.mark.parametrize("library", ["", "usr/lib/nsight-systems", "lib/nsight-systems"])
@pytest.mark.parametrize("place", ["nsys", "bin/nsys"])
def test_the_importer_is_found_by_the_place_of_nsys(
    tmp_path: Path, library: str, place: str
) -> None:
    nsys = program(tmp_path / "opt" / place, "")
    assert find_importer(str(nsys)) is None
    importer = program(tmp_path / "opt" / library / "host-linux-x64" / "QdstrmImporter", "")
    importer.chmod(0o644)
    assert find_importer(str(nsys)) is None
    importer.chmod(0o755)
    assert find_importer(str(nsys)) == importer
    script = program(tmp_path / "bin" / "nsys", f'exec {nsys} "$@"\n')
    assert find_importer(str(script)) == importer


@pytest.mark.parametrize("start", ["link", 'A=/b exec "{}" "$@"\n', "exec env A=/b/nsys {} x\n"])
def test_the_newest_cuda_that_nsys_knows(tmp_path: Path, start: str) -> None:
    nsys = program(tmp_path / "opt" / "target-linux-x64" / "nsys", "")
    path = tmp_path / "nsys"
    if start == "link":
        path.symlink_to(nsys)
    else:
        program(path, start.format(nsys))
    assert Nsys(str(path)).newest_cuda == ""
    for version in ("9.2", "12.4", "12.10", "11.8", "12", "2025.1.1"):
        nsys.with_name(f"libcupti.so.{version}").touch()
    assert Nsys(str(path)).newest_cuda == "12.10"
    # As what a bin folder has, which may be a program of its own.
    assert Nsys(str(program(tmp_path / "opt" / "bin" / "nsys", ""))).newest_cuda == "12.10"


@pytest.mark.parametrize("script", ['exec "$A{}" "$@"\n', "# exec {} x\n", "exec {}/../nsys x\n"])
def test_a_script_that_cannot_be_followed(tmp_path: Path, script: str) -> None:
    nsys = program(tmp_path / "opt" / "target-linux-x64" / "nsys", "")
    nsys.with_name("libcupti.so.12.4").touch()
    path = program(tmp_path / "a" / "b" / "c" / "nsys", script.format(nsys))
    assert Nsys(str(path)).newest_cuda == ""


def test_a_script_that_starts_itself_is_followed_to_no_end(tmp_path: Path) -> None:
    path = tmp_path / "nsys"
    program(path, f"exec {path} x\n")
    assert find_importer(str(path)) is None


def test_an_importer_that_does_not_start(tmp_path: Path) -> None:
    left = tmp_path / "a.qdstrm"
    left.write_text(RECORDED)
    importer = tmp_path / "QdstrmImporter"
    importer.write_text("#!/nowhere/sh\n")
    importer.chmod(0o755)
    said = known(import_recorded(importer, left, tmp_path / "a.nsys-rep"))
    assert said.startswith("it does not start")
    assert left.exists()


@pytest.mark.usefixtures("nsys")
def test_the_installed_nsys_has_an_importer() -> None:
    nsys = known(find())
    assert find_importer(nsys.path) is not None


ALL = Machine(has_gpu=True, may_count=True, may_sample=True, network_cards=())
AGAIN = "again without counters of the GPUs' links, which another nsys may be recording"
# Stays until nsys has ended, as the real one does.
LAUNCHER = '"$@"; while kill -0 $PPID 2> /dev/null; do sleep 0.01; done\n'
# Fails as 2023.4 does where another samples the GPUs; else its launcher starts the command.
BUSY_NSYS = """
case "$1 $2" in
  'profile --help') printf '  -o, --output=\\n  --gpu-metrics-device=\\n'; exit;;
  export*) for word; do case $word in --output=*) cp '{sample}' "${{word#*=}}";; esac; done; exit;;
  profile*) ;;
  *) exit;;
esac
for word; do
  case $word in --gpu-metrics-device=*) {busy};; --output=*) report=${{word#*=}}.nsys-rep;; esac
done
{start}
while [ "$1" != sh ]; do shift; done
'{launcher}' "$@" &
until [ -s '{mark}' ]; do sleep 0.01; done
{end}
"""


def programs(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    busy: str,
    start: str = "",
    end: str = 'touch "$report"',
) -> None:
    """Install an nsys, and its launcher, on a machine with a GPU."""
    launcher = folder / "nsys-launcher"
    script = BUSY_NSYS.format(
        sample=SAMPLE, launcher=launcher, mark=folder / "mark", busy=busy, start=start, end=end
    )
    for path, text in ((folder / "nsys", script), (launcher, LAUNCHER)):
        path.write_text(f"#!/bin/sh\n{text}")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("traceprof.recording.plan.look_at_machine", lambda _: ALL)


def outcome_of(tmp_path: Path) -> tuple[Recorded, str, str]:
    """Record a command; return the outcome, the marks that it made, and what was said."""
    said, mark = list[str](), tmp_path / "mark"
    words = ["sh", "-c", f"echo ran >> {mark}; exit 0"]
    outcome = record(make_plan(words, tmp_path / "out", {}, tool="nsys"), said.append)
    for pid, name, _ in recording._children().get(os.getpid(), []):
        if name == "nsys-launcher":
            os.waitpid(pid, 0)
    return outcome, mark.read_text() if mark.exists() else "", "\n".join(said)


def test_a_recording_starts_again_without_counters_that_another_nsys_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, busy="exit 1")
    outcome, ran, said = outcome_of(tmp_path)
    assert (outcome.status, outcome.is_whole, ran) == (0, True, "ran\n")
    assert said.count("before it started the command") == said.count(AGAIN) == 1


@pytest.mark.parametrize("end", ["exit 1", 'touch "$report"'])
def test_a_command_that_has_run_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    programs(tmp_path, monkeypatch, busy=":", end=end)
    outcome, ran, said = outcome_of(tmp_path)
    assert (outcome.status, outcome.is_whole, ran) == (
        int(end == "exit 1"),
        end != "exit 1",
        "ran\n",
    )
    assert "before it started" not in said


@pytest.mark.parametrize("has_started", [True, False])
def test_a_recording_of_another_nsys_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_started: bool
) -> None:
    new, old = tmp_path / "nsys-report-0001.qdstrm", tmp_path / "nsys-report-0002.qdstrm"
    writes = f"touch {new} {old}; exit 1"
    programs(tmp_path, monkeypatch, busy=":", start="" if has_started else writes, end=writes)
    old.touch()
    outcome, _, said = outcome_of(tmp_path)
    assert (outcome.reports, outcome.is_whole) == ([], False)
    assert (str(new) in said) == has_started
    assert str(old) not in said
    assert NO_SPACE not in said
    assert ("before it started" in said) != has_started
