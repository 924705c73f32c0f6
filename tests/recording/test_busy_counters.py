"""Counters that another nsys of the machine holds: with a program that stands in for nsys."""

import os
from pathlib import Path

import pytest

from tests.support.traces import SAMPLE
from traceprof.recording import record as recording
from traceprof.recording.machine import Machine
from traceprof.recording.plan import make_plan
from traceprof.recording.record import Recorded, record

ALL = Machine(has_gpu=True, may_count=True, may_sample=True, network_cards=())
AGAIN = "again without counters of the GPUs' links, which another nsys may be recording"
# Stays until nsys has ended, as the real one does.
LAUNCHER = '"$@"; while kill -0 $PPID 2> /dev/null; do sleep 0.01; done\n'
# Fails as 2023.4 does where another samples the GPUs; else its launcher starts the command.
NSYS = """
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
    script = NSYS.format(
        sample=SAMPLE, launcher=launcher, mark=folder / "mark", busy=busy, start=start, end=end
    )
    for path, text in ((folder / "nsys", script), (launcher, LAUNCHER)):
        path.write_text(f"#!/bin/sh\n{text}")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("traceprof.recording.plan.look_at_machine", lambda _: ALL)


def recorded(tmp_path: Path) -> tuple[Recorded, str, str]:
    """Record a command; return the outcome, the marks that it made, and what was said."""
    said, mark = list[str](), tmp_path / "mark"
    words = ["sh", "-c", f"echo ran >> {mark}; exit 0"]
    outcome = record(make_plan(words, tmp_path / "out", {}, tool="nsys"), said.append)
    for pid, name, _ in recording._children().get(os.getpid(), []):
        if name == "nsys-launcher":
            os.waitpid(pid, 0)
    return outcome, mark.read_text() if mark.exists() else "", "\n".join(said)


FAILS = "exit 1"


def test_a_recording_starts_again_without_counters_that_another_nsys_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, busy=FAILS)
    outcome, ran, said = recorded(tmp_path)
    assert (outcome.status, outcome.is_whole, ran) == (0, True, "ran\n")
    assert said.count("before it started the command") == said.count(AGAIN) == 1


@pytest.mark.parametrize("end", ["exit 1", 'touch "$report"'])
def test_a_command_that_has_run_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    programs(tmp_path, monkeypatch, busy=":", end=end)
    outcome, ran, said = recorded(tmp_path)
    assert (outcome.status, outcome.is_whole, ran) == (int(end == FAILS), end != FAILS, "ran\n")
    assert "before it started" not in said


@pytest.mark.parametrize("has_started", [True, False])
def test_a_recording_of_another_nsys_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_started: bool
) -> None:
    new, old = tmp_path / "nsys-report-0001.qdstrm", tmp_path / "nsys-report-0002.qdstrm"
    writes = f"touch {new} {old}; exit 1"
    programs(tmp_path, monkeypatch, busy=":", start="" if has_started else writes, end=writes)
    old.touch()
    outcome, _, said = recorded(tmp_path)
    assert (outcome.reports, outcome.is_whole) == ([], False)
    assert (str(new) in said) == has_started
    assert str(old) not in said
    assert ("before it started" in said) != has_started
