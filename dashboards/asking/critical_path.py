"""The question for the critical path of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceprof.replay.answers.step_path import step_path

if TYPE_CHECKING:
    from traceprof.analysis import Analysis
    from traceprof.replay.answers.critical_path import StepPath


@dataclass(frozen=True, slots=True)
class PathQuestion:
    """The critical path: calls and operations that determine the length of a step.

    Attributes:
        step: the number of the step; None for the whole training.
    """

    step: int | None


def critical_path(analysis: Analysis, question: PathQuestion) -> StepPath | None:
    """Return the critical path of a step; None if the dependencies are unknown.

    Args:
        analysis: of a run whose reports are open.
        question: which step.
    """
    return step_path(analysis, question.step)
