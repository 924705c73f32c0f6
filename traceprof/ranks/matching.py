"""Matching of communication kernels of different ranks that are one operation.

**Keys.** Operations are sorted by a key that is equal on all ranks: the first known of

1. `labels`: the process group and the call's number in it, as `instrument` writes them.
2. `communicator`: NCCL's id, which is equal on all members, and the position in its order. By
   contract all members call a communicator's operations in one order.
3. `order`: the k-th operation of a kind on a stream, streams counted on each rank.

The k-th send to a rank is matched with that rank's k-th receive from the sender. Sends and receives
of more than two ranks without peers belong to the two streams whose operations end together
(`ends`): at the same times on one clock, else a constant and a drift apart, and with no other
stream nearly so.

Calls of MPI (`mpi`) are matched by MPI's own rules: the collectives of a communicator in one order,
sends and receives by communicator, sender, receiver and tag. If a rank has a receive from any
source or with any tag, none of its receives is matched: that one may have taken any message.

**Alignment.** With `order` alone, captures that begin at different operations are aligned first.
Both ranks run the same operations in the same order, so one whole number is needed, the shift
between their lists. With the right shift kinds and sizes agree, and the ends of the operations
differ by a constant: the difference of the clocks, however large. With a wrong one the difference
varies with how early or late a rank came to each operation.

Kind and size must agree on all ranks; where they do not, the group is given up, with the reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceprof.communication.messages import EXCHANGE, are_one_of
from traceprof.findings import Count, Text
from traceprof.intervals import Float64, Int64, Mask
from traceprof.ranks.arrivals import Arrivals
from traceprof.structs import Record, by_key
from traceprof.trace.grouping import (
    distinct_values,
    is_in,
    median_of,
    medians_of_known,
    quantiles_of,
)
from traceprof.trace.model.communication_calls import BARRIER, OPERATIONS
from traceprof.trace.model.special_values import UNKNOWN

Sorted = Iterable[tuple["SortKey", Int64, Int64 | None]]

# UTC by NTP is off by one to tens of ms (Nsight's user guide, Time Synchronization); without NTP by
# more. Operations further apart than this are not the same one.
FARTHEST_NS = 2_000_000_000
# On one machine, members of an operation leave it up to some ms apart.
ONE_CLOCK_NS = 100_000_000
# An alignment this far off the clocks is half as likely as one that agrees with them.
_USUAL_NS = 50_000_000
_SAMPLES = 512  # operations looked at for each shift
_ALIKE = 0.99  # of the operations must agree in kind and size
_RIVAL = 1.5  # ratio of misfits below which a second shift is as good
_FEW_SAMPLES = 32  # where there are more shifts than
_MAX_SHIFTS = 48
_SHORT = 4  # with fewer operations their ends show no pattern
_RESOLUTION_NS = 1_000.0


class OperationList(Record, frozen=True):
    """Operations of one rank on one communicator, in order."""

    signature: Int64  # int64[n], equal for operations that may be the same: kind and size
    end_ns: Int64  # int64[n], corrected if the clocks are known


def shift_between(first: OperationList, second: OperationList, *, one_clock: bool) -> int | None:
    """Shift s for which `second[i]` is `first[i + s]`; None if none or several fit.

    With `one_clock` both ranks are on one machine, so that ends agree without correction.
    """
    shifts = _promising(
        first, second, _candidates(first, second, one_clock=one_clock), one_clock=one_clock
    )
    costs = np.array(
        [_cost(first, second, shift, one_clock=one_clock) for shift in shifts.tolist()]
    )
    if not np.isfinite(costs).any():
        return None
    best = int(np.argmin(costs))
    rivals = np.delete(costs, best)
    if len(rivals) and rivals.min() < _RIVAL * costs[best]:
        return None
    return int(shifts[best])


def _candidates(first: OperationList, second: OperationList, *, one_clock: bool) -> Int64:
    if len(first.end_ns) == 0 or len(second.end_ns) == 0:
        return np.empty(0, np.int64)
    middle = len(second.end_ns) // 2
    at = second.end_ns[middle]
    farthest = ONE_CLOCK_NS if one_clock else FARTHEST_NS
    low, high = np.searchsorted(first.end_ns, [at - farthest, at + farthest])
    return np.arange(low, high, dtype=np.int64) - middle


def _promising(
    first: OperationList, second: OperationList, shifts: Int64, *, one_clock: bool
) -> Int64:
    if len(shifts) <= _MAX_SHIFTS:
        return shifts
    chosen = _spread_out(0, len(second.end_ns), _FEW_SAMPLES)
    at = chosen[np.newaxis, :] + shifts[:, np.newaxis]
    is_alike = (at >= 0) & (at < len(first.end_ns))
    at = np.clip(at, 0, len(first.end_ns) - 1)
    is_alike &= first.signature[at] == second.signature[chosen]
    apart = np.where(is_alike, first.end_ns[at] - second.end_ns[chosen], np.nan)
    enough = is_alike.sum(axis=1) * 2 >= len(chosen)
    shifts, apart = shifts[enough], apart[enough]
    middle = medians_of_known(apart)
    residuals = medians_of_known(np.abs(apart - middle[:, np.newaxis]))
    cost = np.abs(middle) if one_clock else residuals * (1 + np.abs(middle) / _USUAL_NS)
    return np.sort(shifts[np.argsort(cost, kind="stable")[:_MAX_SHIFTS]])


def _cost(first: OperationList, second: OperationList, shift: int, *, one_clock: bool) -> float:
    low, high = max(0, -shift), min(len(second.end_ns), len(first.end_ns) - shift)
    if high - low < max(1, min(len(first.end_ns), len(second.end_ns)) // 2):
        return np.inf
    chosen = _spread_out(low, high, _SAMPLES)
    alike = first.signature[chosen + shift] == second.signature[chosen]
    if alike.mean() < _ALIKE:
        return np.inf
    apart = (first.end_ns[chosen + shift] - second.end_ns[chosen]).astype(np.float64)
    middle = float(median_of(apart))
    if one_clock or len(chosen) < _SHORT:
        return abs(middle) + _RESOLUTION_NS
    return (spread(apart) + _RESOLUTION_NS) * (1 + abs(middle) / _USUAL_NS)


def _spread_out(low: int, high: int, most: int) -> Int64:
    numbers = np.linspace(low, high - 1, min(high - low, most)).astype(np.int64)
    return numbers[np.append(True, numbers[1:] > numbers[:-1])]


def spread(values: Float64) -> float:
    """Median distance of values from a line through the medians of both halves."""
    return float(median_of(_distances(values[np.newaxis])[0])) if len(values) > 2 else 0.0


def _distances(values: Float64) -> Float64:
    """Distances of each row's values from a line through the medians of both halves."""
    place = np.arange(values.shape[1])
    half = len(place) // 2
    rise = median_of(values[:, half:], axis=1) - median_of(values[:, :half], axis=1)
    left = values - np.outer(rise / (place[half:].mean() - place[:half].mean()), place)
    return np.abs(left - median_of(left, axis=1)[:, np.newaxis])


Source = Literal["labels", "communicator", "ends", "order", "mpi"]


class SortKey(Record, frozen=True):
    """The key by which the operations of one rank are sorted first."""

    source: Source  # the kind of key
    name: str | None  # the name of the group or communicator, None without one
    kind: str = ""  # the kind of operation; empty if the order counts all kinds together
    stream: int = 0  # the place of the stream among those with operations of the kind; MPI's tag
    pair: tuple[int, int] | None = None  # sender and receiver of sends and receives, if known


def members_of(
    arrivals: Sequence[Arrivals], runs: Sequence[int]
) -> Mapping[int, Mapping[str, Sequence[int]]]:
    """Numbers of the ranks that use each communicator, in order, by run and name."""
    members: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, run in zip(arrivals, runs, strict=True):
        for index in distinct_values(rank.communicator[rank.communicator >= 0]).tolist():
            members[run][rank.communicators[index]].append(rank.rank)
    for of_run in members.values():
        for ranks in of_run.values():
            ranks.sort()
    return members


def sorted_out(arrivals: Arrivals, members: Mapping[str, Sequence[int]]) -> Sorted:
    """Sort the operations of one rank by their keys.

    `members`: the ranks that use each communicator: NCCL numbers them in this order if all are
    there, as torch's process groups do.

    The result has for each key indices into the arrivals, in order, and the operations' numbers,
    None where they must be counted.
    """
    yield from _of_mpi(arrivals)
    is_kernel = ~arrivals.is_mpi
    is_exchange = arrivals.is_exchange & is_kernel
    labelled = (arrivals.group >= 0) & (arrivals.sequence >= 0) & ~is_exchange
    # A group with an operation without a number is counted: in NCCL's order, if that is known.
    partly = distinct_values(arrivals.group[(arrivals.group >= 0) & ~is_exchange & ~labelled])
    labelled &= ~is_in(arrivals.group, partly)
    in_communicator = (arrivals.communicator >= 0) & is_kernel & ~is_exchange & ~labelled
    counted = (arrivals.group >= 0) & (arrivals.communicator < 0) & ~is_exchange & ~labelled
    for name, at in _by(arrivals.group, labelled, arrivals.groups):
        # One call may have launched two kernels: the first stands for it.
        sequence, first = np.unique(arrivals.sequence[at], return_index=True)
        yield SortKey("labels", f"group {name}"), at[first], sequence
    for name, at in _by(arrivals.group, counted, arrivals.groups):
        yield SortKey("communicator", f"group {name}"), at, None
    for name, at in _by(arrivals.communicator, in_communicator, arrivals.communicators):
        yield SortKey("communicator", name), at, None
    paired = peers_of(arrivals, members)
    directed = is_exchange & is_in(arrivals.direction, (1, 2)) & (paired >= 0)
    yield from _pairs(arrivals, directed & (arrivals.group >= 0), paired, "labels")
    yield from _pairs(arrivals, directed & (arrivals.group < 0), paired, "communicator")
    if labelled.any() or counted.any() or in_communicator.any() or directed.any():
        return  # what is left was launched before the capture began
    kinds = np.where(is_exchange, arrivals.operations.index(EXCHANGE), arrivals.operation)
    for kind, of_kind in _by(kinds, is_kernel, arrivals.operations):
        for number, stream in enumerate(distinct_values(arrivals.stream[of_kind]).tolist()):
            at = of_kind[arrivals.stream[of_kind] == stream]
            yield SortKey("order", None, kind, number), at, None


def _of_mpi(arrivals: Arrivals) -> Sorted:
    """Sort the calls of MPI by communicator, and sends and receives by their ends and tag."""
    for name, at in _by(arrivals.communicator, arrivals.is_mpi, arrivals.communicators):
        direction = arrivals.direction[at]
        collective, both = at[direction < 0], at[direction == 3]
        if len(collective):
            yield SortKey("mpi", name), collective, None
        if len(both) and (arrivals.world_size[both] == 2).all():
            yield SortKey("mpi", name, EXCHANGE), both, None
        open_ended = (arrivals.peer[at] < 0) | (arrivals.stream[at] < 0)
        if len(both) or open_ended[direction == 1].any():
            continue  # whose messages the others' receives took is not known
        for is_sent in (1, 2) if not open_ended[direction == 2].any() else (1,):
            directed = at[direction == is_sent]
            pairs = np.stack((arrivals.peer[directed], arrivals.stream[directed]), axis=1)
            values, which = np.unique(pairs, axis=0, return_inverse=True)
            for number, (peer, tag) in enumerate(values.tolist()):
                ends = (arrivals.rank, peer) if is_sent == 1 else (peer, arrivals.rank)
                yield SortKey("mpi", name, EXCHANGE, tag, ends), directed[which == number], None


def peers_of(arrivals: Arrivals, members: Mapping[str, Sequence[int]]) -> Int64:
    """Number of the only other rank of each send or receive, int64[n], -1 if unknown."""
    peers = arrivals.peer.copy()
    unknown = (peers < 0) & (arrivals.peer_in_communicator >= 0)
    for name, at in _by(arrivals.communicator, unknown, arrivals.communicators):
        ranks = np.array(members[name], np.int64)
        place = arrivals.peer_in_communicator[at]
        is_member = place < len(ranks)
        peers[at[is_member]] = ranks[place[is_member]]
    return peers


def _pairs(arrivals: Arrivals, chosen: Mask, peers: Int64, source: Source) -> Sorted:
    by_labels = source == "labels"
    values = arrivals.group if by_labels else arrivals.communicator
    names = [f"group {group}" for group in arrivals.groups] if by_labels else arrivals.communicators
    for name, of_name in _by(values, chosen, names):
        for direction in (1, 2):
            directed = of_name[arrivals.direction[of_name] == direction]
            for peer in distinct_values(peers[directed]).tolist():
                at = directed[peers[directed] == peer]
                ends = (arrivals.rank, peer) if direction == 1 else (peer, arrivals.rank)
                number = arrivals.sequence[at]
                is_counted = (number >= 0).all() and (np.diff(number) > 0).all()
                yield SortKey(source, name, EXCHANGE, 0, ends), at, number if is_counted else None


def _by(values: Int64, chosen: Mask, names: Sequence[str]) -> Iterable[tuple[str, Int64]]:
    at = np.flatnonzero(chosen)
    for value in distinct_values(values[at]).tolist():
        yield names[value], at[values[at] == value]


# No member can leave before the last one has come: each needs what every other one sends.
LEAVE_TOGETHER = ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll", BARRIER)
# Members may send parts of different size (all_gather of uneven tensors and the like).
_UNEVEN = ("AllGather", "ReduceScatter", "AlltoAll", "Gather", "Scatter", "SendRecv", "Unknown")
_AGREE = 0.99  # of the operations of a group
# Other ranks with which a rank is aligned before it is given up, and passes over those given up.
_MAX_TRIED, _PASSES = 4, 2
_MIN_PAIRED = 10  # operations of two streams that end together
# How far apart they end on one clock, and on two once offset and drift are taken out, and by which
# factor any other stream ends further apart.
_SAME_END_NS, _ENDS_ON_TWO_CLOCKS_NS, _NO_RIVAL = 10_000, 500_000, 4
_WHO = "with more than two ranks it is unknown who sends to whom"
_NO_WAY = (
    "the ranks were captured at different operations, and either no"
    " alignment of these fits, or several do"
)


class Group(Record, frozen=True):
    """Operations that the same ranks take part in, m of them by r members."""

    name: str | None  # NCCL's id, or `group NAME` of PyTorch, or MPI's communicator, or None
    source: Source  # the kind of key by which operations were matched
    members: tuple[int, ...]  # indices into the run's ranks
    operation: Int64  # int64[m], indices into `operations`
    bytes: Int64  # int64[m], of one rank's message; -1 if unknown
    place: Int64  # int64[m, r], indices into each member's `Arrivals`; -1 if it was not captured
    operations: tuple[str, ...]  # names
    num_ranks: int  # the number of ranks of the communicator, perhaps more than were captured

    def __len__(self) -> int:
        return len(self.operation)

    @property
    def is_partial(self) -> bool:
        """Whether the communicator has ranks that were not recorded."""
        return self.num_ranks > len(self.members)

    @property
    def is_mpi(self) -> bool:
        """Whether the operations are calls of MPI."""
        return self.source == "mpi"

    @property
    def is_whole(self) -> Mask:
        """Mask of the operations that were captured on all members, bool[m]."""
        return np.all(self.place >= 0, axis=1)

    @property
    def leaves_together(self) -> Mask:
        """Mask of the operations that no member can leave before the last has come, bool[m]."""
        return self.is_one_of(LEAVE_TOGETHER) & (self.bytes != 0)  # nothing to wait for

    def is_one_of(self, names: Sequence[str]) -> Mask:
        """Mask of the operations with one of these names, bool[m]."""
        return are_one_of(self.operation, self.operations, names)

    def times(self, columns: Sequence[Int64]) -> Int64:
        """A column of the members' `Arrivals` by operation and member, int64[m, r].

        `columns`: int64[n] of each member. Operations that were not captured have 0.
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
    member: int  # index of the rank
    at: Int64  # int64[n], indices into its `Arrivals`
    sequence: Int64 | None  # int64[n], the operations' numbers, None if they must be counted
    kind: Int64  # int64[n], indices into the names of all ranks
    bytes: Int64
    end_ns: Int64  # int64[n], corrected if the clocks are known
    num_ranks: int  # the number of ranks of the communicator


def match(
    arrivals: Sequence[Arrivals], seeds: Sequence[int], domains: Sequence[int], runs: Sequence[int]
) -> tuple[list[Group], list[Unmatched]]:
    """Find the operations that several ranks took part in.

    `seeds`: for each rank, the clock correction to add to its times, from the sessions' starts.
    `domains`: the number of its clock, equal for ranks on one machine. `runs`: the run of its
    report; operations of two runs are never matched.
    """
    communicators = members_of(arrivals, runs)
    names = tuple(
        dict.fromkeys((*OPERATIONS, *(name for arrival in arrivals for name in arrival.operations)))
    )
    parts: dict[tuple[int, SortKey], list[_Part]] = defaultdict(list)
    largest: dict[int, int] = defaultdict(int)
    for of_rank, run in zip(arrivals, runs, strict=True):
        largest[run] = max(largest[run], of_rank.rank)
    for member, (of_rank, run) in enumerate(zip(arrivals, runs, strict=True)):
        kind = np.array([names.index(operation) for operation in of_rank.operations], np.int64)
        for key, at, sequence in sorted_out(of_rank, communicators[run]):
            num_ranks = int(of_rank.world_size[at].max())  # a key is that of an operation
            if key.source == "mpi" and num_ranks < 0:
                num_ranks = largest[run] + 1  # MPI numbers them from 0
            parts[run, key].append(
                _Part(
                    member=member,
                    at=at,
                    sequence=sequence,
                    kind=kind[of_rank.operation[at]],
                    bytes=of_rank.bytes[at],
                    end_ns=of_rank.end_ns[at] + seeds[member],
                    num_ranks=2 if key.pair else num_ranks,
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
    """Pair streams of sends and receives without other keys: both sides get one key."""
    of_run: dict[int, list[tuple[SortKey, _Part]]] = defaultdict(list)
    for (run, key), of_key in parts.items():
        if key.source == "order" and key.kind == EXCHANGE:
            of_run[run] += [(key, part) for part in of_key if len(part.at) >= _MIN_PAIRED]
    for run, streams in of_run.items():
        if len({part.member for _, part in streams}) < 3:
            continue
        as_many = by_key(streams, lambda item: len(item[1].at))
        for of_length in as_many.values():
            for pair in _pairs_by_ends([part for _, part in of_length], domains):
                for key, part in (of_length[place] for place in pair):
                    parts[run, key] = [other for other in parts[run, key] if other is not part]
                number = len(parts)  # no other key's
                parts[run, SortKey("ends", None, EXCHANGE, number)] = [
                    of_length[place][1] for place in pair
                ]


def _pairs_by_ends(parts: Sequence[_Part], domains: Sequence[int]) -> list[tuple[int, int]]:
    """Which streams of equally many operations end together, and with no others nearly so."""
    if len(parts) < 2:
        return []
    chosen = _spread_out(0, len(parts[0].at), _SAMPLES)
    ends = np.stack([part.end_ns[chosen] for part in parts])
    member = np.array([part.member for part in parts])
    domain = np.array([domains[part.member] for part in parts])
    best, is_certain = np.zeros(len(parts), np.int64), np.zeros(len(parts), np.bool_)
    for place in range(len(parts)):
        apart = (ends - ends[place]).astype(np.float64)
        is_near = domain == domain[place]
        distances = np.abs(apart)
        distances[~is_near] = _distances(apart[~is_near])
        farthest = quantiles_of(distances, (_AGREE,))[0]
        farthest[member == member[place]] = np.inf
        first, second = np.argsort(farthest, kind="stable")[:2]
        limit = _SAME_END_NS if is_near[first] else _ENDS_ON_TWO_CLOCKS_NS
        best[place] = first
        is_certain[place] = farthest[first] <= limit
        is_certain[place] &= farthest[second] > max(_SAME_END_NS, _NO_RIVAL * farthest[first])
    return [
        (place, other)
        for place, other in enumerate(best.tolist())
        if place < other and best[other] == place and is_certain[place] and is_certain[other]
    ]


# -- joining the ranks ----------------------------------------------------------------------------


def _joined(
    key: SortKey, parts: Sequence[_Part], domains: Sequence[int], names: tuple[str, ...]
) -> Group | str:
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
    """Ranks whose operations can be numbered alike, and the numbers.

    Ranks are aligned one after the other, beginning with the one that has most operations. Each is
    aligned with a rank that already has numbers, preferably on its own machine, whose clock it
    shares.
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
    shift = shift_between(
        OperationList(other.kind * (1 << 52) + other.bytes, other.end_ns),
        OperationList(part.kind * (1 << 52) + part.bytes, part.end_ns),
        one_clock=domains[part.member] == domains[other.member],
    )
    return None if shift is None else np.arange(len(part.at)) + shift + int(of_other[0])


def _is_one(values: Int64) -> Mask:
    highest = values.max(axis=1)
    lowest = np.where(values >= 0, values, highest[:, np.newaxis]).min(axis=1)
    return highest == lowest
