"""Runs programs of Nsight Systems and captures their output."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def captured(
    *command: str | Path, preexec_fn: Callable[[], object] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program without input to its end, and capture its output.

    Args:
        command: the program and its arguments.
        preexec_fn: called in the child before the program starts.

    Raises:
        OSError: it does not start.
    """
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        stdin=subprocess.DEVNULL,
        preexec_fn=preexec_fn,
    )
