"""Recording of a training run, up to the complete reports in the folder.

The command runs as a child to its end; signals that this process gets go to it.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

from traceprof.errors import TraceprofError, UsageError
from traceprof.labels import NOT_WRITTEN
from traceprof.recording import job
from traceprof.recording import nsys as nsys_module
from traceprof.recording.doctor import Diagnosis, diagnose, is_cuda_too_new, store, store_throttling
from traceprof.recording.machine import NO_SPACE, is_full
from traceprof.recording.plan import LINKS, NSYS, Plan
from traceprof.run.recording_cost import SUFFIX
from traceprof.trace.nsight.conversion import export, find_nsys
from traceprof.trace.programs import ending_with_parent

if TYPE_CHECKING:
    from typing_extensions import Self


_STRENGTH = {signal.SIGINT: 1, signal.SIGTERM: 2, signal.SIGHUP: 2, signal.SIGQUIT: 3}
"""Of signals that end the command. Only a stronger one than the last is passed on: the same one
again (`timeout` sends each twice) would end nsys, or PyTorch, while it writes the recording."""

_SIGNALS = (*_STRENGTH, signal.SIGUSR1, signal.SIGUSR2)
_ENDS_ALREADY = (
    "it is ending, and what was recorded is being written"
    " (Ctrl-\\, SIGQUIT, kills the training at once)"
)
_NSYS, _LAUNCHER = "nsys", "nsys-launcher"  # the names of its processes begin with these
_PR_SET_CHILD_SUBREAPER = 36  # of prctl(2)
_MAX_END_S, _PAUSE_S = 10.0, 0.05
# A wait with a limit checks some 20 times a second whether the child has ended: Python handles a
# signal that comes right before an unlimited wait only after it.
_MAX_WAIT_S = 1e9


class RunningCommand:
    """A command, and the signals that this process gets until the `with` block ends.

    `under_nsys`, nsys passes on the first signal that ends the training, and writes its report;
    further ones go to the training itself. `say` reports signals that are not passed on.
    """

    def __init__(self, *, under_nsys: bool, say: Callable[[str], None]) -> None:
        self.ended_by: int | None = None  # the number of the first signal that ends the command
        self.has_started = False  # whether the command itself runs or ran, not only nsys
        self._under_nsys = under_nsys
        self._say = say
        self._strength = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # such as by `nohup`
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # (from `signal` itself)

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run the command to its end; return its exit status as a shell gives it.

        No process of a command that fails, or that a signal ends, is left running. If this process
        is killed, the command gets SIGTERM.

        Raises UsageError: it does not start.
        """
        _adopt_orphans(True)
        try:
            # In a session of its own, so that Ctrl-C in a terminal arrives once: from here.
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                start_new_session=True,
                preexec_fn=ending_with_parent(signal.SIGTERM),  # noqa: PLW1509  (no threads here)
            )
        except OSError as error:
            why = error.strerror or str(error)
            raise UsageError(f"cannot run {command[0]}", why, "check the command") from error
        try:
            if self.ended_by is not None:  # while it started
                self._process.send_signal(_passed_on(self.ended_by))
            status = self._waited(self._process)
            if status or self.ended_by is not None:
                _end_all()
        finally:
            self._process = None
            _adopt_orphans(False)
        return status if status >= 0 else 128 - status

    def _waited(self, process: subprocess.Popen[bytes]) -> int:
        self.has_started = not self._under_nsys
        while not self.has_started:
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(_PAUSE_S)
                self.has_started = bool(_launchers(os.getpid(), _children()))  # an orphan
                return status
            # It stays, as a zombie at least, until nsys has written the report.
            self.has_started = bool(_launchers(process.pid, _children()))
        return process.wait(_MAX_WAIT_S)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        strength = _STRENGTH.get(signal.Signals(number))
        if strength is None:
            self._send(number)
            return
        is_first = self.ended_by is None
        self.ended_by = self.ended_by or number
        if strength <= self._strength or (self._process is None and not is_first):
            with suppress(RuntimeError):  # in the middle of another sentence
                self._say(_ENDS_ALREADY)
            return
        self._strength = strength
        if is_first and self._process is not None:
            self._process.send_signal(_passed_on(number))
        elif not is_first:
            self._send(signal.SIGKILL if number == signal.SIGQUIT else signal.SIGTERM)

    def _send(self, number: int) -> None:
        """Send the training a signal, not nsys."""
        if self._process is None:
            return
        if number == signal.SIGKILL:
            pids = _running(self._process.pid if self._under_nsys else os.getpid())
        elif self._under_nsys:
            children = _children()
            launchers = _launchers(self._process.pid, children)
            started = [child for pid in launchers for child in children.get(pid, [])]
            pids = [pid for pid, name, _ in started if not name.startswith(_NSYS)]
        else:
            pids = [self._process.pid]
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, number)


def _passed_on(number: int) -> int:
    """Return the signal that the command gets: nsys, and launchers, know no SIGHUP."""
    return signal.SIGTERM if number == signal.SIGHUP else number


def _adopt_orphans(does: bool) -> None:
    """Have processes whose parent ends become children of this process, so that none escapes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(does), 0, 0, 0)


def _end_all() -> None:
    """End the processes of a command that is over: by SIGTERM, later by SIGKILL."""
    for number, max_s in ((signal.SIGTERM, _MAX_END_S), (signal.SIGKILL, _MAX_END_S)):
        for pid in _running():
            with suppress(OSError):
                os.kill(pid, number)
        last = time.monotonic() + max_s
        while _running() and time.monotonic() < last:
            time.sleep(_PAUSE_S)
    for pid, _, is_over in _children().get(os.getpid(), []):
        if is_over:
            with suppress(OSError):
                os.waitpid(pid, os.WNOHANG)


def _running(parent: int | None = None) -> list[int]:
    """Return the descendants of a process, by default of this one, that are not of nsys."""
    children = _children()
    pids: list[int] = []
    waiting = [os.getpid() if parent is None else parent]
    while waiting:
        for pid, name, is_over in children.get(waiting.pop(), []):
            waiting.append(pid)
            if not is_over and not name.startswith(_NSYS):
                pids.append(pid)
    return pids


def _launchers(nsys: int, children: Mapping[int, list[tuple[int, str, bool]]]) -> list[int]:
    return [pid for pid, name, _ in children.get(nsys, []) if name.startswith(_LAUNCHER)]


def _children() -> dict[int, list[tuple[int, str, bool]]]:
    """Return all processes by their parent: number, name, and whether it is over."""
    children: dict[int, list[tuple[int, str, bool]]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            text = (folder / "stat").read_text()
            name, _, rest = text.partition("(")[2].rpartition(")")
            state, parent = rest.split()[:2]
            children.setdefault(int(parent), []).append((int(folder.name), name, state in "ZX"))
    return children


NOT_IMPORTED = "nsys failed to import what it recorded itself"
"""Happens with Nsight Systems 2023.4 in about 1 % of recordings, at exit status 0."""

_BEGINS = (
    ", which begins with the first forward or backward pass, or step that instrument.step marks"
)


class Recorded(NamedTuple):
    """The outcome of a recording."""

    # of the command, as a shell gives it; of the signal, if one ended it; 0 if nsys did not start
    # it
    status: int
    # of all recorders of the job; None if another recorder analyses them
    reports: list[Path] | None
    is_whole: bool  # whether all that this recorder was to record is in its reports


def record(plan: Plan, say: Callable[[str], None]) -> Recorded:
    """Run the command of a plan to its end, and bring its reports into the folder.

    A signal to end this process ends the command instead; the report holds what was recorded until
    then.

    Raises UsageError: the folder cannot be written to, or the command does not start.
    """
    try:
        plan.folder.mkdir(parents=True, exist_ok=True)
        job.begin(plan.folder, plan.job)
        _remove_timed(plan)
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(f"cannot write to {plan.folder}", why, "choose another -o") from error
    diagnosis = _diagnosed(plan, say) if plan.job.is_first_here else None
    before = _traces(plan.folder)
    unmoved = _unmoved()
    if plan.tool == NSYS:
        plan.capture.unlink(missing_ok=True)
        plan.unimported.unlink(missing_ok=True)
    with RunningCommand(under_nsys=plan.tool == NSYS, say=say) as child:
        status = _run(child, plan, say)
        if diagnosis is not None:
            with suppress(OSError):
                store_throttling(plan.folder, diagnosis)
        if plan.tool == NSYS:
            recordings = _unmoved() if child.has_started else {}
            left = {file: size for file, size in recordings.items() if file not in unmoved}
            reports, is_whole = _of_nsys(plan, left, say)
        else:
            reports, is_whole = _of_torch(plan, before, say)
        try:
            job.done(plan.folder, plan.job, reports)
        except OSError as error:
            say(f"the other recorders do not see that this one is done: {error.strerror}")
            is_whole = False
        all_reports = job.gather(
            plan.folder, plan.job, reports, was_ended=lambda: child.ended_by is not None, say=say
        )
    if child.ended_by is not None and not status:  # nsys gives 0
        status = 128 + child.ended_by
    elif child.ended_by is None and not child.has_started:  # its status is not the command's
        status = 0
    return Recorded(status, all_reports, is_whole)


def _run(child: RunningCommand, plan: Plan, say: Callable[[str], None]) -> int:
    """Run the command of a plan to its end; return its exit status.

    Where nsys fails before it starts the command, it starts again without what only one nsys of a
    machine can record.
    """
    environment = {**os.environ, **plan.variables}
    status = child.run(plan.words, environment)
    if child.has_started:
        return status
    failure = f"nsys ended with exit status {status} before it started the command"
    words = plan.words_without_links
    may_retry = status and child.ended_by is None and words != plan.words
    if may_retry and not plan.capture.exists() and not plan.unimported.exists():
        say(f"{failure}: again without {LINKS}, which another nsys may be recording")
        status = child.run(words, environment)
        failure = f"nsys ended with exit status {status} before it started the command"
    if not child.has_started:
        say(failure)
    return status


def _nothing(plan: Plan, why: str) -> str:
    steps = "" if plan.steps is None else f" (did it reach steps {plan.steps}?)"
    return f"nothing was recorded on {plan.job.name}: {why}{steps}"


def _of_nsys(
    plan: Plan, left: dict[Path, int], say: Callable[[str], None]
) -> tuple[list[Path], bool]:
    if not _import_again(plan, say):
        return [], False
    if not plan.capture.exists():
        say(_nothing(plan, "nsys wrote no report"))
        _say_where_it_is(plan, left, say)
        return [], False
    return _exported(plan, say)


def _unmoved() -> dict[Path, int]:
    """Return this user's recordings in the folders for temporary files, with their bytes."""
    sizes = {}
    for folder in (tempfile.gettempdir(), "/tmp"):  # noqa: S108  (where nsys puts it)
        for file in Path(folder).glob("nsys-report-*.qdstrm"):
            with suppress(OSError):
                status = file.stat()
                if status.st_uid == os.geteuid():
                    sizes[file] = status.st_size
    return sizes


def _say_where_it_is(plan: Plan, left: dict[Path, int], say: Callable[[str], None]) -> None:
    """Name new recordings that nsys could not move from the folder for temporary files."""
    free = shutil.disk_usage(plan.folder).free
    if is_full(plan.folder) or any(size > free for size in left.values()):
        say(f"{NO_SPACE} in {plan.folder}")
    for file in sorted(left):
        say(
            f"nsys left a recording in {file} (this one, or another that ran at the same time):"
            " QdstrmImporter, in the folder host-linux-x64 of Nsight Systems, imports it"
            f" (--input-file {file} --output-file FILE.nsys-rep)"
        )


def _of_torch(
    plan: Plan, before: dict[Path, float], say: Callable[[str], None]
) -> tuple[list[Path], bool]:
    lost = _remove_unwritten(plan, say)
    reports = _written(plan.folder, before)
    if not reports and not lost:
        begins = "" if plan.steps else _BEGINS
        say(_nothing(plan, f"no process of the command wrote a trace{begins}"))
    return reports, bool(reports) and not lost


def _remove_unwritten(plan: Plan, say: Callable[[str], None]) -> int:
    """Remove what ranks of this recorder left of traces that they could not write; return how many.

    Such a trace has a hidden name, which ends with the reason where the rank was not killed.
    """
    ranks = r"(?:rank)?\d+" if plan.job.rank is None else f"rank{plan.job.rank}"
    ours = re.compile(rf"\.({re.escape(plan.job.host)}-{ranks})\.pt\.trace\.json(.*)")
    reasons: dict[str, str] = {}
    for file in sorted(plan.folder.iterdir()):
        match = ours.fullmatch(file.name)
        if match is None:
            continue
        file.unlink(missing_ok=True)
        name, end = match.groups()
        if end.startswith(NOT_WRITTEN):
            reasons[name] = end.removeprefix(NOT_WRITTEN).replace("-", " ")
        elif end != ".gz":  # else the uncompressed trace is there
            reasons.setdefault(name, "the process was killed")
    for name, reason in reasons.items():
        say(f"the trace of {name} was not written: {reason}")
    return len(reasons)


def _remove_timed(plan: Plan) -> None:
    ranks = r"(-(rank)?\d+)?"
    ours = re.compile(rf"{re.escape(plan.job.name)}{ranks}{re.escape(SUFFIX)}")
    for file in plan.folder.glob(f"*{SUFFIX}"):
        if ours.fullmatch(file.name):
            file.unlink(missing_ok=True)


def _diagnosed(plan: Plan, say: Callable[[str], None]) -> Diagnosis | None:
    """Store the diagnosis of this machine beside the reports; return it, None without.

    Warns of an nsys that does not know the training's CUDA.
    """
    try:
        diagnosis = diagnose(training=plan.training)
        store(plan.folder, diagnosis)
    except (TraceprofError, OSError) as error:  # the recording is worth more
        say(f"links are not known: {error}")
        return None
    if plan.tool == NSYS and is_cuda_too_new(diagnosis.versions):
        for misfit in diagnosis.misfits:
            say(misfit)
    return diagnosis


def _import_again(plan: Plan, say: Callable[[str], None]) -> bool:
    if not plan.unimported.exists():
        return True
    nsys = nsys_module.find()
    importer = None if nsys is None else nsys_module.find_importer(nsys.path)
    if importer is None:
        say(f"{NOT_IMPORTED}: {plan.unimported} is all there is; record again, or import it with")
        say("QdstrmImporter, in the folder host-linux-x64 of Nsight Systems")
        say("where it printed `Unknown … API function index`, " + nsys_module.UNKNOWN_CALL)
        return False
    say(f"{NOT_IMPORTED}: {importer} imports it again")
    failure = nsys_module.import_recorded(importer, plan.unimported, plan.capture)
    if failure is None:
        say(f"it is in {plan.capture} now")
        return True
    advice = "" if failure == nsys_module.UNKNOWN_CALL else ": record again"
    say(f"that failed, too: {failure}; {plan.unimported} is all there is{advice}")
    return False


def _exported(plan: Plan, say: Callable[[str], None]) -> tuple[list[Path], bool]:
    """Export the capture of nsys; if that fails, the capture itself is the report.

    Returns also whether there was space for the export.
    """
    lacks_space = False
    try:
        with tempfile.TemporaryDirectory(dir=plan.folder, prefix=".export-") as folder:
            try:
                partial, _ = export(find_nsys(plan.capture), plan.capture, Path(folder))
                shutil.move(partial, plan.export)
            except (TraceprofError, OSError):
                lacks_space = is_full(plan.folder)
                raise
    except (TraceprofError, OSError) as error:
        say(f"not exported: {f'{NO_SPACE} in {plan.folder}: ' if lacks_space else ''}{error}")
        return [plan.capture], not lacks_space
    return [plan.export], True


def _traces(folder: Path) -> dict[Path, float]:
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
