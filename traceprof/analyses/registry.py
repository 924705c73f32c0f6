"""The analyses, in order: of each rank, and of the whole run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from traceprof.analyses import (
    breakdown,
    collectives,
    ddp_buckets,
    gpu_idle,
    host_sync,
    late_allreduce,
    launch_queue,
    nccl_serialization,
    overlap_slowdown,
    pageable_copy,
    process_group_scaling,
    process_groups,
    straggler,
)
from traceprof.analyses.links import link_counters, link_usage, peer_transfers
from traceprof.ranks import arrivals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.findings import Finding, NotApplicable
    from traceprof.run.opening import RunSummary
    from traceprof.run.rank import Rank, Window
    from traceprof.trace.model.parts import Part


class AnalysisModule(Protocol):
    """The shape of every module in `traceprof.analyses`.

    Attributes:
        IDS: the findings it can make.
        REQUIRES: parts of a trace without which it cannot run.
        EXPLANATIONS: by finding id, in Markdown: what it means, how it is measured, what to do.
    """

    IDS: tuple[str, ...]
    REQUIRES: tuple[Part, ...]
    EXPLANATIONS: dict[str, str]

    def run(self, rank: Rank, window: Window) -> Any:  # noqa: ANN401  (each has its own result)
        """Return numbers only."""

    def findings(self, result: Any) -> list[Finding | NotApplicable]:  # noqa: ANN401
        """Judge the numbers."""


class RunAnalysisModule(Protocol):
    """The shape of those modules that look at all ranks together.

    Attributes:
        IDS: the findings it can make.
        OF: the module whose results, by rank, it compares.
        EXPLANATIONS: by finding id, in Markdown.
    """

    IDS: tuple[str, ...]
    OF: AnalysisModule
    EXPLANATIONS: dict[str, str]

    def run(self, run: RunSummary, measured: Sequence[Any]) -> Any:  # noqa: ANN401
        """Return numbers only."""

    def findings(self, result: Any) -> list[Finding | NotApplicable]:  # noqa: ANN401
        """Judge the numbers."""


# Of ranks with a GPU.
ANALYSES: tuple[AnalysisModule, ...] = (
    breakdown,
    gpu_idle,
    nccl_serialization,
    overlap_slowdown,
    launch_queue,
    link_usage,
    link_counters,
    peer_transfers,
    pageable_copy,
    host_sync,
    collectives,
    late_allreduce,
    arrivals,
    ddp_buckets,
)
# Of ranks without.
CPU_ANALYSES: tuple[AnalysisModule, ...] = (breakdown, process_groups, arrivals, ddp_buckets)
# Of the whole run.
RUN_ANALYSES: tuple[RunAnalysisModule, ...] = (process_group_scaling, straggler)
RANK_ANALYSES: tuple[AnalysisModule, ...] = tuple(dict.fromkeys((*ANALYSES, *CPU_ANALYSES)))
FINDING_IDS = (
    *(id_ for module in RANK_ANALYSES for id_ in module.IDS),
    *(id_ for module in RUN_ANALYSES for id_ in module.IDS),
)
_TEXTS = (
    *(module.EXPLANATIONS for module in RANK_ANALYSES),
    *(module.EXPLANATIONS for module in RUN_ANALYSES),
)
EXPLANATIONS = {each: text for texts in _TEXTS for each, text in texts.items()}
"""What each finding means, how it is measured, what to do: in Markdown, by id."""
