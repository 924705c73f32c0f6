"""Keys of operations that are equal on all ranks.

The first of these that is known is used:

1. `labels`: the process group and the call's number in it, as `instrument` writes them.
2. `communicator`: NCCL's id, which is equal on all members, and the place in its order: by contract
   all members call a communicator's operations in one order.
3. `order`: the k-th operation of a kind on a stream, streams counted on each rank.

The k-th send to a rank is matched with that rank's k-th receive from the sender.

Calls of MPI (`mpi`) are matched as it orders them: the collectives of a communicator in one order,
sends and receives by communicator, sender, receiver and tag. Where a receive takes what any rank
sent, or any tag, no receive of the rank is matched: that one may have taken any message.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Literal

import numpy as np

from traceprof.communication.messages import BETWEEN_TWO, EXCHANGE
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from traceprof.intervals import Int64, Mask
    from traceprof.ranks.arrivals import Arrivals

    Sorted = Iterable[tuple["SortKey", Int64, Int64 | None]]

Source = Literal["labels", "communicator", "order", "mpi"]


class SortKey(Record, frozen=True):
    """The key by which the operations of one rank are sorted first.

    Attributes:
        source: the kind of key.
        name: the name of the group or communicator, None without one.
        kind: the kind of operation; empty if the order counts all kinds together.
        stream: the place of the stream among those with operations of the kind; MPI's tag.
        pair: for sends and receives, the numbers of sender and receiver; None if unknown.
    """

    source: Source
    name: str | None
    kind: str = ""
    stream: int = 0
    pair: tuple[int, int] | None = None


def members_of(
    arrivals: Sequence[Arrivals], runs: Sequence[int]
) -> Mapping[int, Mapping[str, Sequence[int]]]:
    """Return the numbers of the ranks that use each communicator, in order, by run and name."""
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

    Args:
        arrivals: the arrivals of the rank.
        members: the ranks that use each communicator: NCCL numbers them in this order if all are
            there, as torch's process groups do.

    Returns:
        For each key indices into the arrivals, in order, and the operations' numbers, None where
        they must be counted.
    """
    yield from _of_mpi(arrivals)
    is_kernel = ~arrivals.is_mpi
    exchanges = [arrivals.operations.index(name_of_two) for name_of_two in BETWEEN_TWO]
    is_exchange = is_in(arrivals.operation, np.array(exchanges, np.int64)) & is_kernel
    labelled = (arrivals.group >= 0) & (arrivals.sequence >= 0) & ~is_exchange
    # A group of which one operation has no number is counted by NCCL's order, if by any.
    partly = distinct_values(arrivals.group[(arrivals.group >= 0) & ~is_exchange & ~labelled])
    labelled &= ~is_in(arrivals.group, partly)
    in_communicator = (arrivals.communicator >= 0) & is_kernel & ~is_exchange & ~labelled
    for name, at in _by(arrivals.group, labelled, arrivals.groups):
        # One call may have launched two kernels: the first stands for it.
        sequence, first = np.unique(arrivals.sequence[at], return_index=True)
        yield SortKey("labels", f"group {name}"), at[first], sequence
    for name, at in _by(arrivals.communicator, in_communicator, arrivals.communicators):
        yield SortKey("communicator", name), at, None
    paired = peers_of(arrivals, members)
    directed = is_exchange & is_in(arrivals.direction, (1, 2)) & (paired >= 0)
    yield from _pairs(arrivals, directed & (arrivals.group >= 0), paired, "labels")
    yield from _pairs(arrivals, directed & (arrivals.group < 0), paired, "communicator")
    if labelled.any() or in_communicator.any() or directed.any():
        return  # what is left was launched before the capture began
    kinds = np.where(is_exchange, exchanges[0], arrivals.operation)
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
    """Return the number of the only other rank of each send or receive, int64[n], -1 if unknown."""
    peers = arrivals.peer.copy()
    unknown = (peers < 0) & (arrivals.peer_in_communicator >= 0)
    for name, at in _by(arrivals.communicator, unknown, arrivals.communicators):
        ranks = np.array(members[name], np.int64)
        place = arrivals.peer_in_communicator[at]
        is_member = place < len(ranks)
        peers[at[is_member]] = ranks[place[is_member]]
    return peers


def _pairs(arrivals: Arrivals, chosen: Mask, peers: Int64, source: Source) -> Sorted:
    """Sort sends and receives by sender and receiver."""
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
    """Yield the indices of the chosen by value."""
    at = np.flatnonzero(chosen)
    for value in distinct_values(values[at]).tolist():
        yield names[value], at[values[at] == value]
