"""The one door: what would a step of these reports take if?"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from traceprof.analysis import Analysis, Options, analyze
from traceprof.errors import UsageError
from traceprof.whatif.answers import WhatIf, answer
from traceprof.whatif.assumptions import Assumption, combined, parse
from traceprof.whatif.step_path import StepPath, step_path

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from traceprof.progress import Progress
    from traceprof.run.opening import RunSummary
    from traceprof.run.summary import FailedReport


@dataclass(frozen=True)
class Asked:
    """What was asked of a run, and the answers.

    Attributes:
        run: the reports and their ranks.
        whatif: the step as it is, and what it would be.
        failed: reports that could not be read; the run has none of them.
        paths: the critical paths of the steps that were asked for.
    """

    run: RunSummary
    whatif: WhatIf
    failed: tuple[FailedReport, ...]
    paths: tuple[StepPath, ...] = ()


def whatif(
    *paths: str | os.PathLike[str],
    assume: Iterable[str] = (),
    paths_of: Iterable[int] = (),
    options: Options | None = None,
    listener: Progress | None = None,
    jobs: int | None = None,
) -> Asked:
    """Answer what a training step of a run would take under assumptions.

    Args:
        paths: the reports of one run.
        assume: assumptions, such as `no-sync` or `link=2x`: each is answered, and if there are
            several, then all of them together. Without any, every single one that needs no value.
        paths_of: the numbers of the steps whose critical paths are wanted.
        options: how to read the reports.
        listener: told of the rows that are read.
        jobs: how many processes may analyse.

    Raises:
        TraceprofError: no report can be read, or there is no such assumption or step.
    """
    chosen = _chosen(assume)
    shown = None if listener is None else _Shown(listener)
    options = replace(options or Options(), savings=False)
    with closing(analyze(*paths, options=options, listener=shown, jobs=jobs)) as analysis:
        asked = answer(analysis, chosen)
        critical = tuple(_path_of(analysis, step) for step in paths_of)
        return Asked(analysis.result.run, asked, analysis.result.failed, critical)


def _chosen(texts: Iterable[str]) -> list[Assumption]:
    chosen = [parse(text) for text in texts]
    return [*chosen, combined(chosen)] if len(chosen) > 1 else chosen


def _path_of(analysis: Analysis, step: int) -> StepPath:
    path = step_path(analysis, step)
    if path is None:
        raise UsageError(
            f"cannot follow the critical path of step {step}",
            "not every rank has such a step, a GPU and API calls",
            "choose a step of `traceprof info`",
        )
    return path


class _Shown:
    """Tells somebody who counts rows, and has no use for results that are not whole."""

    def __init__(self, progress: Progress) -> None:
        self.expect, self.advance = progress.expect, progress.advance

    def partial(self, result: Analysis, /) -> None:
        """Do nothing."""
