"""The guard around optional inference: a part that fails costs what it would have added, no more.

Reading tables and the breakdown of time are the answer; periods, replays, clocks of other ranks and
findings refine it. Each of these is an `optional` function. If one raises an error that nobody
foresaw, its fallback stands in for it, and what is missing becomes a line under "could not be
analysed". Errors that tell the user something pass: a damaged table, a wrong argument, a full disk.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from traceprof.errors import REPORT_IT, TraceprofError, internal_error
from traceprof.findings import NotApplicable

Given = ParamSpec("Given")
Answer = TypeVar("Answer")

PARTS: list[OptionalPart] = []
"""All optional parts of the modules that were imported."""
raises = False
"""Whether failures are raised, as tests and fuzzing want it."""

_PASSES = (TraceprofError, MemoryError, OSError)
_log = logging.getLogger("traceprof")
_failures: ContextVar[dict[NotApplicable, None] | None] = ContextVar("failures", default=None)


class OptionalPart:
    """A guarded function, and what is missing without it: the names of findings, or of the part."""

    def __init__(self, function: Callable[..., Any], ids: tuple[str, ...]) -> None:
        self.function = function
        self.ids = ids


def optional(
    *ids: str, otherwise: Callable[..., Any]
) -> Callable[[Callable[Given, Answer]], Callable[Given, Answer]]:
    """Guard a function; `ids` are the findings, or the part, that are missing without it.

    `otherwise` takes the same arguments and returns what stands in for the result.
    """

    def decorate(function: Callable[Given, Answer]) -> Callable[Given, Answer]:
        part = OptionalPart(function, ids)
        PARTS.append(part)

        @wraps(function)
        def guarded(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
            try:
                answer: Answer = part.function(*args, **kwargs)
            except _PASSES:
                raise
            except Exception as error:
                if raises:
                    raise
                _report(ids, error)
                answer = otherwise(*args, **kwargs)
            return answer

        return guarded

    return decorate


@contextmanager
def collected_failures(rank: int | None = None) -> Iterator[dict[NotApplicable, None]]:
    """Collect what is missing since optional parts failed in the block, each once.

    `rank`: the rank that the block is about; None for a run.
    """
    failures: dict[NotApplicable, None] = {}
    token = _failures.set(failures)
    try:
        yield failures
    finally:
        _failures.reset(token)
        if rank is not None:
            numbered = [NotApplicable(gap.id, gap.reason, REPORT_IT, rank) for gap in failures]
            failures.clear()
            failures.update(dict.fromkeys(numbered))


def _report(ids: tuple[str, ...], error: Exception) -> None:
    failures = _failures.get()
    missing = [NotApplicable(id_, internal_error(error), REPORT_IT) for id_ in ids]
    if failures is None:  # nobody lists them: a page of the dashboard, or a script
        _log.warning("could not be analysed: %s: %s", ", ".join(ids), internal_error(error))
        is_new = True
    else:
        is_new = missing[0] not in failures
        failures.update(dict.fromkeys(missing))
    if is_new and os.environ.get("TRACEPROF_TRACEBACK"):
        traceback.print_exception(error, file=sys.stderr)
