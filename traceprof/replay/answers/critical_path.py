"""The critical path of the replayed steps: the calls and operations that they run through."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from msgspec import Struct

from traceprof.findings import Count
from traceprof.replay.graph.longest_path import binding_edges, solve
from traceprof.replay.graph.process_graph import EdgeKind
from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from traceprof.replay.graph.process_facts import ProcessFacts
    from traceprof.replay.graph.run_graph import RunGraph

# Until an operation is launched, the host works; what follows is microseconds.
_HOST = (
    EdgeKind.THREAD, EdgeKind.OWN_TIME, EdgeKind.HAND_OVER, EdgeKind.LOCK, EdgeKind.LAUNCH,
    EdgeKind.SILENCE, EdgeKind.HIDDEN_WAIT, EdgeKind.NOT_HANDED_OVER,
    EdgeKind.HOST_WAIT, EdgeKind.STALL,  # calls return, or free memory once the GPU is through
)  # fmt: skip


PartKind = Literal["compute", "communication", "copy", "host", "delay"]


class PathCategory(str, Enum):
    """Kinds of parts of the critical path."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    COPY = "copy"
    HOST = "host"
    DELAY = "delay"


class PathPiece(Record, frozen=True):
    """A piece of the critical path: the calls or operations between two that others wait for.

    Attributes:
        rank: the rank's number, the first one of its process.
        start_ns: on the run's clock.
        end_ns: on the run's clock; the next piece begins there.
        spent_ns: its time by category.
    """

    rank: int
    start_ns: int
    end_ns: int
    spent_ns: Mapping[PathCategory, float]

    @property
    def part(self) -> PathCategory:
        """The kind that makes up most of it."""
        return max(self.spent_ns, key=lambda part: self.spent_ns[part])


class PathPart(Struct, frozen=True, forbid_unknown_fields=True):
    """Time that the critical path of all steps spends on a rank."""

    rank: Count
    compute_ns: Count
    communication_ns: Count
    copy_ns: Count
    host_ns: Count
    delay_ns: Annotated[
        Count, "Time between the end of what an operation waited for and its start."
    ]

    @property
    def total_ns(self) -> int:
        """All of it."""
        return self.compute_ns + self.communication_ns + self.copy_ns + self.host_ns + self.delay_ns


class StepPathPart(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a step's critical path: a call, an operation, or what passes between them."""

    rank: Count  # for host time, the first rank of the process
    kind: PartKind  # `delay`: from the end of what an operation waited for to its start
    start_ns: Annotated[int, "Start, on the clock of the rank's report."]
    end_ns: int
    name: str
    stream: Annotated[int | None, "Stream of an operation; null for parts on the host."] = None


class StepPath(Struct, frozen=True, forbid_unknown_fields=True):
    """The critical path of a step: the lengths of its parts sum to the step's."""

    step: int | None
    rank: Annotated[Count, "The rank where the step takes longest."]
    length_ns: Count
    parts: Annotated[tuple[StepPathPart, ...], "Parts in order of time."]


def critical_path(graph: RunGraph) -> Iterator[PathPiece]:
    """Yield the way to the end of the last step, within the steps, from its begin on.

    Pieces follow each other without gaps, on the rank that ends last, and on those that it waited
    for; what takes no time is left out.

    Args:
        graph: of the run; its first weights are what was measured.
    """
    weights = graph.weights.of(0)
    times = solve(graph.plan, graph.weights.chosen((0,)))[:, 0]
    last = max(graph.steps, key=lambda rank_steps: times[rank_steps.nodes[-1]])
    begin = float(times[last.nodes[0]])
    way = binding_edges(graph.plan, weights, times, int(last.nodes[-1]))
    kinds, source, target = graph.edges.kind, graph.edges.source, graph.edges.target
    first = np.array([facts.host_node for facts in graph.facts])
    stop = np.array([facts.end_node for facts in graph.facts])
    for edge in way:  # as many as there are waits on the way
        low = max(float(times[source[edge]]), begin)
        high = float(times[target[edge]])
        kind = EdgeKind(int(kinds[edge]))
        node = int(source[edge] if kind == EdgeKind.ARRIVAL else target[edge])
        process = int(np.searchsorted(first, node, side="right")) - 1
        if high <= low or node >= stop[process]:
            continue
        facts = graph.facts[process]
        spent = _spent(facts, kind, node, high - low)
        yield PathPiece(facts.ranks[0], round(low), round(high), spent)


def _spent(
    facts: ProcessFacts, kind: EdgeKind, node: int, length_ns: float
) -> dict[PathCategory, float]:
    """Return the time along an edge by kind."""
    if kind == EdgeKind.TRANSFER:
        return {PathCategory.COMMUNICATION: length_ns}
    if kind in _HOST:
        return {PathCategory.HOST: length_ns}
    if kind not in (EdgeKind.WORK, EdgeKind.LAUNCHES):
        return {PathCategory.DELAY: length_ns}
    by_kind = facts.by_kind_ns[(node - facts.gpu_node) // 2]
    total = float(by_kind.sum())
    work = min(length_ns, total)
    rest = PathCategory.HOST if kind == EdgeKind.LAUNCHES else PathCategory.DELAY
    spent = {rest: length_ns - work}
    if total:
        parts = (PathCategory.COMPUTE, PathCategory.COMMUNICATION, PathCategory.COPY)
        shares = (work * by_kind / total).tolist()
        spent |= zip(parts, shares, strict=True)
    return spent


def critical_paths(graph: RunGraph) -> tuple[PathPart, ...]:
    """Return by process what the way to the end of the last step spends, within the steps.

    The parts of all ranks together are as long as the steps, on the rank that ends last.

    Args:
        graph: of the run; its first weights are what was measured.
    """
    totals = {facts.ranks[0]: dict.fromkeys(PathCategory, 0.0) for facts in graph.facts}
    for piece in critical_path(graph):
        for part, spent_ns in piece.spent_ns.items():
            totals[piece.rank][part] += spent_ns
    return tuple(
        PathPart(rank, *(round(spent[part]) for part in PathCategory))
        for rank, spent in totals.items()
    )
