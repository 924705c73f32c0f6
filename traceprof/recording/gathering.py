"""Coordination of several recorders of one job: each marks its reports as done, one analyses.

They share only the folder, on a file system that all of them see.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

from traceprof.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from traceprof.recording.job import Job

MAX_WAIT_S = 600.0
MAX_WAIT_ENDED_S = 20.0
"""The wait for the others after a signal to end: its sender does not wait long."""

_PAUSE_S = 0.2
_PREFIX = ".recorded-"


def begin(folder: Path, job: Job) -> None:
    """Remove the marks that this recorder, and the one that analysed, left in an earlier job."""
    for file in (_note(folder, job), folder / f"{_PREFIX}analysed"):
        file.unlink(missing_ok=True)


def done(folder: Path, job: Job, reports: Sequence[Path]) -> None:
    """Mark this recorder's reports, perhaps none, as done, where others wait for them."""
    if job.num_recorders == 1:
        return
    note = _note(folder, job)
    partial = note.with_name(f"{note.name}.part")
    try:
        partial.write_text(json.dumps([report.name for report in reports]))
        partial.replace(note)
    finally:
        partial.unlink(missing_ok=True)


def gather(
    folder: Path,
    job: Job,
    reports: Sequence[Path],
    *,
    was_ended: Callable[[], bool],
    say: Callable[[str], None],
) -> list[Path] | None:
    """Wait for the reports of all recorders and return them; None if another one analyses.

    The first recorder analyses; if it is unknown which one is the first, the last one to finish.

    Args:
        folder: of all reports.
        job: of this recorder.
        reports: of this recorder.
        was_ended: returns whether a signal has ended the job.
        say: called with messages about the wait.
    """
    if job.num_recorders == 1:
        return list(reports)
    if job.index not in {0, None}:
        return None
    begin_s = time.monotonic()

    def may_wait() -> bool:
        max_s = MAX_WAIT_ENDED_S if was_ended() else MAX_WAIT_S
        return time.monotonic() < begin_s + max_s

    notes = _notes(folder)
    if job.index == 0 and len(notes) < job.num_recorders:
        say(f"waiting for {counted(job.num_recorders - len(notes), 'other report')} in {folder}")
        while len(notes) < job.num_recorders and may_wait():
            time.sleep(_PAUSE_S)
            notes = _notes(folder)
        if len(notes) < job.num_recorders:
            say(f"{job.num_recorders - len(notes)} of {job.num_recorders} reports did not come")
    if job.index is None and (len(notes) < job.num_recorders or not _claims(folder)):
        return None
    names = sorted({name for note in notes for name in json.loads(note.read_text())})
    for note in notes:
        note.unlink(missing_ok=True)
    return [folder / name for name in names]


def _note(folder: Path, job: Job) -> Path:
    return folder / f"{_PREFIX}{job.name}"


def _notes(folder: Path) -> list[Path]:
    # Listed again: only then a network file system shows the files of other machines.
    return [
        path
        for path in folder.iterdir()
        if path.name.startswith(_PREFIX)
        and path.suffix != ".part"
        and path.name != f"{_PREFIX}analysed"
    ]


def _claims(folder: Path) -> bool:
    """Return whether this recorder analyses, of several that see all reports."""
    try:
        os.close(os.open(folder / f"{_PREFIX}analysed", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
