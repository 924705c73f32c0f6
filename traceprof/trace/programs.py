"""Runs other programs: with a time limit, and never longer than this process."""

from __future__ import annotations

import ctypes
import errno
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

MAX_ANSWER_S = 60.0
"""For a program that says its version or its options, also on a busy machine."""

_PR_SET_PDEATHSIG = 1  # of prctl(2)
_MIN_CONVERSION_S, _BYTES_PER_S = 600.0, 1e6  # nsys converts some 20 MB a second


def captured(
    *command: str | Path, max_s: float | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program without input to its end, and capture its output.

    `max_s`: its time limit; None for a program that only answers. `environment`: that of this
    process where None.

    Raises OSError: it does not start, or was killed at the time limit; `strerror` is a clause.
    """
    import subprocess  # noqa: PLC0415  (few analyses run a program)

    if max_s is None:
        max_s = MAX_ANSWER_S
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            stdin=subprocess.DEVNULL,
            preexec_fn=ending_with_parent(),
            timeout=max_s,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(errno.ETIMEDOUT, f"it did not end within {max_s:.0f} s") from error
    except OSError as error:
        raise OSError(error.errno, f"it does not start ({error.strerror})") from error


def conversion_limit_s(file: Path) -> float:
    """Return the time limit in seconds for a program that converts a file."""
    return _MIN_CONVERSION_S + file.stat().st_size / _BYTES_PER_S


def ending_with_parent(number: signal.Signals = signal.SIGKILL) -> Callable[[], object] | None:
    """Return a function that has its process get a signal at its parent's end; None off Linux."""
    if sys.platform != "linux":
        return None
    # Looked up here: at the start of a program, other threads may hold the loader's lock.
    return partial(ctypes.CDLL(None).prctl, _PR_SET_PDEATHSIG, number)
