"""Recording of a training run, up to the complete reports in the folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from traceprof.errors import TraceprofError, UsageError
from traceprof.recording import gathering
from traceprof.recording import nsys as nsys_module
from traceprof.recording.child import run_to_end
from traceprof.recording.doctor import diagnose, store, store_throttling
from traceprof.recording.plan import NSYS, Plan
from traceprof.trace.nsight.conversion import export, find_nsys

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceprof.recording.doctor import Diagnosis

NOT_IMPORTED = "nsys failed to import what it recorded itself"
"""Happens with Nsight Systems 2023.4 in about 1 % of recordings, at exit status 0."""


class Recorded(NamedTuple):
    """The outcome of a recording.

    Attributes:
        status: of the command, as a shell gives it.
        reports: of all recorders of the job; None if another recorder analyses them.
    """

    status: int
    reports: list[Path] | None


def record(plan: Plan, say: Callable[[str], None]) -> Recorded:
    """Run the command of a plan to its end, and bring its reports into the folder.

    A signal to end this process ends the command instead; the report holds what was recorded until
    then.

    Args:
        plan: what to run.
        say: called with a sentence for each event.

    Raises:
        UsageError: the folder cannot be written to, or the command does not start.
    """
    try:
        plan.folder.mkdir(parents=True, exist_ok=True)
        gathering.begin(plan.folder, plan.job)
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(f"cannot write to {plan.folder}", why, "choose another -o") from error
    diagnosis = _diagnosed(plan, say) if plan.job.is_first_here else None
    before = _traces(plan.folder)
    if plan.tool == NSYS:
        plan.capture.unlink(missing_ok=True)
        plan.unimported.unlink(missing_ok=True)
    environment = {**os.environ, **plan.variables}
    status, was_ended = run_to_end(plan.words, environment, under_nsys=plan.tool == NSYS)
    if diagnosis is not None:
        with suppress(OSError):
            store_throttling(plan.folder, diagnosis)
    is_imported = plan.tool != NSYS or _import_again(plan, say)
    reports = _exported(plan, say) if plan.tool == NSYS else _written(plan.folder, before)
    if is_imported and not reports:
        steps = "" if plan.steps is None else f" (did it reach steps {plan.steps}?)"
        say(f"nothing was recorded on {plan.job.name}{steps}")
    gathering.done(plan.folder, plan.job, reports)
    return Recorded(status, gathering.gather(plan.folder, plan.job, was_ended=was_ended, say=say))


def _diagnosed(plan: Plan, say: Callable[[str], None]) -> Diagnosis | None:
    """Store the diagnosis of this machine beside the reports; return it, None without."""
    try:
        diagnosis = diagnose()
        store(plan.folder, diagnosis)
    except (TraceprofError, OSError) as error:  # the recording is worth more
        say(f"links are not known: {error}")
        return None
    return diagnosis


def _import_again(plan: Plan, say: Callable[[str], None]) -> bool:
    """Import a recording that nsys failed to import; return whether none is left."""
    if not plan.unimported.exists():
        return True
    nsys = nsys_module.find()
    importer = None if nsys is None else nsys_module.find_importer(nsys.path)
    if importer is None:
        say(f"{NOT_IMPORTED}: {plan.unimported} is all there is; record again, or import it with")
        say("QdstrmImporter, in the folder host-linux-x64 of Nsight Systems")
        return False
    say(f"{NOT_IMPORTED}: {importer} imports it again")
    failure = nsys_module.import_recorded(importer, plan.unimported, plan.capture)
    if failure is None:
        say(f"it is in {plan.capture} now")
        return True
    say(f"that failed, too: {failure}; {plan.unimported} is all there is: record again")
    return False


def _exported(plan: Plan, say: Callable[[str], None]) -> list[Path]:
    """Export the capture of nsys; if that fails, the capture itself is the report."""
    if not plan.capture.exists():
        return []
    try:
        with tempfile.TemporaryDirectory(dir=plan.folder, prefix=".export-") as folder:
            partial = export(find_nsys(plan.capture), plan.capture, Path(folder))
            shutil.move(partial, plan.export)
    except (TraceprofError, OSError) as error:
        say(f"not exported: {error}")
        return [plan.capture]
    return [plan.export]


def _traces(folder: Path) -> dict[Path, float]:
    """Return the traces of torch.profiler in a folder, with the times of their last change."""
    files = [*folder.glob("*.pt.trace.json.gz"), *folder.glob("*.pt.trace.json")]
    return {
        path: path.stat().st_mtime
        for path in files
        if not path.name.startswith(".") and path.is_file()
    }


def _written(folder: Path, before: dict[Path, float]) -> list[Path]:
    """Return the new traces; of one that exists twice, the compressed one."""
    new = [path for path, time in _traces(folder).items() if before.get(path) != time]
    return sorted(path for path in new if path.with_name(f"{path.name}.gz") not in new)
