"""Errors of traceprof: each says what went wrong, why, and what to do, in one line."""

from __future__ import annotations

from collections.abc import Sequence


def one_line(text: object, max_length: int | None = None) -> str:
    """Return `text` with line breaks, control characters and undecodable bytes escaped.

    Names of files, kernels and ranges are data from elsewhere: printed as they are, they could
    break a line or drive a terminal. `…` stands for characters beyond `max_length`.
    """
    shown = str(text)
    if max_length is not None and len(shown) > max_length:
        shown = f"{shown[: max_length - 1]}…"
    if shown.isprintable():
        return shown
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in shown
    )


def closest(word: str, known: Sequence[str]) -> str | None:
    """Return the known word that the user probably meant; None if none is close."""
    from difflib import get_close_matches  # noqa: PLC0415  (only mistakes need it)

    return next(iter(get_close_matches(word.lower(), known, 1)), None)


class TraceprofError(Exception):
    """Base class of all errors that traceprof raises for users.

    `what` could not be done, naming the input; `why`; and what the user can do about it.
    """

    def __init__(self, what: str, why: str, remedy: str) -> None:
        self.what = one_line(what)
        self.why = one_line(why)
        self.remedy = one_line(remedy)
        super().__init__(f"{self.what}: {self.why}; {self.remedy}")

    def __reduce__(self) -> tuple[type[TraceprofError], tuple[str, str, str]]:
        """Pickle the three parts, so that the error can come from another process."""
        return type(self), (self.what, self.why, self.remedy)


class UsageError(TraceprofError):
    """The command line, or an argument of a function, asks for something impossible."""


class TraceFileError(TraceprofError):
    """The file cannot be opened at all: missing, a folder, empty, not readable."""


class TraceFormatError(TraceprofError):
    """The file opens but is no trace that traceprof reads, or it is damaged."""


class MissingToolError(TraceprofError):
    """A program that the input needs, such as `nsys`, is not installed."""


class MissingExtraError(TraceprofError):
    """An optional part of traceprof is not installed."""

    @classmethod
    def of(cls, what: str, package: str, extra: str) -> MissingExtraError:
        """Return the error of a package that is not there, and that an extra installs."""
        # A clone is named and no index, where others could register the name.
        remedy = f"run {_installer()} '.[{extra}]' in the folder of traceprof's source"
        return cls(what, f"the package {package} is not installed", remedy)


def _installer() -> str:
    """Return the command that installs into this environment; its maker left a mark in it."""
    import sys  # noqa: PLC0415  (only mistakes need it)
    from importlib.util import find_spec  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    if Path(sys.prefix, "uv-receipt.toml").exists():
        return "uv tool install --force"
    if Path(sys.prefix, "pipx_metadata.json").exists():
        return "pipx install --force"
    return "uv pip install" if find_spec("pip") is None else "pip install"


class WorkerError(TraceprofError):
    """A process or machine that analysed a report is gone, or is not what it should be."""


REPORT_IT = "report it with the traceback, which TRACEPROF_TRACEBACK=1 in the environment shows"
"""What to do about an internal error."""


def internal_error(error: Exception) -> str:
    """Say what went wrong inside of traceprof, in one line."""
    return f"internal error: {type(error).__name__}: {error}"
