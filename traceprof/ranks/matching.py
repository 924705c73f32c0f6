"""Matching of communication kernels of different ranks that are one operation.

Operations are sorted by a key that they have on all ranks (`operation_keys`). If only their order
distinguishes them, captures that begin at different operations are aligned first (`alignment`).
Kind and size must agree on all ranks; where they do not, the group is given up, with the reason.
Sends and receives of more than two ranks without peers are of the two streams whose operations all
end at the same times, on one clock, and no other's.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Annotated

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceprof.communication.messages import EXCHANGE
from traceprof.findings import Count, Text
from traceprof.ranks.alignment import OperationList, shift_between
from traceprof.ranks.operation_keys import SortKey, members_of, sorted_out
from traceprof.structs import Record
from traceprof.trace.grouping import is_in
from traceprof.trace.model.communication_calls import BARRIER, OPERATIONS
from traceprof.trace.model.special_values import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.intervals import Int64, Mask
    from traceprof.ranks.arrivals import Arrivals
    from traceprof.ranks.operation_keys import Source

# No member can leave before the last one has come: each needs what every other one sends.
LEAVE_TOGETHER = ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll", BARRIER)
# Members may send parts of different size (all_gather of uneven tensors and the like).
_UNEVEN = ("AllGather", "ReduceScatter", "AlltoAll", "Gather", "Scatter", "SendRecv", "Unknown")
_AGREE = 0.99  # of the operations of a group
# Other ranks with which a rank is aligned before it is given up, and passes over those given up.
_MAX_TRIED, _PASSES = 4, 2
_MIN_PAIRED, _SAME_END_NS = 10, 10_000  # operations of two streams, and how far apart they end
_WHO = "with more than two ranks it is unknown who sends to whom"
_NO_WAY = (
    "the ranks were captured at different operations, and either no"
    " alignment of these fits, or several do"
)


class Group(Record, frozen=True):
    """Operations that the same ranks take part in, m of them by r members.

    Attributes:
        name: NCCL's id, or `group NAME` of PyTorch, or MPI's communicator, or None.
        source: the kind of key by which operations were matched.
        members: indices into the run's ranks.
        operation: int64[m], indices into `operations`.
        bytes: int64[m], of one rank's message; -1 if unknown.
        place: int64[m, r], indices into each member's `Arrivals`; -1 if it was not captured.
        operations: names.
        num_ranks: the number of ranks of the communicator, perhaps more than were captured.
    """

    name: str | None
    source: Source
    members: tuple[int, ...]
    operation: Int64
    bytes: Int64
    place: Int64
    operations: tuple[str, ...]
    num_ranks: int

    def __len__(self) -> int:
        return len(self.operation)

    @property
    def is_mpi(self) -> bool:
        """Whether the operations are calls of MPI."""
        return self.source == "mpi"

    @property
    def is_whole(self) -> Mask:
        """Mask of the operations that were captured on all members, bool[m]."""
        whole: Mask = np.all(self.place >= 0, axis=1)
        return whole

    @property
    def leaves_together(self) -> Mask:
        """Mask of the operations that no member can leave before the last has come, bool[m]."""
        together: Mask = self.is_one_of(LEAVE_TOGETHER) & (self.bytes != 0)  # nothing to wait for
        return together

    def is_one_of(self, names: Sequence[str]) -> Mask:
        """Return which operations have one of these names, bool[m]."""
        ids = [self.operations.index(name) for name in names if name in self.operations]
        mask: Mask = is_in(self.operation, np.array(ids, np.int64))
        return mask

    def times(self, columns: Sequence[Int64]) -> Int64:
        """Return a column of the members' `Arrivals` by operation and member, int64[m, r].

        Args:
            columns: int64[n] of each member. What was not captured is 0.
        """
        values = [
            np.append(column, 0)[self.place[:, index]] for index, column in enumerate(columns)
        ]
        return np.stack(values, axis=1)

    def chosen(self, mask: Mask) -> Group:
        """Return the group with the chosen operations only."""
        return replace(
            self, operation=self.operation[mask], bytes=self.bytes[mask], place=self.place[mask]
        )

    def of_members(self, columns: Sequence[int]) -> Group:
        """Return the group with the chosen members only."""
        members = tuple(self.members[column] for column in columns)
        return replace(self, members=members, place=self.place[:, list(columns)])


class Unmatched(Struct, frozen=True, forbid_unknown_fields=True):
    """Operations that were not matched, and why."""

    name: Annotated[str | None, "Name of the communicator, if it has one."]
    ranks: tuple[Count, ...]
    reason: Text


class _Part(Record, frozen=True):
    """The operations of one rank under one key, in order.

    Attributes:
        member: index of the rank.
        at: int64[n], indices into its `Arrivals`.
        sequence: int64[n], the operations' numbers, None if they must be counted.
        kind: int64[n], indices into the names of all ranks.
        bytes: int64[n].
        end_ns: int64[n], corrected as far as the clocks are known.
        num_ranks: the number of ranks of the communicator.
    """

    member: int
    at: Int64
    sequence: Int64 | None
    kind: Int64
    bytes: Int64
    end_ns: Int64
    num_ranks: int


def match(
    arrivals: Sequence[Arrivals], seeds: Sequence[int], domains: Sequence[int], runs: Sequence[int]
) -> tuple[list[Group], list[Unmatched]]:
    """Find the operations that several ranks took part in.

    Args:
        arrivals: the arrivals of each rank.
        seeds: for each rank, the clock correction to add to its times, from the sessions' starts.
        domains: for each rank, the number of its clock: equal for ranks on one machine.
        runs: for each rank, the run of its report: operations of two runs are never matched.
    """
    communicators = members_of(arrivals, runs)
    names = tuple(
        dict.fromkeys((*OPERATIONS, *(name for arrival in arrivals for name in arrival.operations)))
    )
    parts: dict[tuple[int, SortKey], list[_Part]] = defaultdict(list)
    largest: dict[int, int] = defaultdict(int)
    for of_rank, run in zip(arrivals, runs, strict=True):
        largest[run] = max(largest[run], of_rank.rank)
    for member, of_rank in enumerate(arrivals):
        kind = np.array([names.index(operation) for operation in of_rank.operations], np.int64)
        for key, at, sequence in sorted_out(of_rank, communicators[runs[member]]):
            parts[runs[member], key].append(
                _Part(
                    member=member,
                    at=at,
                    sequence=sequence,
                    kind=kind[of_rank.operation[at]],
                    bytes=of_rank.bytes[at],
                    end_ns=of_rank.end_ns[at] + seeds[member],
                    num_ranks=_num_ranks(key, of_rank.world_size[at], largest[runs[member]]),
                )
            )
    _pair_streams(parts, domains)
    groups, unmatched = [], []
    for (_, key), of_key in parts.items():
        if len(of_key) > 1:
            group: Group | str = _WHO
            if key.kind != EXCHANGE or key.pair or len(of_key) == 2:
                group = _joined(key, of_key, domains, names)
            apart = [part.member for part in of_key]
            reason = _NO_WAY
            if isinstance(group, Group):
                groups.append(group)
                apart = [member for member in apart if member not in group.members]
            else:
                reason = group
            if apart:
                ranks = tuple(arrivals[member].rank for member in apart)
                unmatched.append(Unmatched(key.name, ranks, reason))
    return groups, unmatched


def _pair_streams(parts: dict[tuple[int, SortKey], list[_Part]], domains: Sequence[int]) -> None:
    """Pair streams of sends and receives without other keys: both sides get one key.

    Args:
        parts: by run and key, which changes.
        domains: of each rank's clock.
    """
    of_run: dict[int, list[tuple[SortKey, _Part]]] = defaultdict(list)
    for (run, key), of_key in parts.items():
        if key.source == "order" and key.kind == EXCHANGE:
            of_run[run] += [(key, part) for part in of_key]
    for run, streams in of_run.items():
        if len({part.member for _, part in streams}) < 3:
            continue
        like = defaultdict(list)  # of one clock and as many operations
        for place, (_, part) in enumerate(streams):
            like[domains[part.member], len(part.at)].append(place)
        alike = {
            place: [other for other in others if _end_alike(streams[place][1], streams[other][1])]
            for others in like.values()
            for place in others
        }
        for place, others in sorted(alike.items()):
            if len(others) == 1 and place < others[0] and alike[others[0]] == [place]:
                both = [streams[at] for at in (place, others[0])]
                for key, part in both:
                    parts[run, key] = [other for other in parts[run, key] if other is not part]
                number = len(streams) + place  # no stream's
                parts[run, SortKey("order", None, EXCHANGE, number)] = [part for _, part in both]


def _end_alike(part: _Part, other: _Part) -> bool:
    """Return whether as many operations of two ranks' streams end at the same times."""
    if part.member == other.member or len(part.at) < _MIN_PAIRED:
        return False
    apart = np.abs(part.end_ns - other.end_ns)
    return bool(np.mean(apart <= _SAME_END_NS) >= _AGREE)


def _num_ranks(key: SortKey, world_size: Int64, largest: int) -> int:
    """Return how many ranks take part, as far as that is known: MPI numbers them from 0."""
    if key.pair:
        return 2
    known = int(world_size.max())
    return largest + 1 if key.source == "mpi" and known < 0 else known


# -- joining the ranks ----------------------------------------------------------------------------


def _joined(
    key: SortKey, parts: Sequence[_Part], domains: Sequence[int], names: tuple[str, ...]
) -> Group | str:
    """Return the group of ranks that share operations, or why there is none."""
    if key.source == "mpi" and len({len(part.at) for part in parts}) == 1:
        parts = [replace(part, sequence=np.arange(len(part.at))) for part in parts]
    elif key.source == "mpi" and key.pair:
        return "the numbers of messages sent and received differ"
    lined_up = _lined_up(parts, domains)
    if len(lined_up) < 2:
        return _NO_WAY
    # Numbers may be far apart, as in a damaged trace: only those that occur take memory.
    numbers, count = np.unique(
        np.concatenate([number for _, number in lined_up]), return_counts=True
    )
    numbers = numbers[count > 1]
    if len(numbers) == 0:
        return "no operation was captured on two of the ranks"
    place = np.full((len(numbers), len(lined_up)), UNKNOWN, np.int64)
    kind, size = place.copy(), place.copy()
    for column, (part, number) in enumerate(lined_up):
        is_shared = is_in(number, numbers)
        row = np.searchsorted(numbers, number[is_shared])
        place[row, column] = part.at[is_shared]
        kind[row, column], size[row, column] = part.kind[is_shared], part.bytes[is_shared]
    uneven = np.array([names.index(name) for name in _UNEVEN], np.int64)
    agree = _is_one(kind) & (_is_one(size) | is_in(kind.max(axis=1), uneven))
    if agree.mean() < _AGREE:
        return (
            f"kind or size of {np.count_nonzero(~agree)} of {len(agree)} operations differ between"
            " the ranks"
        )
    return Group(
        name=key.name,
        source=key.source,
        members=tuple(part.member for part, _ in lined_up),
        operation=kind.max(axis=1)[agree],
        bytes=size.max(axis=1)[agree],
        place=place[agree],
        operations=names,
        num_ranks=max(part.num_ranks for part in parts),
    )


def _lined_up(parts: Sequence[_Part], domains: Sequence[int]) -> list[tuple[_Part, Int64]]:
    """Return the ranks whose operations can be numbered alike, and the numbers.

    The rank with most operations is the first. Each other rank is aligned with one that is done: at
    first with those of its own machine, since they share a clock, then with the others.
    """
    if all(part.sequence is not None for part in parts):
        return [(part, part.sequence) for part in parts if part.sequence is not None]
    first, *left = sorted(parts, key=lambda part: -len(part.at))
    lined_up = [(first, np.arange(len(first.at)))]
    of_machine = defaultdict(list, {domains[first.member]: lined_up[:1]})
    for _ in range(_PASSES):
        unplaced = []
        for part in left:
            machine = of_machine[domains[part.member]]
            candidates = (
                _like(*reference, part, domains) for reference in (*machine, *lined_up)[:_MAX_TRIED]
            )
            number = next((numbers for numbers in candidates if numbers is not None), None)
            if number is None:
                unplaced.append(part)
            else:
                lined_up.append((part, number))
                machine.append((part, number))
        left = unplaced
    return lined_up


def _like(other: _Part, of_other: Int64, part: _Part, domains: Sequence[int]) -> Int64 | None:
    """Return the numbers of a rank's operations by those of another one; None if none fit."""
    shift = shift_between(
        OperationList(other.kind * (1 << 52) + other.bytes, other.end_ns),
        OperationList(part.kind * (1 << 52) + part.bytes, part.end_ns),
        one_clock=domains[part.member] == domains[other.member],
    )
    return None if shift is None else np.arange(len(part.at)) + shift + int(of_other[0])


def _is_one(values: Int64) -> Mask:
    """Return which rows hold one value only, where known, bool[m]."""
    highest = values.max(axis=1)
    lowest = np.where(values >= 0, values, highest[:, np.newaxis]).min(axis=1)
    is_one: Mask = highest == lowest
    return is_one
