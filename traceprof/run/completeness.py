"""What is missing from a recording: GPU operations that were launched and are not there.

The absence of a record must not be read as the absence of work. So what is there is compared
with what should be there: each launch call that succeeded has an operation with its correlation id,
and each collective of NCCL a kernel.

Which stream a launch without an operation went to is not recorded. Its candidates are the streams
to which the same thread launched by the same function: if little is lost those of the launches
before and after it, else all of them. Streams run their operations in order of launch, so a lost
operation ran on one of these between the operations launched before and after it. A launch after
which nothing more was launched to any candidate is *cut*, not lost: its operation lies beyond the
end of the recording. Launches while a stream still worked off its last operations may be either:
they are cut if all else is complete. If no operation of the function was recorded, nothing is known
of the stream, and the lost time lasts until the host next waited for the GPU.

Not lost are launches that never run (captured into a graph, failed), and copies or sets of a kind
that was not recorded at all; kernels are, as whoever records copies records them. Copies and sets
of no bytes have no operation, and calls do not show their bytes: missing ones count only where
kernels are missing, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import ceil
from typing import Annotated, Protocol

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from traceprof import intervals
from traceprof.findings import Count
from traceprof.intervals import NO_NUMBERS, Float64, Int64, Intervals, Mask
from traceprof.run.guard import optional
from traceprof.structs import Record
from traceprof.trace.columns import Rows
from traceprof.trace.grouping import distinct_values, groups, is_in
from traceprof.trace.model.host import ApiCalls
from traceprof.trace.model.kinds import BEGIN_CAPTURE, END_CAPTURE, ApiCallKind, api_call_kind
from traceprof.trace.model.operations import RankKey, RankOperations
from traceprof.trace.model.special_values import OPEN_END
from traceprof.trace.model.trace import Trace
from traceprof.units import counted

MIN_DOUBTFUL = 0.01
"""The share of lost launches from which on gaps between operations say little."""
MIN_UNUSABLE = 0.20
"""The share of lost launches from which on nothing is judged."""
MAX_NEGLIGIBLE = 0.001
"""The share of lost launches up to which a recording is taken as whole."""

_MAX_STRETCHES = 20
_MIN_REPLAYS = 10
"""Launches of a CUDA graph from which on some with fewer kernels lack them."""
_MAX_RARE = 0.05
"""How often such a launch occurs, of how often the usual one does."""
_KERNEL, _GRAPH, _COPY, _SET = range(4)
_KINDS = {ApiCallKind.LAUNCH: _KERNEL, ApiCallKind.COPY: _COPY, ApiCallKind.MEMORY_SET: _SET}
_KIND_OF_GROUP = (_KERNEL, _COPY, _SET, _KERNEL)  # of `RankOperations.groups`
_COLLECTIVE = re.compile(r"\Anccl(?::|[A-Z])")


class Stretch(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the recording in which operations were lost."""

    start_ns: int
    end_ns: int
    num_lost: Annotated[Count, "Number of launches in it whose operation is not recorded."]


class Losses(Struct, frozen=True):
    """What a recording lacks of a rank, in numbers."""

    num_launches: Annotated[
        Count,
        "Calls that launched operations (kernels, graphs, copies, sets), and collectives without a"
        " kernel. 0 where no calls were recorded: then nothing is known.",
    ] = 0
    num_lost: Annotated[
        Count, "Those of them whose operations should be in the recording and are not."
    ] = 0
    num_cut: Annotated[
        Count, "Those whose operations lie beyond the end of the recording; not among the lost."
    ] = 0
    num_graphs: Annotated[Count, "Launches of CUDA graphs."] = 0
    num_lost_graphs: Annotated[
        Count,
        "Those of them without operations. Launches that lack some of their kernels count by the"
        " share that they lack; `reasons` says how many there are.",
    ] = 0
    num_collectives: Annotated[
        Count, "Collectives of NCCL that were called, where none has a kernel; else 0."
    ] = 0
    lost_ns: Annotated[Count, "As in `breakdown`, from the rank's first operation to its last."] = 0
    stretches: Annotated[
        tuple[Stretch, ...], "Where it lost operations: at most 20, in order of time."
    ] = ()
    reasons: Annotated[
        tuple[str, ...],
        "What the recorder itself says it lost, and what else cannot be as it is recorded.",
    ] = ()

    @property
    def share(self) -> float:
        """Share of lost launches, 0 to 1."""
        return self.num_lost / self.num_launches if self.num_launches else 0.0

    @property
    def is_doubtful(self) -> bool:
        """Whether so much is lost that gaps between operations say little."""
        return is_doubtful(self.num_lost, self.num_launches)

    @property
    def is_unusable(self) -> bool:
        """Whether so much is lost that nothing can be judged."""
        return self.share >= MIN_UNUSABLE

    @property
    def sentence(self) -> str:
        """What is lost, in words."""
        parts = []
        if self.num_lost_graphs:
            graphs = counted(self.num_graphs, "graph launch")
            some = " or lack some" if any("fewer kernels" in why for why in self.reasons) else ""
            parts.append(
                f"{self.num_lost_graphs} of {graphs} have no kernels in the recording{some}"
            )
        if self.num_collectives:
            calls = counted(self.num_collectives, "collective")
            is_one = self.num_collectives == 1
            were = "was called, it has no" if is_one else "were called, none has a"
            parts.append(f"{calls} {were} kernel in the recording")
        others = self.num_lost - self.num_lost_graphs - self.num_collectives
        if others > 0:
            rest = self.num_launches - self.num_graphs - self.num_collectives
            also = "other " if self.num_lost_graphs else ""
            parts.append(
                f"{others} of {counted(rest, f'{also}launch')} have no operation in the recording"
            )
        return "; ".join(parts)


def is_doubtful(num_lost: int, num_launches: int) -> bool:
    """Whether so much is lost that gaps between operations say little."""
    return num_lost > 0 and num_lost >= MIN_DOUBTFUL * num_launches


class Completeness(Record, frozen=True):
    """What a recording lacks of a rank."""

    losses: Losses = Losses()
    lost: Intervals = field(default_factory=intervals.empty)
    """When lost operations may have run, beside recorded ones, too."""


COMPLETE = Completeness()


class _Recorded(Protocol):
    """A rank with a GPU: the attributes that are needed here."""

    @property
    def trace(self) -> Trace: ...
    @property
    def process(self) -> int: ...
    @property
    def device(self) -> int | None: ...
    @property
    def operations(self) -> RankOperations: ...
    @property
    def operations_of_process(self) -> list[tuple[RankKey, RankOperations]]: ...
    @property
    def communication_operations(self) -> Mapping[int, str]: ...
    @property
    def calls(self) -> ApiCalls | None: ...
    @property
    def launched_by(self) -> tuple[Int64, ...]: ...


class _Stream(Record, frozen=True):
    """The recorded operations of a stream with a known launch, in order of launch."""

    device: int
    launched_ns: Int64
    ended_ns: Int64
    """When all operations up to each were over."""
    begun_ns: Int64
    """When the first from each on began."""

    def spans(self, called_ns: Int64, *, have_some: bool = False) -> tuple[Int64, Int64]:
        """When operations launched at some times can have run; empty after the last one.

        `have_some`: of these launches some operations are recorded, and lie inside the spans.
        """
        stop = np.searchsorted(self.launched_ns, called_ns, side="right")
        first = np.searchsorted(self.launched_ns, called_ns) if have_some else stop
        last_ns = self.ended_ns[-1] if have_some else -intervals.BEYOND_NS
        start = np.maximum(np.append(-intervals.BEYOND_NS, self.ended_ns)[first], called_ns)
        return start, np.maximum(np.append(self.begun_ns, last_ns)[stop], start)


class _Missing(Rows, frozen=True):
    """Launches without an operation, or collectives without a kernel, in order of time."""

    called_ns: Int64
    thread: Int64
    name: Int64  # of the function, a key of `Trace.api_names`; -1 for collectives
    kind: Int64


class _ShortReplays(Rows, frozen=True):
    """Launches of CUDA graphs on one device with fewer kernels than their like."""

    call: Int64  # indices of the calls
    num_kernels: Int64  # how many each has
    num_missing: Int64  # how many more it should have

    @property
    def share(self) -> Float64:
        """The share of its kernels that each lacks."""
        return self.num_missing / (self.num_kernels + self.num_missing)

    def sentences(self, num_counted: int) -> Iterator[str]:
        if len(self):
            whole = int((self.num_kernels + self.num_missing).sum())
            launches, has = counted(len(self), "launch"), "has" if len(self) == 1 else "have"
            yield (
                f"{launches} of CUDA graphs {has} fewer kernels than others of the same graph:"
                f" {int(self.num_missing.sum())} of {counted(whole, 'kernel')} are missing;"
                f" counted as {counted(num_counted, 'lost launch')}"
            )


class _Process:
    def __init__(self, rank: _Recorded, calls: ApiCalls) -> None:
        self.rank, self.trace, self.calls = rank, rank.trace, calls
        self.start_ns = calls.start_ns
        names = self.trace.api_names
        self.kind_of = {name: _kind(text) for name, text in names.items()}
        self.devices = {key.device: operations for key, operations in rank.operations_of_process}
        self.launched = [
            (
                device,
                number,
                group,
                rank.launched_by[number] if device == rank.device else calls.that_launched(group),
            )
            for device, operations in self.devices.items()
            for number, group in enumerate(operations.groups)
            if len(group)
        ]
        self.has_operation = np.zeros(len(calls), np.bool_)
        for *_, call in self.launched:
            self.has_operation[call[call >= 0]] = True

    def of_kinds(self, *kinds: int) -> Mask:
        return self.trace.calls_named(self.calls, lambda name: _kind(name) in kinds)

    def num_launched(self, device: int, *kinds: int) -> int:
        """Number of launches of some kinds with operations on a device."""
        launches = np.zeros(len(self.calls), np.bool_)
        for of, _, _, call in self.launched:
            if of == device:
                launches[call[call >= 0]] = True
        return int(np.count_nonzero(launches & self.of_kinds(*kinds)))

    def missing(self) -> _Missing:
        """Launches without an operation, that should have run, in order of time."""
        rows = np.flatnonzero(self.of_kinds(*range(4)) & ~self.has_operation)
        if len(rows):
            captured = np.zeros(len(self.calls), np.bool_)
            captured[self._captured()] = True
            rows = rows[~(captured | self._are_done())[rows]]
        rows = rows[self.calls.packed_result.at(rows) <= 0]
        rows = rows[~self._are_of_reused_ids(rows)]
        rows = rows[np.argsort(self.start_ns[rows], kind="stable")]
        name = self.calls.packed_name.at(rows)
        kind = np.array([self.kind_of[key] for key in name.tolist()], np.int64)
        some = _Missing(self.start_ns[rows], self.calls.packed_thread.at(rows), name, kind)
        return some.chosen(self._are_recorded(some))

    def _are_of_reused_ids(self, rows: Int64) -> Mask:
        """Launches whose id has as many operations as launches: each has one of them."""
        ids = self.calls.correlation
        reused = distinct_values(ids[rows])

        def count(some: Int64) -> Int64:
            known = np.searchsorted(reused, some[is_in(some, reused)])
            return np.bincount(known, minlength=len(reused))

        operations = sum(count(group.correlation) for *_, group, _ in self.launched)
        has_enough = operations >= count(ids[self.of_kinds(*range(4))])
        return is_in(ids[rows], reused[has_enough])

    def _are_done(self) -> Mask:
        """Calls that are a part of a launch, or have a part with an operation.

        A runtime's call and the driver's call inside it are one launch, whatever their ids.
        """
        calls, start = self.calls, self.start_ns
        done = np.zeros(len(calls), np.bool_)
        names = [self.trace.api_names[name] for name, kind in self.kind_of.items() if kind >= 0]
        if len({name.startswith("cuda") for name in names}) < 2:
            return done
        some = np.flatnonzero(self.of_kinds(*range(4)))
        some = some[np.lexsort((-calls.ends(some), start[some], calls.packed_thread.at(some)))]
        thread, end = calls.packed_thread.at(some), calls.ends(some)
        is_outer = np.append(True, thread[1:] != thread[:-1])
        # Threads lie one after the other, far apart, so that one running maximum serves all.
        base = np.cumsum(is_outer) * (int(end.max()) - int(start[some].min()) + 1)
        is_outer[1:] |= start[some[1:]] + base[1:] >= np.maximum.accumulate(end + base)[:-1]
        outer = np.maximum.accumulate(np.where(is_outer, np.arange(len(some)), 0))
        has_any = np.zeros(len(some), np.bool_)
        np.logical_or.at(has_any, outer, self.has_operation[some])
        done[some] = has_any[outer] | ~is_outer
        return done

    def _captured(self) -> Int64:
        begins, ends = (
            np.flatnonzero(self.trace.calls_named(self.calls, pattern.match))
            for pattern in (BEGIN_CAPTURE, END_CAPTURE)
        )
        if not len(begins) and not len(ends):
            return NO_NUMBERS
        launches = np.flatnonzero(self.of_kinds(*range(4)))
        rows = np.concatenate((launches, begins, ends))
        change = np.repeat((0, 1, -1), (len(launches), len(begins), len(ends)))
        order = np.lexsort((self.start_ns[rows], self.calls.packed_thread.at(rows)))
        rows, change = rows[order], change[order]
        captured = []
        for of_thread in groups(self.calls.packed_thread.at(rows)):
            depth = np.cumsum(change[of_thread])
            depth -= min(int(depth.min()), 0)  # one may have begun before the recording
            captured.append(rows[of_thread][(depth > 0) & (change[of_thread] == 0)])
        return np.concatenate(captured)

    def _are_recorded(self, missing: _Missing) -> Mask:
        num_of_kind, num_nameless = np.zeros(4, np.int64), np.zeros(4, np.int64)
        for _, number, group, call in self.launched:
            kind = _KIND_OF_GROUP[number]
            num_of_kind[kind] += len(group)
            num_nameless[kind] += np.count_nonzero((call < 0) & (group.correlation <= 0))
        is_recorded = (num_of_kind > 0) & (num_nameless == 0)
        is_recorded[_KERNEL] |= num_of_kind[_KERNEL] == 0 and num_of_kind.any()
        # Where no graph has kernels, these may have ids of their own.
        unjoined = sum(
            int(np.count_nonzero(call < 0))
            for _, number, _, call in self.launched
            if _KIND_OF_GROUP[number] == _KERNEL
        )
        has_graphs = np.any(self.of_kinds(_GRAPH) & self.has_operation)
        is_recorded[_GRAPH] = is_recorded[_KERNEL] and bool(has_graphs or not unjoined)
        return is_recorded[missing.kind]

    def without_kernel(self) -> _Missing:
        """Calls of NCCL, where the process has no kernel of communication."""
        rank, nothing = self.rank, _Missing(*[NO_NUMBERS] * 4)
        of_process = self.trace.communication_calls(rank.process)
        calls = of_process.nccl if len(of_process.nccl) else of_process.labelled
        if not len(calls) or (
            rank.communication_operations
            and any(
                operations.kernels.are_named(rank.communication_operations).any()
                for operations in self.devices.values()
            )
        ):
            return nothing
        if any(len(operations.graphs) for operations in self.devices.values()):
            return nothing
        ranges = self.trace.ranges(_COLLECTIVE, rank.process).get(rank.process)
        if ranges is None:
            return nothing
        # Launches in a call are looked at by themselves; the names of their kernels may be unknown.
        launched = np.sort(self.start_ns[self.of_kinds(*range(4))])
        of_nccl = np.sort(ranges.start_ns)
        has_launch, has_range = (
            np.searchsorted(times, calls.start_ns) < np.searchsorted(times, calls.end_ns)
            for times in (launched, of_nccl)
        )
        rows = np.flatnonzero(
            ~has_launch & has_range & (calls.world_size != 1) & (calls.end_ns < OPEN_END)
        )
        of_none = np.full(len(rows), -1, np.int64)
        return _Missing(calls.start_ns[rows], calls.thread[rows], of_none, of_none)

    def short_replays(self) -> dict[int, _ShortReplays]:
        """Launches of graphs that have fewer kernels than others of the same graph.

        Graphs that begin alike differ by kernels: a launch is short if it is rare, and most others
        have all of its kernels and more.
        """
        if _GRAPH not in self.kind_of.values():
            return {}
        is_graph, short = self.of_kinds(_GRAPH), {}
        for device, number, _, call in self.launched:
            rows = np.flatnonzero((call >= 0) & is_graph[call]) if number == 0 else NO_NUMBERS
            if len(rows) < _MIN_REPLAYS:
                continue
            launch, first, replay = np.unique(call[rows], return_index=True, return_inverse=True)
            signature = self.devices[device].kernels.signature[rows]
            expected = _expected(
                replay, signature, signature[first], self.calls.packed_thread.at(launch)
            )
            count = np.bincount(replay)
            found = _ShortReplays(launch, count, expected - count).chosen(expected > count)
            if len(found):
                short[device] = found
        return short

    def streams(self) -> tuple[list[_Stream], Int64]:
        """Streams, and the number of that of each call, int64[calls]; -1 for none."""
        by_stream: dict[tuple[int, int], list[tuple[Int64, Int64, Int64]]] = {}
        for device, _, group, call in self.launched:
            stream = group.packed_stream.values
            for number in group.packed_stream.distinct.tolist():
                rows = np.flatnonzero((stream == number) & (call >= 0))
                if len(rows):
                    columns = call[rows], group.start_ns[rows], group.ends(rows)
                    by_stream.setdefault((device, number), []).append(columns)
        streams, stream_of = [], np.full(len(self.calls), -1, np.int64)
        for place, ((device, _), parts) in enumerate(by_stream.items()):
            call, start, end = (np.concatenate(part) for part in zip(*parts, strict=True))
            stream_of[call] = place
            launched = self.start_ns[call]
            order = np.argsort(launched, kind="stable")
            begun = np.minimum.accumulate(start[order][::-1])[::-1]
            streams.append(
                _Stream(device, launched[order], np.maximum.accumulate(end[order]), begun)
            )
        return streams, stream_of

    def lost(
        self, missing: _Missing, short: Mapping[int, _ShortReplays]
    ) -> Iterator[tuple[int, Completeness]]:
        streams, stream_of = self.streams()
        candidates = np.zeros((len(missing), len(streams)), np.bool_)
        near = candidates.copy()
        is_known = np.zeros(len(missing), np.bool_)
        for rows in groups(missing.thread, missing.name):
            thread, name = missing.thread[rows[0]], missing.name[rows[0]]
            of_thread = self.calls.packed_thread.isin([int(thread)])
            of_both = of_thread & self.calls.packed_name.isin([int(name)]) & (stream_of >= 0)
            is_known[rows] = of_both.any()
            like = of_both if of_both.any() else of_thread & (stream_of >= 0)
            like = like if like.any() else stream_of >= 0
            candidates[np.ix_(rows, distinct_values(stream_of[like]))] = True
            calls = np.flatnonzero(of_both)
            if len(calls):
                calls = calls[np.argsort(self.start_ns[calls], kind="stable")]
                after = np.searchsorted(self.start_ns[calls], missing.called_ns[rows])
                near[rows, stream_of[calls[np.maximum(after - 1, 0)]]] = True
                near[rows, stream_of[calls[np.minimum(after, len(calls) - 1)]]] = True
        called = missing.called_ns
        last_launched, last_begun = (
            np.array([int(getattr(stream, name)[-1]) for stream in streams], np.int64)
            for name in ("launched_ns", "begun_ns")
        )
        over = called[:, np.newaxis] > last_launched
        works_off = over & (called[:, np.newaxis] < last_begun)
        # A collective without any kernel is never beyond the last one.
        may_be: Mask = (missing.kind >= 0) & (len(streams) > 0)
        is_cut: Mask = may_be & np.all(over | ~candidates, axis=1)
        may_be_cut: Mask = may_be & np.any(works_off & candidates, axis=1) & ~is_cut
        num_launched = {device: self.num_launched(device, *range(4)) for device in self.devices}
        num_all = sum(num_launched.values()) + len(missing)
        if np.count_nonzero(~is_cut & ~may_be_cut) <= MAX_NEGLIGIBLE * num_all:
            is_cut |= may_be_cut
        is_lost: Mask = ~is_cut
        has_kernels = any(number in {0, 3} for _, number, _, _ in self.launched)
        has_kernels |= bool(self.of_kinds(_KERNEL, _GRAPH).any())
        if has_kernels and not (is_lost & (missing.kind < _COPY)).any():
            is_lost[:] = False  # copies and sets of no bytes
            num_all -= int(np.count_nonzero(~is_cut))
        if np.count_nonzero(is_lost) < MIN_DOUBTFUL * num_all:
            candidates = np.where(np.any(near, axis=1, keepdims=True), near, candidates)
        device_of = np.full(len(missing), self.rank.device)
        if streams:
            of_stream = np.array([stream.device for stream in streams])
            device_of = of_stream[np.argmax(candidates & ~over, axis=1)]
        for device in self.devices:
            own = device_of == device
            spans = [
                stream.spans(called[own & is_lost & candidates[:, place]])
                for place, stream in enumerate(streams)
                if stream.device == device
            ]
            spans.append(self._until_waited(called[own & is_lost & ~is_known]))
            replays, around, counted_ns = self._replays(device, short.get(device), streams)
            lost_ns = np.sort(np.append(called[own & is_lost], counted_ns))
            lost = intervals.union(*map(np.concatenate, zip(*spans, *around, strict=True)))
            kind = missing.kind[own]
            num_lost, num_cut = (
                np.bincount(kind[of[own]] + 1, minlength=5) for of in (is_lost, is_cut)
            )
            yield (
                device,
                Completeness(
                    Losses(
                        num_launches=num_launched[device] + int(num_lost.sum() + num_cut.sum()),
                        num_lost=len(lost_ns),
                        num_cut=int(num_cut.sum()),
                        num_graphs=self.num_launched(device, _GRAPH)
                        + int(num_lost[1 + _GRAPH] + num_cut[1 + _GRAPH]),
                        num_lost_graphs=int(num_lost[1 + _GRAPH]) + len(counted_ns),
                        num_collectives=int(num_lost[0]),
                        stretches=tuple(_stretches(lost_ns, lost)),
                        reasons=tuple(replays.sentences(len(counted_ns))),
                    ),
                    lost,
                ),
            )

    def _replays(
        self, device: int, short: _ShortReplays | None, streams: list[_Stream]
    ) -> tuple[_ShortReplays, list[tuple[Int64, Int64]], Int64]:
        """Short replays that are not cut, when they ran, and calls to count as lost."""
        if short is None:
            return _ShortReplays(*[NO_NUMBERS] * 3), [], NO_NUMBERS
        own = [stream for stream in streams if stream.device == device]
        last_ns = max(int(stream.launched_ns[-1]) for stream in own)
        short = short.chosen(self.start_ns[short.call] < last_ns)
        called_ns = self.start_ns[short.call]
        worst = np.argsort(-short.share, kind="stable")[: ceil(short.share.sum())]
        return short, [stream.spans(called_ns, have_some=True) for stream in own], called_ns[worst]

    def _until_waited(self, called_ns: Int64) -> tuple[Int64, Int64]:
        """Time from each launch to the end of the next wait of the host for the GPU."""
        are_waits = self.trace.calls_named(
            self.calls, lambda name: api_call_kind(name) is ApiCallKind.SYNCHRONIZE
        )
        waits = np.flatnonzero(are_waits)
        waits = waits[np.argsort(self.start_ns[waits], kind="stable")]
        end = np.append(np.maximum.accumulate(self.calls.ends(waits)), intervals.BEYOND_NS)
        return called_ns, np.maximum(
            end[np.searchsorted(self.start_ns[waits], called_ns)], called_ns
        )


@optional("completeness", otherwise=lambda _: {})
def completeness_by_device(rank: _Recorded) -> Mapping[int, Completeness]:
    """Return what is lost on each device of the process of a rank."""
    calls, reasons = rank.calls, tuple(rank.trace.losses)
    if rank.device is None:
        return {}
    process = None if calls is None or not len(calls) else _Process(rank, calls)
    if process is None or not process.has_operation.any():  # ids join nothing: they tell of no loss
        return {rank.device: Completeness(Losses(reasons=reasons))}
    missing = process.missing()
    collectives = process.without_kernel()
    if np.count_nonzero(missing.kind == _KERNEL) >= len(collectives):
        collectives = collectives.chosen(NO_NUMBERS)  # these launches are theirs
    short = process.short_replays()
    if not len(missing) and not len(collectives) and not short:
        return {
            device: Completeness(
                Losses(num_launches=process.num_launched(device, *range(4)), reasons=reasons)
            )
            for device in process.devices
        }
    both = _Missing.joined([missing, collectives])
    both = both.chosen(np.argsort(both.called_ns, kind="stable"))
    return {
        device: replace(
            lacking, losses=replace(lacking.losses, reasons=reasons + lacking.losses.reasons)
        )
        for device, lacking in process.lost(both, short)
    }


@optional("completeness", otherwise=lambda *_: {})
def launches_in_vain(trace: Trace) -> Mapping[int, int]:
    """Number of launches by each process without any operation, where others have some."""
    working = {key.process for key in trace.operations}
    if not working:
        return {}
    silent = set(trace.calling_processes) - working
    counts = {process: _num_launches(trace, process) for process in sorted(silent)}
    return {process: count for process, count in counts.items() if count}


def _num_launches(trace: Trace, process: int) -> int:
    calls = trace.api_calls(process)
    if calls is None:
        return 0
    captures = trace.calls_named(calls, BEGIN_CAPTURE.match)
    kinds = {_GRAPH} if captures.any() else {_KERNEL, _GRAPH}  # captured kernels do not run
    launches = trace.calls_named(calls, lambda name: _kind(name) in kinds)
    # The driver's calls inside those of the runtime are no launches of their own.
    own = launches & trace.calls_named(calls, lambda name: name.startswith("cuda"))
    return int(np.count_nonzero(calls.packed_result.at(own if own.any() else launches) <= 0))


def _kind(name: str) -> int:
    kind = _KINDS.get(api_call_kind(name), -1)
    return _GRAPH if kind == _KERNEL and "Graph" in name else kind


def _expected(replay: Int64, signature: Int64, first_signature: Int64, thread: Int64) -> Int64:
    """Number of kernels that each replay should have, judged by similar ones.

    `replay`, `signature`: of each kernel; `first_signature`, `thread`: of each replay.
    """
    kinds, kind = np.unique(signature, return_inverse=True)
    count = np.bincount(replay)
    # The sum of random numbers, one for each kernel: equal for replays of equal kernels.
    number = np.random.default_rng(1).integers(1 << 40, size=len(kinds))
    content = np.zeros(len(count), np.int64)
    np.add.at(content, replay, number[kind])
    expected = count.copy()
    # Where another graph follows than after the usual one, or none, it is another: a last layer's.
    order = np.argsort(thread, kind="stable")
    follows, is_same = np.full(len(count), -1, np.int64), np.diff(thread[order]) == 0
    follows[order[:-1][is_same]] = first_signature[order[1:][is_same]]
    for like in groups(thread, first_signature):
        _, one, which, times = np.unique(
            content[like], return_index=True, return_inverse=True, return_counts=True
        )
        common = int(np.argmax(times))
        usual = int(like[one[common]])
        is_rare = times <= _MAX_RARE * times[common]
        rare = like[is_rare[which] & (count[like] < count[usual])]
        after, times_after = np.unique(follows[like[which == common]], return_counts=True)
        rare = rare[follows[rare] == after[np.argmax(times_after)]]
        if times[common] < _MIN_REPLAYS or 2 * times[common] < len(like) or not len(rare):
            continue
        in_usual = np.bincount(kind[replay == usual], minlength=len(kinds))
        chosen = np.flatnonzero(is_in(replay, rare))
        pair, num = np.unique(replay[chosen] * len(kinds) + kind[chosen], return_counts=True)
        others = pair[num > in_usual[pair % len(kinds)]] // len(kinds)
        expected[rare[~is_in(rare, others)]] = count[usual]
    return expected


def _stretches(called_ns: Int64, lost: Intervals) -> Iterator[Stretch]:
    """Parts of the recording with lost operations, at most 20, in order of time.

    `called_ns`: when these were launched, ascending. `lost`: when they may have run.
    """
    if not len(called_ns):
        return
    # A gap between two of them divides stretches if it is long, and among the longest.
    between = np.diff(called_ns)
    longest = np.sort(between)[-(_MAX_STRETCHES - 1) :]
    least = max(int(longest[0]) if len(longest) else 0, int(called_ns[-1] - called_ns[0]) // 100, 1)
    first = np.flatnonzero(np.append(True, between >= least))[:_MAX_STRETCHES].tolist()
    for low, high in pairwise([*first, len(called_ns)]):
        last_ns = int(called_ns[high - 1])
        place = int(np.searchsorted(lost.start_ns, last_ns, side="right"))
        ends = lost.end_ns[max(place - 1, 0) : place + 1].tolist()
        end_ns = max((end for end in ends if last_ns < end < intervals.BEYOND_NS), default=last_ns)
        if high < len(called_ns):
            end_ns = min(end_ns, int(called_ns[high]))
        yield Stretch(int(called_ns[low]), end_ns, high - low)
