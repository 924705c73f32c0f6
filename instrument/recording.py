"""Recording of some training steps with torch.profiler, or with an attached Nsight.

`python -m instrument --steps 10:20` and `traceprof record` put what to record into the environment,
for the processes that a script starts itself; a script calls `record`.
"""

from __future__ import annotations

import atexit
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from instrument import switch
from instrument.core import nvtx_ranges
from instrument.core.baseline import step_times
from instrument.core.steps import FOLDER, SHAPES, STEPS, TOOL, Recorder, unwatch, watch
from traceprof.labels import Steps, parse_steps

if TYPE_CHECKING:
    from typing_extensions import Self

WATCH = "TRACEPROF_WATCH"
"""Environment variable: the number of steps after which ranks are compared while they train."""
WATCH_TO = "TRACEPROF_WATCH_TO"
"""Environment variable: the file to which these comparisons go, if any."""
ON_STRAGGLER = "TRACEPROF_ON_STRAGGLER"
"""Environment variable: `record` to record a rank that becomes slow."""

_log = logging.getLogger("traceprof.instrument")


class Recording:
    """A recording: it ends by itself, by `stop`, or at the end of its `with` block."""

    def stop(self) -> None:
        """Stop recording, and write the trace; a second call does nothing."""
        unwatch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def record(
    folder: str | os.PathLike[str] = ".",
    *,
    steps: tuple[int, int | None] | str | None = None,
    shapes: bool = False,
) -> Recording:
    """Record training steps with torch.profiler, one trace per rank; every rank calls it.

    Each writes `HOST-rank3.pt.trace.json.gz` into the folder, for `traceprof analyze FOLDER`.
    Steps are marked with `instrument.step`, else they last from one optimizer step to the next.

    Args:
        folder: of the traces; created if missing.
        steps: `(10, 20)` or `"10:20"` for steps 10 to 19, counted from 0; None for all, from the
            first marked step, forward or backward pass to the end of the process.
        shapes: whether to record the shapes of inputs, from which FLOPs and bytes follow.

    Raises:
        ValueError: the steps are no range.
    """
    text = steps if isinstance(steps, str) else None
    if steps is not None and text is None:
        text = f"{steps[0]}:{'' if steps[1] is None else steps[1]}"
    chosen = Steps() if text is None else parse_steps(text)
    _record_with_torch(Path(folder).absolute(), chosen, has_shapes=shapes)
    return Recording()


class _Process:
    has_started = False


def record_as_requested() -> None:
    """Enable ranges, and record as the environment requests; once. Never raises."""
    if _Process.has_started:  # the .pth file of the package and `-m instrument` both call this
        return
    _Process.has_started = True
    tool, steps = os.environ.get(TOOL), os.environ.get(STEPS)
    try:
        chosen = parse_steps(steps) if steps else None
        if tool == "torch":
            folder, has_shapes = Path(os.environ.get(FOLDER, ".")), os.environ.get(SHAPES) == "1"
            _record_with_torch(folder.absolute(), chosen or Steps(), has_shapes=has_shapes)
            if every := os.environ.get(WATCH):
                _watch_ranks(every)
            return
        is_recorded = nvtx_ranges.is_recording()
        if every := os.environ.get(WATCH):
            _watch_ranks(every)
        switch.enable()
        if chosen is not None and is_recorded:
            from instrument.nsight_capture import NsightCapture  # noqa: PLC0415  (Linux only)

            _watch(chosen, NsightCapture(), "nsys")
    except Exception as error:  # noqa: BLE001  (an observer must not stop the training)
        _log.warning("nothing is recorded: %s: %s", type(error).__name__, error)


def _record_with_torch(folder: Path, steps: Steps, *, has_shapes: bool) -> None:
    from instrument.torch_trace import TorchTrace  # noqa: PLC0415  (imports torch)

    switch.end_watch()  # which takes the ranges
    if switch.follows_profiler() or not nvtx_ranges.is_recording():
        switch.disable()  # an earlier call found no recorder
        nvtx_ranges.annotate_in_profiler()
    switch.enable()
    _watch(steps, TorchTrace(folder, has_shapes=has_shapes), "torch")


def _watch_ranks(every: str) -> None:
    from instrument.watching import watch as watch_ranks  # noqa: PLC0415  (rarely asked for)

    try:
        path, on_straggler = (os.environ.get(name) or None for name in (WATCH_TO, ON_STRAGGLER))
        watch_ranks(int(every), path, on_straggler=on_straggler)
    except Exception as error:  # noqa: BLE001  (ranges and a recording do not depend on it)
        _log.warning("nothing is watched, %s=%s: %s", WATCH, every, error)


def _watch(steps: Steps, recorder: Recorder, tool: str) -> None:
    watch(steps, recorder, step_times(tool, str(steps), steps.first))
    atexit.register(unwatch)
