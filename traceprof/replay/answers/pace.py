"""The pace that a data loader may set whose threads and processes make no CUDA calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.replay.graph.thread_waits import MIN_UNSEEN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceprof.replay.assumptions.assumption import Assumption
    from traceprof.replay.graph.process_facts import ProcessFacts

UNSEEN = (
    "a thread that launches nothing, such as a data loader's, may set the pace, and then nothing is"
    " gained: it may have woken the threads that train"
)
LOADING = (
    "processes that launch nothing run beside: if they load the data, a step takes no less than"
    " they need for it"
)


def may_be_paced(facts: Iterable[ProcessFacts]) -> bool:
    """Return whether a thread not seen may set the pace of a run: all may wait for it.

    Args:
        facts: about the run's processes.
    """
    return any(one.unseen_pace_ns > MIN_UNSEEN * one.span_ns for one in facts)


def loading_ns(facts: Iterable[ProcessFacts], assumption: Assumption, step_ns: int) -> float:
    """Return what processes beside need for a step if they load its data; 0 for none.

    Args:
        facts: about the run's processes.
        assumption: under which a step is looked at.
        step_ns: what a step takes.
    """
    if not assumption.keeps_loading:
        return 0.0
    return max(one.workers_ran for one in facts) * step_ns
