"""Events on tracks, in columns, and the flow ids that join them by arrows.

A flow joins the parts of one operation on different ranks, or a launch and what it starts. Events
that cross each other get tracks of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from traceprof.communication.messages import messages
from traceprof.host.places import places, places_of_calls
from traceprof.intervals import Int32, Int64, Mask
from traceprof.ranks.comparison import RankComparison
from traceprof.reports.tracks import EventKind, Track
from traceprof.run.rank import CpuRank, Rank
from traceprof.structs import Record
from traceprof.trace.columns import Index, Rows

if TYPE_CHECKING:
    from typing_extensions import Self


Value = int | float | str | bool
Span = tuple[int, int, str, str, Mapping[str, Value]]
Flows = tuple[Int64, Int64]
"""The arrows of events, int64[m] both: the event, ascending, and the number of the arrow."""

NO_FLOWS: Flows = (np.empty(0, np.int64), np.empty(0, np.int64))


def _of_keys(keys: Int32, ascending: Int64) -> Flows:
    """Return events and places of what has their keys: all of it, also several of one event."""
    first = np.searchsorted(ascending, keys)
    num = np.searchsorted(ascending, keys, side="right") - first
    event = np.repeat(np.arange(len(keys)), num)
    return event, np.arange(len(event)) + np.repeat(first - np.cumsum(num) + num, num)


class MatchedFlows(Record, frozen=True):
    """Flow ids that a rank's matched operations share with those of other ranks."""

    # int64[n], ascending: indices of kernels or, without a GPU, of operations. One that sent and
    # received several messages is there several times
    operation: Int64
    number: Int64  # int64[n]
    wait_ns: Int64  # int64[n], the rank's wait for the last one
    last_rank: Int64  # int64[n], the rank that came last
    is_known: Mask  # bool[n], whether these two are

    def of(self, track: Track) -> tuple[Flows, dict[str, tuple[Int64, Mask]]]:
        """Return flow ids and notes of the events of a track; of several messages the last's."""
        event, at = _of_keys(track.operation, self.operation)
        known = np.flatnonzero(self.is_known[at])
        is_known = np.zeros(len(track), np.bool_)
        is_known[event[known]] = True
        notes = {}
        for name, values in (("wait_ns", self.wait_ns), ("last_rank", self.last_rank)):
            column = np.zeros(len(track), np.int64)
            column[event[known]] = values[at[known]]
            notes[name] = column, is_known
        return (event, self.number[at]), notes


def flows_of(rank: Rank, comparison: RankComparison) -> MatchedFlows | None:
    """Return the flow ids of a rank's matched operations, with notes; None if none was matched."""
    if rank.rank not in comparison.ranks:
        return None
    if isinstance(rank, CpuRank):
        index = np.flatnonzero(rank.work.operations.is_over)
    else:
        index = messages(rank).kernel
    member = comparison.ranks.index(rank.rank)
    parts = []
    first_flows = np.cumsum([1, *map(len, comparison.waits)]).tolist()
    for first, waits in zip(first_flows, comparison.waits, strict=False):
        if member not in waits.group.members or waits.group.is_mpi:
            continue
        column = waits.group.members.index(member)
        ranks = np.array([comparison.ranks[place] for place in waits.group.members], np.int64)
        parts.append(
            (
                index[waits.group.place[:, column]],
                first + np.arange(len(waits)),
                waits.wait_ns[:, column],
                ranks[waits.last],
                waits.is_known & ~waits.is_unknown,
            )
        )
    if not parts:
        return None
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return MatchedFlows(*(column[order] for column in columns))


class LaunchFlows(Record, frozen=True):
    """Flow ids that operations of a rank's GPU share with the calls that launched them."""

    number: Int64  # int64[n] of operations, one kind after the other; 0 for those without a call
    by_call: Int64  # int64[m], those of all ranks of the process, in the order of the calls
    call: Int64  # int64[m], ascending, the call of each

    def of(self, track: Track) -> Flows:
        """Return the flow ids of the events of a track."""
        if len(track) == 0 or track.row[0] < 0:
            return NO_FLOWS
        if track.is_host:
            event, at = _of_keys(track.row, self.call)
            return event, self.by_call[at]
        number = self.number[track.row]
        event = np.flatnonzero(number)
        return event, number[event]


def launch_flows(rank: Rank, ranks: Sequence[Rank], comparison: RankComparison) -> LaunchFlows:
    """Return the flow ids of a rank's launches, which follow those of matched operations.

    `ranks`: of the run, in an order that is the same for each of them.
    """
    base = 1 + sum(len(waits) for waits in comparison.waits)
    own = np.empty(0, np.int64)
    calls, numbers = [own], [own]
    for other in ranks:
        if not isinstance(other, CpuRank):
            if (other.report, other.process) == (rank.report, rank.process):
                call = np.concatenate(other.launched_by)
                number = np.where(call >= 0, base + np.arange(len(call)), 0)
                own = number if other is rank else own
                calls.append(call[call >= 0])
                numbers.append(number[call >= 0])
            base += len(other.operations)
    call, number = np.concatenate(calls), np.concatenate(numbers)
    order = np.argsort(call, kind="stable")
    return LaunchFlows(own, number[order], call[order])


_CATEGORIES = tuple(str(category) for category in EventKind)


class TrackEvents(Rows, frozen=True):
    """Events to be written, by start, longer ones first."""

    start_ns: Int64  # int64[n], on the run's clock
    end_ns: Int64  # int64[n]
    name: npt.NDArray[np.integer]  # int[n], indices into `names`
    names: Sequence[str]  # of the events
    category: npt.NDArray[np.integer]  # int[n], indices into `categories`
    categories: Sequence[str]  # of the events
    flows: Flows  # arrows go from one event of a number to the next
    # numbers that are shown of some: int64[n] by name, and bool[n], which have it
    notes: Mapping[str, tuple[Int64, Mask]]
    own_notes: Mapping[int, Mapping[str, Value]]  # of few events, by index
    # int32[n], indices into `places`, -1 for none: the range of the program around the call that
    # each event is, or that launched it; None where no event has one
    place: Int32 | None = None
    places: Sequence[str] = ()

    def chosen(self, rows: Index) -> Self:
        """Return some of the events, with their flows and notes."""
        kept = np.arange(len(self))[rows]
        new = np.full(len(self), -1)
        new[kept] = np.arange(len(kept))
        event, number = self.flows
        is_kept = new[event] >= 0
        flows = new[event[is_kept]], number[is_kept]
        own = {int(new[event]): said for event, said in self.own_notes.items() if new[event] >= 0}
        notes = {key: (values[rows], known[rows]) for key, (values, known) in self.notes.items()}
        return replace(super().chosen(rows), flows=flows, notes=notes, own_notes=own)


def noted(spans: Sequence[Span], to_run: Callable[[Int64], Int64] | None = None) -> TrackEvents:
    """Return a few events.

    `spans`: start, end, name, category and notes of each; of those that begin at one time, longer
    ones first.
    """
    ordered = sorted(spans, key=lambda span: span[0])
    times = np.array([span[:2] for span in ordered], np.int64).reshape(-1, 2)
    start, end = (times if to_run is None else to_run(times)).T
    number = np.arange(len(ordered))
    return TrackEvents(
        start,
        end,
        number,
        [span[2] for span in ordered],
        number,
        [span[3] for span in ordered],
        NO_FLOWS,
        {},
        {index: span[4] for index, span in enumerate(ordered) if span[4]},
    )


def events_of(
    track: Track,
    to_run: Callable[[Int64], Int64],
    flows: MatchedFlows | None = None,
    launches: LaunchFlows | None = None,
    rank: Rank | None = None,
) -> TrackEvents:
    """Return the events of a track, with their places if `rank` is given."""
    matched, notes = (NO_FLOWS, {}) if flows is None else flows.of(track)
    launched = NO_FLOWS if launches is None else launches.of(track)
    event, number = map(np.concatenate, zip(matched, launched, strict=True))
    order = np.argsort(event, kind="stable")
    return TrackEvents(
        to_run(track.start_ns),
        to_run(track.end_ns),
        track.name,
        track.names,
        track.category,
        _CATEGORIES,
        (event[order], number[order]),
        notes,
        {},
        *(() if rank is None else _places(track, rank)),
    )


def _places(track: Track, rank: Rank) -> tuple[Int32, Sequence[str]] | tuple[()]:
    if isinstance(rank, CpuRank) or not len(track) or track.row[0] < 0:
        return ()
    row = track.row.astype(np.int64)
    call = row if track.is_host else np.concatenate(rank.launched_by)[row]
    return places_of_calls(rank, call), places(rank).names
