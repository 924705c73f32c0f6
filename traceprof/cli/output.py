"""Output of a command: to stdout, or to a file that is written completely or not at all."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from traceprof.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

Command = Callable[..., object]

STDOUT = "-"


def output_options(*formats: str) -> Callable[[Command], Command]:
    """Return a decorator that adds `--format`, as `output_format`, and `--output` to a command.

    The formats include `text`, the default.
    """

    def give(command: Command) -> Command:
        command = click.option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the result to FILE, which is replaced only when all is written;"
            " - is stdout.",
        )(command)
        return click.option(
            "--format",
            "output_format",
            type=click.Choice(formats),
            default="text",
            show_default=True,
            help="How to write the result.",
        )(command)

    return give


def check_output(output: str | None, inputs: Sequence[Path]) -> None:
    """Refuse an output that cannot be written, or is one of the inputs, before anything is read.

    Raises UsageError: it is refused.
    """
    if output is None or output == STDOUT:
        return
    for input_ in inputs:
        with suppress(OSError, ValueError):  # one of them is not there, or out of reach
            if Path(output).samefile(input_):
                raise UsageError(
                    f"cannot write {output}", "it is one of the reports", "choose another name"
                )
    _check_place(output, is_folder=False)


def check_folder(output: str) -> None:
    """Refuse a folder for files that cannot be written, before anything is read.

    Raises UsageError: it is refused.
    """
    check_files(output)
    _check_place(output, is_folder=True)


def check_files(output: str) -> None:
    """Refuse stdout for what is several files. Raises UsageError: it is stdout."""
    if output == STDOUT:
        raise UsageError("cannot write to stdout", "the result is several files", "name a place")


def _check_place(output: str, *, is_folder: bool) -> None:
    """Refuse a place whose folder does not exist, or that is of another kind."""
    if not output:
        raise UsageError("cannot write the result", "its name is empty", "choose another name")
    try:
        _look_at(Path(os.path.realpath(output)), is_folder=is_folder)
    except (OSError, ValueError) as error:
        raise _cannot_write(output, error) from error


def _look_at(target: Path, *, is_folder: bool) -> None:
    """Raise the OSError that writing to a place would."""
    if not stat.S_ISDIR(target.parent.stat().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if target.is_dir() and not is_folder:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if target.exists() and not target.is_dir() and is_folder:
        raise NotADirectoryError(errno.ENOTDIR, "it is not a folder")


def write_output(pieces: Iterable[str], output: str | None) -> None:
    """Write a result to stdout (None or `-`) or to a file, replaced when all is on the disk.

    A pipe or a device is written as it is.

    Raises UsageError: the file cannot be written; one that was there before is as it was.
    """
    if output is None or output == STDOUT:
        sys.stdout.writelines(pieces)
        return
    with opened_output(output) as file:
        file.writelines(piece.encode("utf-8", "replace") for piece in pieces)


def write_text(shown: RenderableType, output: str | None) -> None:
    """Write what rich draws: into a terminal, else as plain text. Raises UsageError, as above."""
    if output in {None, STDOUT} and sys.stdout.isatty():
        from rich.console import Console

        Console().print(shown)
        return
    from traceprof.reports.text import plain

    write_output([plain(shown)], output)


@contextmanager
def opened_output(output: str) -> Iterator[BinaryIO]:
    """Open the output for a result written in pieces; the context ends when all is written.

    `output`: a file, which is replaced only when the context ends without an error; a pipe or a
    device is written as it is; `-` is stdout.

    Raises UsageError: the file cannot be written; one that was there before is as it was.
    """
    if output == STDOUT:
        yield sys.stdout.buffer
        return
    try:
        # A link stays a link: its target is replaced.
        target = Path(os.path.realpath(output))
        is_special = target.exists() and not target.is_file()
    except (OSError, ValueError) as error:
        raise _cannot_write(output, error) from error
    try:
        with (
            open(target, "wb", opener=_open_without_waiting) if is_special else _replaced(target)
        ) as file:
            yield file
    except OSError as error:
        raise _cannot_write(output, error) from error


@contextmanager
def filled_folder(output: str) -> Iterator[Path]:
    """Yield an empty folder; when the context ends, its files are moved into another one.

    That one is created in its own if missing; files of other names in it stay.

    Raises UsageError: the folder cannot be written; what was there before is as it was.
    """
    from tempfile import TemporaryDirectory

    try:
        target = Path(os.path.realpath(output))
        if target.exists() and not target.is_dir():
            raise NotADirectoryError(None, "it is not a folder")
        place = target if target.is_dir() else target.parent  # a disk of its own may be mounted
        with TemporaryDirectory(prefix=".traceprof-", dir=place) as beside:
            yield Path(beside)
            target.mkdir(exist_ok=True)
            for file in sorted(Path(beside).iterdir()):
                file.replace(target / file.name)
    except OSError as error:
        raise _cannot_write(output, error) from error


def _cannot_write(output: str, error: OSError | ValueError) -> UsageError:
    why = getattr(error, "strerror", None) or str(error)
    return UsageError(f"cannot write {output}", why, "choose another place")


@contextmanager
def _replaced(target: Path) -> Iterator[BinaryIO]:
    """Write a file beside the target, and put it in the target's place when it is whole."""
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    if mode is not None and not os.access(target, os.W_OK):
        raise PermissionError(None, "Permission denied")
    beside = target.with_name(f".traceprof-{os.urandom(8).hex()}")
    try:
        with beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # some file systems report only now that they are full
        if mode is not None:
            beside.chmod(mode)
        beside.replace(target)
    except BaseException:  # including interrupts
        beside.unlink(missing_ok=True)
        raise


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file for writing; a pipe without a reader is an error instead of blocking."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    os.set_blocking(descriptor, True)
    return descriptor
