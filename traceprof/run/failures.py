"""Failed reports: one that cannot be read must not stop the analysis of the others."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from traceprof.errors import TraceprofError, UsageError
from traceprof.run.summary import FailedReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from traceprof.trace.model.trace import Trace

Made = TypeVar("Made")


def try_report(path: Path, make: Callable[[], Made]) -> Made | FailedReport:
    """Return the result for a report, or the reason for its failure.

    Args:
        path: the report, as it was given.
        make: computes the result.

    Raises:
        UsageError: the request is impossible for any report.
    """
    try:
        return make()
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001  (one report among hundreds must not stop all)
        return FailedReport(path, failure(path, error))


@contextmanager
def close_on_error(trace: Trace) -> Iterator[None]:
    """Close a report if the block fails."""
    try:
        yield
    except Exception:  # after an interrupt a thread may still be reading
        trace.close()
        raise


def failure(path: Path, error: Exception) -> TraceprofError:
    """Return the error that says why a report failed.

    Args:
        path: the report.
        error: what was raised while it was read.

    Raises:
        Exception: the error itself, if it is a bug of traceprof and the user wants its traceback.
    """
    if isinstance(error, TraceprofError):
        return error
    if isinstance(error, MemoryError):
        why, remedy = "it needs more memory than there is", "give fewer reports or --jobs"
    elif os.environ.get("TRACEPROF_TRACEBACK"):
        raise error
    else:
        why = f"internal error: {type(error).__name__}: {error}"
        remedy = (
            "report it with the traceback, which TRACEPROF_TRACEBACK=1 in the environment shows"
        )
    return TraceprofError(f"cannot analyse {path}", why, remedy)


def all_failed(failed: Sequence[FailedReport], done: str = "analysed") -> TraceprofError:
    """Return the error that ends a command when all of its reports failed.

    Args:
        failed: the reports, at least one.
        done: the participle for the message: what could not be done with them.
    """
    first = failed[0].error
    if len(failed) == 1:
        return first
    what = f"none of the {len(failed)} reports can be {done}, the first because: {first.what}"
    return type(first)(what, first.why, first.remedy)
