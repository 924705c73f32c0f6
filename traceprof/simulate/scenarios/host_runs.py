"""Data-parallel training without GPUs on several machines, with one rank that is late for a reason.

In each step a rank loads data, computes forward and backward, in which gradient buckets are
reduced in flight, waits for the last one, steps the optimizer, and reduces the loss. The ranges are
those of `instrument` over Gloo.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from traceprof import labels
from traceprof.simulate.machine import TRACEPROF_DOMAIN, Rank, write_metadata
from traceprof.simulate.scenarios.ranks import NUM_RANKS
from traceprof.trace.nsight import schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from traceprof.simulate.event_model.fleet import Capture
    from traceprof.trace.nsight.writer import NsightWriter

_US, _MS = 1_000, 1_000_000
_STEPS, _BUCKETS = 60, 3
_START_NS = 1_500 * _MS
_LOADING_NS, _FORWARD_NS, _BACKWARD_NS, _OPTIMIZER_NS = 500 * _US, 8 * _MS, 12 * _MS, 2 * _MS
_VARY = 0.02
_BUCKET_BYTES, _LOSS_BYTES, _PAIR_BYTES = 4 << 20, 4, 1 << 16
_LATENCY_NS, _BYTES_PER_NS = 300 * _US, 1
_HOOK_NS, _BETWEEN_NS, _COPY_BACK_NS, _CALL_NS = 5 * _US, 2 * _US, 30 * _US, 20 * _US
_DELAY_NS = 10 * _MS
_SLOWER = 2.25
# Members leave a small all-reduce or a barrier of Gloo 40 to 65 µs apart at the median, and one in
# twenty by 0.3 to 1 ms (two processes on one machine, recorded with nsys profile -t nvtx; with more
# processes than cores, ten times as much): a thread that is woken must be scheduled.
_LEAVING_NS, _RARELY_NS, _RARELY = 60 * _US, 1 * _MS, 0.05


@dataclass(frozen=True, slots=True)
class HostPlan:
    """What one rank without a GPU does that the others do not.

    Attributes:
        cause: as the finding names it, None for a balanced run.
        forward: how many times as long its forward takes.
        loading_ns: that it waits longer for its data.
        unnamed_ns: that it spends in no range.
        has_pairs: whether neighbours reduce something of their own within the forward, so that one
            is late because it waits for the other, which is.
    """

    cause: str | None
    forward: float = 1.0
    loading_ns: int = 0
    unnamed_ns: int = 0
    has_pairs: bool = False


HOST_PLANS: dict[str, HostPlan] = {
    "balanced": HostPlan(None),
    "slow-compute": HostPlan("slower compute", forward=_SLOWER),
    "data-loading": HostPlan("data loading", loading_ns=_DELAY_NS),
    "unnamed": HostPlan("outside the ranges", unnamed_ns=_DELAY_NS),
    "upstream": HostPlan("data loading", loading_ns=_DELAY_NS, has_pairs=True),
}
"""Runs by what is planted: one rank is late, but in the first."""


@dataclass(frozen=True, slots=True)
class Range:
    """A range of `instrument` in true time; `nests` if it was pushed and popped."""

    start_ns: int
    end_ns: int
    nests: bool
    text: str


@dataclass
class HostRun:
    """What the ranks of a run did.

    Attributes:
        ranges: of each rank.
        arrived_ns: of each process group and operation, when each member called it.
    """

    ranges: list[list[Range]] = field(default_factory=lambda: [[] for _ in range(NUM_RANKS)])
    arrived_ns: dict[str, list[dict[int, int]]] = field(default_factory=lambda: defaultdict(list))

    @property
    def span_ns(self) -> tuple[int, int]:
        """When the first range began and the last one ended."""
        every = [each for of_rank in self.ranges for each in of_rank]
        return min(each.start_ns for each in every), max(each.end_ns for each in every)

    def lateness_ns(self, late: int, group: str, least_ns: int) -> int:
        """Return how much later than the median of the others a rank came, where it was late.

        Args:
            late: the rank.
            group: whose operations count.
            least_ns: what counts as late.
        """
        lates = [
            times[late] - median(time for rank, time in times.items() if rank != late)
            for times in self.arrived_ns[group]
        ]
        return round(median(each for each in lates if each > least_ns))


def host_training(rng: np.random.Generator, plan: HostPlan, late: int) -> HostRun:
    """Return a run of eight ranks.

    Args:
        rng: says how durations vary, and how members leave.
        plan: what the late rank does.
        late: the rank.
    """
    layout = _Layout(rng, plan, late)
    for step in range(_STEPS):
        layout.load()
        began = list(layout.at)
        layout.forward()
        layout.backward()
        layout.finish(step, began)
    return layout.run


class _Layout:
    """Lays out what the ranks do, one after the other.

    Attributes:
        run: so far.
        at: how far each rank is.
    """

    def __init__(self, rng: np.random.Generator, plan: HostPlan, late: int) -> None:
        self.run = HostRun()
        self.at = [_START_NS] * NUM_RANKS
        self._rng, self._plan, self._late = rng, plan, late

    def load(self) -> None:
        """Wait for data; the late rank may do more."""
        for rank, at in enumerate(self.at):
            is_late = rank == self._late
            end = at + _LOADING_NS + self._plan.loading_ns * is_late
            self._push(rank, at, end, labels.DATA_LOADING)
            self.at[rank] = end + self._plan.unnamed_ns * is_late

    def forward(self) -> None:
        """Compute, and with pairs reduce something halfway."""
        began = list(self.at)
        for rank, at in enumerate(began):
            slower = self._plan.forward if rank == self._late else 1
            self.at[rank] = at + self._varied(_FORWARD_NS * slower)
        if self._plan.has_pairs:
            for rank in range(0, NUM_RANKS, 2):
                pair, group = (rank, rank + 1), f"{rank // 2 + 1}"
                ends = self._all_reduce(pair, group, _PAIR_BYTES, self.at)
                for each in pair:
                    text = self._label(each, group, 2, _PAIR_BYTES)
                    self._push(each, self.at[each], ends[each], text)
                    # The first of a pair goes on longer, so that it comes last.
                    more = _FORWARD_NS if each == rank else _FORWARD_NS * 3 // 4
                    self.at[each] = ends[each] + self._varied(more)
        for rank in range(NUM_RANKS):
            self._push(rank, began[rank], self.at[rank], labels.FORWARD)

    def backward(self) -> None:
        """Compute while buckets are reduced, one after the other, and wait for the last one."""
        begin = [each + _BETWEEN_NS for each in self.at]
        reduced = list(begin)
        for bucket in range(_BUCKETS):
            ready = [each + self._varied(_BACKWARD_NS * (bucket + 1) / _BUCKETS) for each in begin]
            called = [each + _HOOK_NS for each in ready]
            ends = self._all_reduce(range(NUM_RANKS), "0", _BUCKET_BYTES, called)
            reduced = [max(*each) for each in zip(ends, reduced, strict=True)]
            facts = f"index={bucket} bytes={_BUCKET_BYTES} dtype=float32"
            facts += f" last={int(bucket == _BUCKETS - 1)}"
            for rank in range(NUM_RANKS):
                text = self._label(rank, "0", NUM_RANKS, _BUCKET_BYTES)
                self.run.ranges[rank] += [
                    Range(ready[rank], reduced[rank] + _US, False, f"{labels.BUCKET} {facts}"),
                    Range(called[rank], called[rank] + _CALL_NS, True, text),
                    Range(called[rank], reduced[rank], False, text),
                ]
        for rank in range(NUM_RANKS):
            self.at[rank] = reduced[rank] + _COPY_BACK_NS
            self._push(rank, begin[rank], self.at[rank], labels.BACKWARD)

    def finish(self, step: int, began: list[int]) -> None:
        """Step the optimizer and reduce the loss; the step began at these times."""
        for rank, at in enumerate(self.at):
            end = at + self._varied(_OPTIMIZER_NS)
            self._push(rank, at, end, labels.OPTIMIZER_STEP)
            self.at[rank] = end + _BETWEEN_NS
        ends = self._all_reduce(range(NUM_RANKS), "0", _LOSS_BYTES, self.at)
        for rank, end in enumerate(ends):
            self._push(rank, self.at[rank], end, self._label(rank, "0", NUM_RANKS, _LOSS_BYTES))
            self._push(rank, began[rank], end + _BETWEEN_NS, labels.step(step))
            self.at[rank] = end + 2 * _BETWEEN_NS

    def _varied(self, length_ns: float) -> int:
        return round(length_ns * (1 + self._rng.uniform(-_VARY, _VARY)))

    def _push(self, rank: int, start: int, end: int, text: str) -> None:
        self.run.ranges[rank].append(Range(start, end, True, text))

    def _all_reduce(
        self, members: Sequence[int], group: str, size: int, called: list[int]
    ) -> list[int]:
        """Return when each rank leaves; those that are no members stay where they are."""
        self.run.arrived_ns[group].append({rank: called[rank] for rank in members})
        over = max(called[rank] for rank in members)
        over += self._varied(_LATENCY_NS + size / _BYTES_PER_NS)
        ends = list(called)
        for rank in members:
            most = _RARELY_NS if self._rng.random() < _RARELY else _LEAVING_NS
            ends[rank] = over + round(float(self._rng.random()) * most)
        return ends

    def _label(self, rank: int, group: str, num_ranks: int, size: int) -> str:
        facts = {"bytes": size, "dtype": "float32", "group": group, "rank": rank}
        facts |= {"size": num_ranks, "seq": len(self.run.arrived_ns[group]) - 1}
        return str(labels.Label("all_reduce", {name: str(each) for name, each in facts.items()}))


def write_host_run(
    writer: NsightWriter, run: HostRun, capture: Capture, command: str, session_start_ns: int
) -> None:
    """Write what a report has of a run, in its own time.

    Args:
        writer: of the export.
        run: what happened.
        capture: the report.
        command: the command line that makes this run again.
        session_start_ns: what the machine's clock showed at time 0, in ns since 1970.
    """
    write_metadata(writer, command, capture.node.name, session_start_ns)
    kinds = {True: schema.NVTX_PUSH_POP, False: schema.NVTX_START_END}
    for process in capture.processes:
        rank = Rank(process)
        writer.add(
            schema.PROCESSES, {"globalPid": rank.process, "pid": rank.pid, "name": ["python"]}
        )
        domain = {"domainId": TRACEPROF_DOMAIN, "globalTid": rank.main_thread}
        writer.add(
            schema.NVTX.name,
            {**domain, "start": _US, "eventType": schema.NVTX_DOMAIN, "text": [labels.DOMAIN]},
        )
        held = [each for each in run.ranges[process] if capture.holds(each.start_ns, each.end_ns)]
        writer.add(
            schema.NVTX.name,
            {
                **domain,
                "start": [capture.time(each.start_ns) for each in held],
                "end": [capture.time(each.end_ns) for each in held],
                "eventType": [kinds[each.nests] for each in held],
                "textId": [writer.string(each.text) for each in held],
            },
        )
    end_ns = capture.time(capture.stop_ns) + _MS
    row = {"globalVid": schema.VM_ID, "duration": end_ns, "startTime": 0, "stopTime": end_ns}
    writer.add(schema.ANALYSIS_DETAILS, row)
