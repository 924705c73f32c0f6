"""Where a command writes its result: to stdout, or to a file that appears whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from traceprof.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

STDOUT = "-"


def check_output(output: str | None, inputs: Sequence[Path]) -> None:
    """Refuse an output that is one of the inputs.

    Raises:
        UsageError: it is.
    """
    if output is None or output == STDOUT:
        return
    for input_ in inputs:
        with suppress(OSError, ValueError):  # one of them is not there, or out of reach
            if Path(output).samefile(input_):
                raise UsageError(
                    f"cannot write {output}", "it is one of the reports", "choose another name"
                )


def write_output(text: str, output: str | None) -> None:
    """Write a result.

    Args:
        text: the result.
        output: a file, which is replaced only when the whole result is on the disk; a pipe or a
            device is written as it is. None or `-` is stdout.

    Raises:
        UsageError: the file cannot be written; one that was there before is as it was.
    """
    if output is None or output == STDOUT:
        sys.stdout.write(text)
        return
    try:
        # A link stays a link: what it leads to is replaced.
        target = Path(os.path.realpath(output))
        content = text.encode("utf-8", "replace")
        if target.exists() and not target.is_file():
            _write_in_place(target, content)
        else:
            _replace(target, content)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot write {output}", why, "choose another place") from error


def _replace(target: Path, content: bytes) -> None:
    """Write a file beside the target, and put it in the target's place when it is whole."""
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    if mode is not None and not os.access(target, os.W_OK):
        raise PermissionError(None, "Permission denied")
    beside = target.with_name(f".traceprof-{secrets.token_hex(8)}")
    try:
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # some file systems tell only now that they are full
        if mode is not None:
            beside.chmod(mode)
        beside.replace(target)
    except BaseException:  # also where it is interrupted
        beside.unlink(missing_ok=True)
        raise


def _write_in_place(target: Path, content: bytes) -> None:
    with open(target, "wb", opener=_open_without_waiting) as file:
        file.write(content)


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file for writing; a pipe that nobody reads is an error, not a reason to wait."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    os.set_blocking(descriptor, True)
    return descriptor
