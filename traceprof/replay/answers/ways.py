"""Ways to take what is not known of a run: each is a column of its replay."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from traceprof.replay.assumptions.assumption import Variant
from traceprof.trace.model.trace import KINETO_FORMAT

if TYPE_CHECKING:
    from traceprof.execution.open_analysis import OpenAnalysis
    from traceprof.replay.assumptions.assumption import Assumption

PROFILERS_SHARE = 0.3
"""Which share of the time for launching torch.profiler may have taken.

Of 24 steps of an H100 that waited for its host it had made 19 longer by at most this share of what
was recorded, and five by more (docs/recording.md).
"""


class Way(IntEnum):
    """Ways to take what is not known of a run, by their columns.

    Most change nothing: then they are not replayed again.
    """

    PLAIN = 0
    HIDDEN_WAITS = 1  # silences of threads that may be waits for the GPU are
    FREED_WAITS = 2  # and what frees the host of waits frees it of these
    WITHOUT_DELAYS = 3  # those of unknown reason
    WHOLE_STREAMS = 4  # who waits for communication waits for all before it on its stream
    FEWEST_WAITS = 5  # without event records, streams wait for nothing but what was seen
    UNRECORDED = 6  # the host takes less by what torch.profiler may have taken: of estimates alone
    QUICK_HOST = 7  # launching, which recorders slow, takes no time: of `limits_gpu` alone


def variants_of(assumption: Assumption | None, of_profiler: float) -> list[Variant]:
    """Return the ways to weigh a run: what is not known of it as one may take it; see `Way`."""
    is_bound = assumption is not None and assumption.is_bound
    # A wait that is hidden is one of those that go, where nothing else changes.
    stays = assumption is None or "waits" not in assumption.changed or len(assumption.changed) > 2
    return [
        Variant(assumption),
        Variant(assumption, has_hidden_waits=stays),
        Variant(assumption, has_hidden_waits=True, frees_hidden_waits=True),
        Variant(assumption, keeps_unexplained=False),
        Variant(assumption, has_whole_streams=True),
        Variant(assumption, has_possible_waits=False),
        Variant(assumption, quick_host=0.0 if is_bound else of_profiler),
        Variant(assumption, quick_host=float(assumption is None or assumption.limits_gpu)),
    ]


def ways_of(one: Assumption) -> list[Way]:
    """Return the ways in which a run is replayed with and without an assumption."""
    if not one.is_bound:
        return [way for way in Way if way is not Way.QUICK_HOST]
    return [*list(Way)[: Way.UNRECORDED], *([Way.QUICK_HOST] if one.limits_gpu else [])]


def profilers_share(analysis: OpenAnalysis) -> float:
    """Return which share of the time for launching may be the recorder's own."""
    is_of_profiler = any(rank.trace.format == KINETO_FORMAT for rank in analysis.run.ranks)
    return PROFILERS_SHARE if is_of_profiler else 0.0
