"""What a report hides of a rank, so that findings that need it cannot be ruled out, or made."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from traceprof import intervals
from traceprof.communication.messages import looks_like_communication
from traceprof.findings import Finding, FindingKind, NotApplicable, Sight, share
from traceprof.kernel_names.categories import kernel_kind
from traceprof.run.completeness import MAX_NEGLIGIBLE
from traceprof.run.rank import Rank, Window
from traceprof.run.recognition import may_have_others
from traceprof.structs import Record
from traceprof.trace.model.parts import Part

MIN_IN_GRAPHS = 0.01
"""The share of the time judged from which on graphs may hide a finding: less makes none."""
MIN_UNKNOWN = 0.10
"""The share of the time of kernels from which on those of unknown names may hide a finding."""

_OPENS_OTHERS = ("Ipc", "PeerAccess", "ShareableHandle", "Multicast", "MemcpyPeer")
"""Parts of the names of calls that make memory of other GPUs or processes accessible."""
_LOST = {Part.END: "the trace was cut short", Part.EVERY_OPERATION: "the profiler lost events"}


class Hidden(Record, frozen=True):
    """Something that a report hides of a rank."""

    reason: str  # what is hidden
    how_to_collect: str  # what shows it
    is_only_names: bool = False  # whether the operations themselves are there
    # whether nothing in the report is a sign of communication, or of anything to communicate with
    is_alone: bool = False
    is_lost: bool = False  # whether operations may be missing, at times when nothing seems to run
    is_counted: bool = False  # whether launches without operations show how many
    is_unusable: bool = False  # whether so many are missing that nothing can be judged

    def hides(self, kind: FindingKind, num_ranks: int) -> bool:
        """Return whether a finding of a kind may be there and not be seen, of a run of n ranks."""
        if not self.is_only_names:
            is_lost = self.is_unusable or (self.is_counted and kind.counts_gaps)
            return kind.needs is not None or is_lost
        may_communicate = num_ranks > 1 or not self.is_alone
        return kind.needs is Sight.NAMES or (kind.needs is Sight.COMMUNICATION and may_communicate)


def hidden_of(rank: Rank, window: Window) -> tuple[Hidden, ...]:
    """Return what a rank's recording hides in the judged window."""
    if rank.device is None:
        return ()
    lost = _lost(rank)
    hidden = [] if lost is None else [lost]
    graphs = rank.operations.graphs
    inside = intervals.union(graphs.start_ns, graphs.end_ns)
    if share(window.clip(inside).measure_ns, window.length_ns) >= MIN_IN_GRAPHS:
        why = "CUDA graphs were traced as a whole: the kernels inside them are not recorded"
        hidden.append(Hidden(why, rank.trace.how_to_collect(Part.GRAPH_KERNELS)))
    return (*hidden, *_unknown_names(rank, window))


def that_hold(
    kinds: Mapping[str, FindingKind],
    claims: Collection[Finding | NotApplicable],
    hidden: Mapping[int, tuple[Hidden, ...]],
) -> list[Finding | NotApplicable]:
    """Return claims; findings of gaps in which lost operations may have run are not applicable."""
    lost = {rank: cause for rank, several in hidden.items() for cause in several if cause.is_lost}
    held, doubtful = [], {}
    for claim in claims:
        why = lost.get(claim.rank) if isinstance(claim, Finding) else None
        if why is None or not (kinds[claim.id].counts_gaps or why.is_unusable):
            held.append(claim)
        else:
            gap = NotApplicable(claim.id, why.reason, why.how_to_collect, claim.rank)
            doubtful[claim.id, claim.rank] = gap
    return [*held, *doubtful.values()]


def not_ruled_out(
    kinds: Mapping[str, FindingKind],
    claims: Collection[Finding | NotApplicable],
    hidden: Mapping[int, tuple[Hidden, ...]],
    num_ranks: int,
) -> list[Finding | NotApplicable]:
    """Return the findings that were not made and may be hidden."""
    claimed = {(claim.id, claim.rank) for claim in claims}
    return [
        NotApplicable(id_, hides[0].reason, hides[0].how_to_collect, rank)
        for rank, several in hidden.items()
        for id_, kind in kinds.items()
        if (hides := [gap for gap in several if gap.hides(kind, num_ranks)])
        and (id_, rank) not in claimed
    ]


def _is_whole(rank: Rank) -> bool:
    """Return whether every launch has its operation although the profiler warns of lost events.

    Profilers warn that events might be lost wherever they stop while some are on their way.
    """
    if rank.calls is None or rank.num_devices > 1:
        return False
    losses, kernels = rank.completeness.losses, rank.launched_by[0]
    return (
        losses.num_launches > 0
        and losses.share <= MAX_NEGLIGIBLE
        and int(np.count_nonzero(kernels < 0)) <= MAX_NEGLIGIBLE * len(kernels)
    )


def _lost(rank: Rank) -> Hidden | None:
    trace, losses = rank.trace, rank.completeness.losses
    if losses.is_doubtful:
        reason = f"{losses.sentence}: when the GPU was idle is not known"
        how = trace.how_to_collect(Part.EVERY_OPERATION)
        return Hidden(reason, how, is_lost=True, is_counted=True, is_unusable=losses.is_unusable)
    for part, why in _LOST.items():
        if not trace.holds(part) and (part is Part.END or not _is_whole(rank)):
            reason = f"{why}: GPU operations may be missing, also where none seems to run"
            return Hidden(reason, trace.how_to_collect(part), is_lost=True)
    return None


def _unknown_names(rank: Rank, window: Window) -> Iterator[Hidden]:
    kernels, names = rank.operations.kernels, rank.kernel_names
    unknown = {
        id_
        for id_ in set(rank.trace.signatures.name.tolist())
        if id_ not in rank.communication_operations
        and not kernel_kind(names.get(id_, ""), communicates=False).is_known
    }
    chosen = kernels.are_named(unknown)
    if not chosen.any():
        return
    time = intervals.union(kernels.start_ns[chosen], kernels.ends(chosen))
    whole_ns = window.clip(intervals.merge(rank.compute, rank.communication)).measure_ns
    if share(window.clip(time).measure_ns, whole_ns) <= MIN_UNKNOWN:
        return
    texts = sorted(names[id_] for id_ in unknown if id_ in names)
    may_communicate = any(map(looks_like_communication, texts))
    yield Hidden(
        "kernels with unknown names take over 10 % of the kernel time: what they do is unknown",
        "give those that communicate with --communication-kernel REGEX (--kernels lists them)"
        if may_communicate
        else "see what they are: traceprof analyze --kernels",
        is_only_names=True,
        is_alone=not may_communicate and _is_alone(rank),
    )


def _is_alone(rank: Rank) -> bool:
    """Return whether the report shows nothing that communicates with a rank's GPU."""
    trace = rank.trace
    return not (
        rank.communication_operations
        or rank.is_peer_copy.any()
        or len(trace.communication_calls(rank.process).nccl)
        or any(map(trace.calls_any, _OPENS_OTHERS))
        or may_have_others(trace, rank.process)
    )
