"""Options of an analysis, and its number of processes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, cast

from traceprof.analyses.measurements import Wanted
from traceprof.analyses.registry import FINDING_IDS, wanted
from traceprof.errors import UsageError, closest
from traceprof.hardware import parse_peaks
from traceprof.kernel_names import CommunicationPatterns, user_patterns
from traceprof.run.host_clock import aligned
from traceprof.run.opening import open_report
from traceprof.run.rank import Rank
from traceprof.run.step_ranges import user_pattern
from traceprof.run.windows import Range, check_choice
from traceprof.trace.model.trace import Trace

Item = TypeVar("Item")

_MAX_FLOPS = 1e18  # of a step of one GPU, which does at most some 1e16 in a second


@dataclass(frozen=True)
class Options:
    """Options of an analysis.

    Attributes:
        only: finding ids to judge; all if empty. Only what these need is measured, so that there is
            no verdict on the run, which needs all.
        skip: finding ids not to list; the verdict on the run stays that of all findings.
        steps: steps A up to but not including B; None leaves a side open.
        time_range: nanoseconds on the report's own clock; None leaves a side open.
        step_pattern: regular expression of the user's own step ranges.
        communication_kernels: `REGEX` or `REGEX=Operation` for kernels that communicate.
        link_peaks: `LINK=GB_PER_S` for links whose peak rate the user provides.
        savings: whether steps are replayed without each finding, else savings are bounds; None to
            replay only if that takes a small part of the analysis.
        period: whether the period of the program is its step where no range marks steps.
        flops_per_step: multiplications and additions of a training step of one rank, for the share
            of the GPU's peak where the shapes of operators are not recorded, or not all.
        measures_all: whether everything is measured although `only` names some findings; else the
            result holds what these findings need, and no tables of kernels or communication.
    """

    only: Sequence[str] = ()
    skip: Sequence[str] = ()
    steps: Range | None = None
    time_range: Range | None = None
    step_pattern: str | None = None
    communication_kernels: Sequence[str] = ()
    link_peaks: Sequence[str] = ()
    savings: bool | None = None
    period: bool = True
    flops_per_step: float | None = None
    measures_all: bool = False

    def wanted(self, num_reports: int) -> Wanted | None:
        """Return what to measure of a run; None for everything."""
        if self.measures_all or not self.only:
            return None
        ids = [id_ for id_ in self.only if id_ not in self.skip]
        is_replayed = self.savings is not False
        return wanted(ids, is_replayed=is_replayed, has_several_reports=num_reports > 1)

    def check(self) -> None:
        """Check the options before any report is opened. Raises UsageError: there is one."""
        self._check_types()
        for id_ in (*self.only, *self.skip):
            if id_ not in FINDING_IDS:
                raise no_such_finding(id_)
        if set(self.only or FINDING_IDS) <= set(self.skip):
            raise UsageError(
                "cannot judge anything",
                "each finding that is asked for is also skipped",
                "skip fewer, or name fewer to skip than to judge",
            )
        check_choice(self.steps, self.time_range)
        _ = self.patterns, self.own_steps, self.peaks

    def _check_types(self) -> None:
        for name in ("only", "skip", "communication_kernels", "link_peaks"):
            listed(name, getattr(self, name), str)
        for name in ("steps", "time_range"):
            value = getattr(self, name)
            if value is not None and not _is_range(value):
                raise _wrong(name, value, "a pair of whole numbers, one of them perhaps None")
        if not isinstance(self.step_pattern, (str, type(None))):
            raise _wrong("step_pattern", self.step_pattern, "a regular expression as a text")
        if not isinstance(self.savings, (bool, type(None))):
            raise _wrong("savings", self.savings, "True, False or None")
        if not isinstance(self.period, bool):
            raise _wrong("period", self.period, "True or False")
        if self.flops_per_step is not None and not _is_flops(self.flops_per_step):
            wanted = "a number above 0 and up to 1e18, such as 4.2e14"
            raise _wrong("flops_per_step", self.flops_per_step, wanted)

    @cached_property
    def patterns(self) -> CommunicationPatterns:
        """Patterns of communication kernels."""
        return CommunicationPatterns(user_patterns(self.communication_kernels))

    @cached_property
    def own_steps(self) -> re.Pattern[str] | None:
        """Pattern of the user's own step ranges."""
        return user_pattern(self.step_pattern) if self.step_pattern else None

    @cached_property
    def peaks(self) -> Mapping[str, float]:
        """Peak rates from the user, GB/s by link."""
        return parse_peaks(self.link_peaks)

    def ranks_of(self, trace: Trace) -> list[Rank]:
        """Return the ranks of a report, as `run.open_report` does, on the clock of its host."""
        return aligned(self.opened_ranks_of(trace))

    def opened_ranks_of(self, trace: Trace) -> list[Rank]:
        """Return the ranks of a report before its API calls are read."""
        return open_report(
            trace,
            self.patterns,
            self.own_steps,
            self.peaks,
            use_period=self.period,
            flops_per_step=self.flops_per_step,
        )


def checked(options: Options | None) -> Options:
    """Return checked options; without any, those that select everything.

    Raises UsageError: there is a mistake, or they are something else.
    """
    if options is None:
        return Options()
    if not isinstance(options, Options):
        raise _wrong("options", options, "traceprof.Options(...)")
    options.check()
    return options


def listed(name: str, values: object, kind: type[Item] | tuple[type[Item], ...]) -> list[Item]:
    """Return the items of an argument.

    Raises UsageError: it is not a collection of such items, as a single text is not.
    """
    items = None if isinstance(values, str) or not isinstance(values, Iterable) else [*values]
    if items is None or not all(
        isinstance(item, kind) and not isinstance(item, bool) for item in items
    ):
        raise _wrong(name, values, f"a list of {'texts' if kind is str else 'whole numbers'}")
    return items


def num_jobs(jobs: int | None) -> int:
    """Return the number of processes: as many as asked for, or else one for each core.

    Raises UsageError: it is not a number of processes.
    """
    if jobs is not None:
        if not is_whole_number(jobs) or jobs < 1:
            raise _wrong("jobs", jobs, "a whole number from 1 on, or None")
        return jobs
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_listener(listener: object) -> None:
    """Check that progress can be reported to a listener.

    Raises UsageError: it lacks a method of `Progress`.
    """
    methods = ("expect", "advance")
    if not all(callable(getattr(listener, method, None)) for method in methods):
        raise _wrong("listener", listener, f"an object with the methods {', '.join(methods)}")


def named_finding(text: str) -> str:
    """Return the id of a finding that a text names, or that alone begins like it.

    Raises UsageError: there is none, or several begin so.
    """
    begin = [id_ for id_ in FINDING_IDS if id_.startswith(text)] if text else []
    if text in FINDING_IDS or len(begin) == 1:
        return text if text in FINDING_IDS else begin[0]
    if begin:
        why = f"{', '.join(begin)} begin so"
        raise UsageError(f"there is no finding {text!r}", why, "write more of it")
    raise no_such_finding(text)


def no_such_finding(id_: str) -> UsageError:
    """Return the error of a finding's id that this version does not know."""
    meant = closest(id_, FINDING_IDS)
    return UsageError(
        f"there is no finding {id_!r}",
        f"this version finds {', '.join(FINDING_IDS)}",
        "choose among them" if meant is None else f"did you mean {meant!r}?",
    )


def is_whole_number(value: object) -> bool:
    """Return whether an argument is an integer, and neither True nor False."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_flops(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 < cast("float", value) <= _MAX_FLOPS


def _is_range(value: object) -> bool:
    return (
        isinstance(value, (tuple, list))
        and len(value) == 2
        and all(limit is None or is_whole_number(limit) for limit in value)
    )


def _wrong(name: str, value: object, kind: str) -> UsageError:
    return UsageError(f"cannot use {name}={value!r}", "that is not a value for it", f"give {kind}")
