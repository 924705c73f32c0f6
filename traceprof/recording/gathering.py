"""Several recorders of one job: each says when its reports lie in the folder, and one analyses.

What they share is the folder, on a file system that all of them see.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from traceprof.recording.job import Job

MAX_WAIT_S = 600.0
MAX_WAIT_ENDED_S = 20.0
"""For the others, when the job was told to end: whoever told it does not wait long."""

_PAUSE_S = 0.2
_PREFIX = ".recorded-"


def begin(folder: Path, job: Job) -> None:
    """Forget what this recorder, and the one that analysed, said of an earlier job."""
    for file in (_note(folder, job), folder / f"{_PREFIX}analysed"):
        file.unlink(missing_ok=True)


def done(folder: Path, job: Job, reports: Sequence[Path]) -> None:
    """Say that this recorder's reports lie in the folder, perhaps none."""
    note = _note(folder, job)
    partial = note.with_name(f"{note.name}.part")
    partial.write_text(json.dumps([report.name for report in reports]))
    partial.replace(note)


def gather(
    folder: Path, job: Job, *, was_ended: bool, say: Callable[[str], None]
) -> list[Path] | None:
    """Return the reports of all recorders, once they are there; None where another one analyses.

    The first analyses. Where it is not known which one that is, the last one to be done does.

    Args:
        folder: where all reports are.
        job: of this recorder.
        was_ended: whether a signal ended the job.
        say: told what is waited for.
    """
    if job.index not in {0, None}:
        return None
    last = time.monotonic() + (MAX_WAIT_ENDED_S if was_ended else MAX_WAIT_S)
    notes = _notes(folder)
    if job.index == 0 and len(notes) < job.num_recorders:
        say(f"waiting for the reports of {job.num_recorders - len(notes)} others in {folder}")
        while len(notes) < job.num_recorders and time.monotonic() < last:
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
    # Listed anew: on a network file system another machine's files show only then.
    return [
        path
        for path in folder.iterdir()
        if path.name.startswith(_PREFIX)
        and path.suffix != ".part"
        and path.name != f"{_PREFIX}analysed"
    ]


def _claims(folder: Path) -> bool:
    """Return whether this is the one that analyses, of several that see all reports."""
    try:
        os.close(os.open(folder / f"{_PREFIX}analysed", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
