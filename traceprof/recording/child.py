"""Runs a command to its end and passes on the signals that this process gets."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from traceprof.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

_NSYS_PASSES_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGQUIT}
_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_ENDING = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM}
_LAUNCHER = "nsys-launcher"
# A wait with a limit checks some 20 times a second whether the child has ended: Python handles a
# signal that comes right before an unlimited wait only after it.
_MAX_WAIT_S = 1e9


def run_to_end(
    command: Sequence[str], environment: Mapping[str, str], *, under_nsys: bool
) -> tuple[int, bool]:
    """Run a command; return its exit status as in a shell, and whether a signal ended it.

    Args:
        command: the words.
        environment: its environment.
        under_nsys: whether nsys starts the training. nsys passes on signals that end the training,
            and writes its report afterwards; other signals go to the training itself.

    Raises:
        UsageError: it does not start.
    """
    ended_by: list[int] = []
    process: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if number in _ENDING:
            ended_by.append(number)
        if not process:
            return
        if under_nsys and number not in _NSYS_PASSES_ON:
            for pid in _started_by_nsys(process[0].pid):
                with suppress(OSError):
                    os.kill(pid, signal.SIGTERM if number == signal.SIGHUP else number)
        else:
            process[0].send_signal(number)

    with _handled(pass_on):
        try:
            # In a session of its own, so that Ctrl-C in a terminal arrives once: from here.
            child = subprocess.Popen(command, env=dict(environment), start_new_session=True)
        except OSError as error:
            why = error.strerror or str(error)
            raise UsageError(f"cannot run {command[0]}", why, "check the command") from error
        process.append(child)
        if ended_by:  # while it started
            child.send_signal(ended_by[-1])
        status = child.wait(_MAX_WAIT_S)
    return (status if status >= 0 else 128 - status), bool(ended_by)


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Install a handler for signals; those that are ignored (`nohup`) stay ignored."""
    before = {
        number: signal.signal(number, handler)
        for number in _SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _started_by_nsys(nsys: int) -> list[int]:
    """Return the outermost processes that nsys has started for the training."""
    children: dict[int, list[tuple[int, str]]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            text = (folder / "stat").read_text()
            name, _, rest = text.partition("(")[2].rpartition(")")
            children.setdefault(int(rest.split()[1]), []).append((int(folder.name), name))
    launchers = [pid for pid, name in children.get(nsys, []) if name.startswith(_LAUNCHER)]
    return [
        pid
        for launcher in launchers
        for pid, name in children.get(launcher, [])
        if not name.startswith("nsys")
    ]
