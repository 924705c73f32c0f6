"""The question how long a step would take under assumptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from traceprof.progress import UNHEARD
from traceprof.replay.answers.answers import answer
from traceprof.replay.assumptions.assumption import combined, parse

if TYPE_CHECKING:
    from traceprof.analysis import Analysis
    from traceprof.progress import Progress
    from traceprof.replay.answers.answers import WhatIf


class WhatIfQuestion(NamedTuple):
    """The length of a step under assumptions, as a question.

    Attributes:
        assumed: in the form of `traceprof whatif --assume`; empty for each assumption alone.
    """

    assumed: tuple[str, ...]


def replayed(analysis: Analysis, question: WhatIfQuestion, progress: Progress = UNHEARD) -> WhatIf:
    """Replay a step under each assumption and, if there are several, under all together.

    Args:
        analysis: of a run whose reports are open.
        question: what is assumed.
        progress: receives the number of processes and assumptions that are replayed.

    Raises:
        UsageError: there is no such assumption.
    """
    chosen = [parse(text) for text in question.assumed]
    if len(chosen) > 1:
        chosen.append(combined(chosen))
    return answer(analysis, chosen, progress)
