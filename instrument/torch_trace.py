"""Recorder with torch.profiler: one trace per rank, `HOST-rank3.pt.trace.json.gz`.

Every rank writes its own trace once the last step is over. It only waits while PyTorch collects the
events and writes them; the rest runs beside the training.
"""

from __future__ import annotations

import atexit
import errno
import gzip
import logging
import multiprocessing
import multiprocessing.util
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
from torch.autograd.profiler import profile as autograd_profile
from torch.profiler import ProfilerActivity, profile

from instrument.core import nvtx_ranges, operations, steps
from instrument.core.baseline import process_name
from instrument.core.completion import settle, wait_for_gpu
from instrument.core.patching import Patches
from traceprof.labels import NOT_WRITTEN, Steps

_log = logging.getLogger("traceprof.instrument")
_SUFFIX = ".pt.trace.json"  # the suffix of PyTorch's own handlers
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_NO_SPACE = "no space left"
_MIN_SPACE = 1 << 17  # bytes that a folder with space left can take
EXCERPT_STEPS = 10
MAX_EXCERPTS_BYTES = 1 << 30
"""With more in their folder none begins."""
_COMPRESSION = 1  # three times as fast as 6, for a tenth more bytes


class TorchTrace:
    """Runs torch.profiler from `begin` to `end`, and writes the trace into a folder."""

    def __init__(self, folder: Path, *, has_shapes: bool = False) -> None:
        self._folder, self._has_shapes = folder, has_shapes
        self._profile: profile | None = None
        self._name = ""
        self._thread: int | None = None
        self._pid = os.getpid()
        self._give_signal_back: Callable[[], None] | None = None

    def prepare(self) -> None:
        """Load CUPTI, which takes seconds the first time."""
        self._folder.mkdir(parents=True, exist_ok=True)
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities, record_shapes=self._has_shapes)
        self._profile.prepare_trace()

    def begin(self) -> None:
        """Start recording."""
        if self._profile is None:
            return
        self._name = process_name()
        self._thread, self._pid = threading.get_ident(), os.getpid()
        self._profile.start_trace()
        _end_with_forked_process()
        self._give_signal_back = _on_termination(self.end)

    def end(self) -> None:
        """Stop recording, and write the trace."""
        recorded, self._profile = self._profile, None
        if recorded is None or self._pid != os.getpid():  # forked since: the parent records
            return
        try:
            if threading.get_ident() != self._thread:
                raise RuntimeError("torch.profiler can end only on the thread on which it began")
            with _signals_later():
                settle()
                wait_for_gpu()
                recorded.stop_trace()
                self._write(recorded)
        finally:
            if self._give_signal_back is not None:
                self._give_signal_back()

    def _write(self, recorded: profile) -> None:
        """Write the trace, whole or not at all; compress it beside the training."""
        target = self._folder / f"{self._name}{_SUFFIX}"
        partial = self._folder / f".{self._name}{_SUFFIX}"
        try:
            recorded.export_chrome_trace(str(partial))
            partial.replace(target)  # PyTorch logs a failure: then there is none
        except OSError:
            is_full = shutil.disk_usage(self._folder).free < _MIN_SPACE
            why = _NO_SPACE if is_full else "see the log of PyTorch"
            for file in (partial, partial.with_name(f"{partial.name}.tmp")):
                file.unlink(missing_ok=True)
            with suppress(OSError):
                lost = f"{partial.name}{NOT_WRITTEN}{why.replace(' ', '-')}"
                partial.with_name(lost).touch()
            raise OSError(errno.ENOSPC if is_full else errno.EIO, why, str(target)) from None
        writer = threading.Thread(target=_compress, args=(target,), name="traceprof trace")
        try:
            writer.start()
        except RuntimeError:  # Python is ending, which starts no thread from 3.12 on
            _compress(target)
        else:
            _writers.append(writer)


class Excerpt(TorchTrace):
    """Records ten steps of a watched process, with ranges, those of garbage collections, too.

    A profiler of the script's own comes first: none begins while that records, and that ends one.
    """

    def __init__(
        self, folder: Path, first: int, follow_collections: Callable[[Patches], object] = bool
    ) -> None:
        super().__init__(folder / f"step-{first}")
        self._follow_collections, self._patches = follow_collections, Patches()
        self.steps = steps.RecordedSteps(Steps(first, first + EXCERPT_STEPS), self)

    def prepare(self) -> None:
        """Do nothing: a profiler of the script may begin before the first step."""

    def begin(self) -> None:
        """Start recording, with ranges, as every torch.profiler. Raises RuntimeError."""
        is_profiled = torch._C._autograd._profiler_enabled()  # noqa: SLF001
        if is_profiled or nvtx_ranges.is_attached() or nvtx_ranges.is_recording():
            raise RuntimeError("another profiler records")
        num_bytes = sum(file.stat().st_size for file in self._folder.parent.glob("*/*"))
        if num_bytes > MAX_EXCERPTS_BYTES:
            raise RuntimeError(f"{self._folder.parent} has {num_bytes} bytes")
        super().prepare()
        operations.renumber()
        super().begin()
        if not nvtx_ranges.asks_for_collections():
            self._follow_collections(self._patches)
        start: Any = autograd_profile._start_trace  # noqa: SLF001
        prepare: Any = autograd_profile._prepare_trace  # noqa: SLF001  (untyped)

        def prepare_another(other: autograd_profile) -> None:
            self.steps.close()
            prepare(other)

        def start_another(other: autograd_profile) -> None:  # it was prepared before ours
            prepare_another(other)
            start(other)

        self._patches.replace(autograd_profile, "_prepare_trace", prepare_another)
        self._patches.replace(autograd_profile, "_start_trace", start_another)

    def end(self) -> None:
        """Stop recording, and write the trace; a second call does nothing."""
        self._patches.restore()
        super().end()


_writers: list[threading.Thread] = []


def _finish() -> None:
    """Wait for writers that began while Python was ending: Python itself does not."""
    for writer in _writers:
        writer.join()


atexit.register(_finish)


@contextmanager
def _signals_later() -> Iterator[None]:
    """Hold signals that end the process back, so that they cut no trace that is being written."""
    received: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, *_ENDING) if is_main else ()
    before = {
        number: signal.signal(number, lambda got, _: received.append(got))
        for number in numbers
        if signal.getsignal(number) not in {signal.SIG_IGN, None}
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if received:
            _finish()
            os.kill(os.getpid(), received[0])


def _end_with_forked_process() -> None:
    """End recording with a process of multiprocessing: forked ones run no atexit functions."""
    if multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, steps.unwatch, exitpriority=0)


def _compress(target: Path) -> None:
    compressed = target.with_name(f"{target.name}.gz")
    partial = target.with_name(f".{compressed.name}")
    try:
        with target.open("rb") as source, gzip.open(partial, "wb", _COMPRESSION) as file:
            shutil.copyfileobj(source, file, 1 << 20)
        partial.replace(compressed)
        target.unlink()
    except OSError as error:
        partial.unlink(missing_ok=True)
        _log.warning("%s stays uncompressed: %s", target, error)


def _on_termination(end: Callable[[], None]) -> Callable[[], None] | None:
    """Make SIGTERM and SIGHUP end the recording first, unless the script handles them itself.

    Returns a function that restores the handlers; None if none was replaced.
    """
    is_main = threading.current_thread() is threading.main_thread()
    ours = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    if not is_main or not ours:
        return None

    def terminate(number: int, _frame: FrameType | None) -> NoReturn:
        try:
            end()
            _finish()  # whoever sent the signal waits some time, and compressing takes less
        except Exception as error:  # noqa: BLE001  (the signal must end the process)
            _log.warning("nothing is recorded: %s", error)
        finally:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        raise SystemExit(128 + number)

    for number in ours:
        signal.signal(number, terminate)

    def give_back() -> None:
        for number in ours:
            if signal.getsignal(number) is terminate:
                signal.signal(number, signal.SIG_DFL)

    return give_back
