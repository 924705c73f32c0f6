"""Sends and receives of named pipeline stages that no record gives a peer or a direction.

The order in which a stage launches messages and computes says what each message is, if all stages
follow an order that is known: GPipe, 1F1B or interleaved, with the send of a pass before the
receive of the next one, or the two as Megatron-LM orders them, or in one kernel. That both sides
receive first is left out: it would deadlock on one stream. Each order that fits all stages is
compared with time: no message is over before it was sent, and both sides of a message end together.
Of those that agree alike, the one with the fewest streams for messages of one way is right. Where
several are left the messages stay unknown.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec.structs import replace

from traceprof.communication.messages import BETWEEN_TWO, RECEIVES, SENDS
from traceprof.ranks.pipelines import MAX_UNSURE_NS, ROUNDED_NS
from traceprof.run.pipeline_orders import ORDERS, interleaved
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in, median_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from traceprof.intervals import Int64
    from traceprof.ranks.arrivals import Arrivals
    from traceprof.ranks.comparison import RankComparison
    from traceprof.ranks.passes import RankPasses
    from traceprof.ranks.pipelines import ScheduleName
    from traceprof.run.pipeline_orders import Pass

_NO_PASS, _PASS, _ANY = range(3)  # between two messages
_STYLES = ("sends first", "by parity", "in one kernel")
_MAX_CHUNKS = 8
_AGREE = 0.99  # of the messages must not be over before they were sent
_RIVAL = 2.0  # an order whose messages end this many times as far apart is none


class _Messages(Record, frozen=True):
    """The n messages of a stage, in the order of their launch.

    Attributes:
        rows: int64[n], of the arrivals.
        stream: int64[n].
        start_ns: int64[n], in the run's time.
        end_ns: int64[n].
        between: int64[n + 1], `_PASS` where something was computed before, between and after them.
    """

    rows: Int64
    stream: Int64
    start_ns: Int64
    end_ns: Int64
    between: Int64


class Size(NamedTuple):
    """What the order of the passes says about a pipeline; None if it could be either.

    Attributes:
        name: of its schedule.
        num_micro_batches: of a step.
        num_chunks: parts of the model that each stage has.
    """

    name: ScheduleName | None
    num_micro_batches: int | None
    num_chunks: int | None


class _Sequence(Record, frozen=True):
    """What a stage is expected to launch: n messages, and passes between them.

    Attributes:
        direction: int64[n].
        peer: int64[n], stages.
        between: int64[n + 1], `_NO_PASS`, `_PASS` or `_ANY`.
    """

    direction: Int64
    peer: Int64
    between: Int64

    def repeated(self, times: int) -> _Sequence:
        """Return the sequence of several steps; between them the optimizer may compute."""
        begin, end = (_PASS if self.between[at] == _PASS else _ANY for at in (0, -1))
        seam = min(begin, end)
        inner = np.tile(np.append(self.between[1:-1], seam), times)
        inner[-1:] = end
        return _Sequence(
            np.tile(self.direction, times), np.tile(self.peer, times), np.append(begin, inner)
        )


class Named(Record, frozen=True):
    """What the order of named stages shows.

    Attributes:
        arrivals: of each rank, with peers and directions where no record of a pipeline has any.
        sizes: of each such pipeline, by the indices of its ranks.
        reasons: of each pipeline whose order cannot be known, why.
    """

    arrivals: tuple[Arrivals, ...]
    sizes: Mapping[tuple[int, ...], Size]
    reasons: tuple[str, ...]


def named(
    ranks: RankComparison,
    passes: Sequence[RankPasses],
    arrivals: Sequence[Arrivals],
    given: Sequence[Sequence[int]],
) -> Named:
    """Find peers and directions of the messages of named stages that have none.

    Args:
        ranks: the ranks on one clock.
        passes: of each rank.
        arrivals: of each rank.
        given: the numbers of the ranks of pipelines, in order of their stages.
    """
    changed, sizes, reasons = [*arrivals], {}, []
    index = {number: place for place, number in enumerate(ranks.ranks)}
    for numbers in given:
        members = tuple(index[number] for number in numbers if number in index)
        exchanges = [_exchanges(arrivals[member]) for member in members]
        is_empty = any(
            not len(rows) or not len(passes[member])
            for member, rows in zip(members, exchanges, strict=True)
        )
        has_directions = any(
            (arrivals[member].direction[rows] > 0).any()
            for member, rows in zip(members, exchanges, strict=True)
        )
        if len(members) < len(numbers) or is_empty or has_directions:
            continue
        stages = _stages(ranks, passes, arrivals, members, exchanges)
        steps = passes[members[0]].step
        num_steps = len(distinct_values(steps)) if (steps >= 0).all() else None
        order = _order(stages, num_steps, is_one_clock=_is_one_clock(ranks, members))
        if isinstance(order, str):
            reasons.append(order)
            continue
        sizes[members] = order.size
        for member, stage, sequence in zip(members, stages, order.stages, strict=True):
            changed[member] = _changed(changed[member], stage.rows, sequence, numbers)
    return Named(tuple(changed), sizes, tuple(reasons))


def _exchanges(arrivals: Arrivals) -> Int64:
    """Return the rows of sends and receives by kernels whose launch is known, by launch."""
    kinds = [arrivals.operations.index(name) for name in BETWEEN_TWO]
    chosen = is_in(arrivals.operation, np.array(kinds, np.int64)) & ~arrivals.is_mpi
    rows = np.flatnonzero(chosen & (arrivals.called_ns >= 0))
    return rows[np.argsort(arrivals.called_ns[rows], kind="stable")]


def _changed(
    arrivals: Arrivals, rows: Int64, sequence: _Sequence, numbers: Sequence[int]
) -> Arrivals:
    """Return arrivals with the directions and peers of their messages."""
    direction, peer, is_judged = (
        column.copy() for column in (arrivals.direction, arrivals.peer, arrivals.is_judged)
    )
    direction[rows] = sequence.direction
    peer[rows] = np.array(numbers, np.int64)[sequence.peer]
    is_judged[rows] = True
    return replace(arrivals, direction=direction, peer=peer, is_judged=is_judged)


def _stages(
    ranks: RankComparison,
    passes: Sequence[RankPasses],
    arrivals: Sequence[Arrivals],
    members: Sequence[int],
    exchanges: Sequence[Int64],
) -> list[_Messages]:
    """Return the messages of each stage that run between the first pass of all and the last."""

    def in_run(member: int, times: Int64) -> Int64:
        return ranks.clocks.to_run(arrivals[member].report, times)

    begin = min(int(in_run(member, passes[member].start_ns[:1])[0]) for member in members)
    finish = max(int(in_run(member, passes[member].end_ns[-1:])[0]) for member in members)
    stages = []
    for member, rows in zip(members, exchanges, strict=True):
        arrival, launched = arrivals[member], passes[member].launched_ns
        start, end = (in_run(member, at[rows]) for at in (arrival.start_ns, arrival.end_ns))
        # The first receive waits for the first pass, which the window may begin with.
        inside = (end > begin) & (start < finish)
        chosen = rows[inside]
        before = np.searchsorted(launched, arrival.called_ns[chosen])
        num = np.diff(before, prepend=0, append=len(launched))
        between = np.where(num > 0, _PASS, _NO_PASS)
        stream = arrival.stream[chosen]
        stages.append(_Messages(chosen, stream, start[inside], end[inside], between))
    return stages


def _is_one_clock(ranks: RankComparison, members: Sequence[int]) -> bool:
    """Return whether the stages' clocks are known well enough to compare their times."""
    reports = [ranks.reports[member] for member in members]
    unsure = [ranks.clocks.uncertainty_ns(*pair) for pair in pairwise(reports)]
    return all(value is not None and value <= MAX_UNSURE_NS for value in unsure)


# -- orders ---------------------------------------------------------------------------------------


class _Order(Record, frozen=True):
    stages: list[_Sequence]
    size: Size


def _order(
    stages: Sequence[_Messages], num_steps: int | None, *, is_one_clock: bool
) -> _Order | str:
    """Return what each stage launched; a reason where that cannot be known."""
    fitting: dict[bytes, _Order] = {}
    for order in _candidates(stages, num_steps):
        key = b"".join(np.stack((stage.direction, stage.peer)).tobytes() for stage in order.stages)
        other = fitting.get(key, order)
        unequal = {
            name: None
            for name, value in order.size._asdict().items()
            if value != getattr(other.size, name)
        }
        fitting[key] = replace(order, size=order.size._replace(**unequal))
    if not fitting:
        return "its sends and receives follow none of the orders GPipe, 1F1B and interleaved"
    rated = [(_apart_ns(stages, order.stages, is_one_clock), order) for order in fitting.values()]
    possible = [(apart, order) for apart, order in rated if apart is not None]
    if not possible:
        return "in the orders that its sends and receives could follow, some end before they begin"
    least = min(apart for apart, _ in possible)
    alike = [
        (sum(map(_num_ways, stages, order.stages)), order)
        for apart, order in possible
        if apart <= _RIVAL * least
    ]
    fewest = min(num for num, _ in alike)
    best = [order for num, order in alike if num == fewest]
    return best[0] if len(best) == 1 else "its sends and receives fit several orders equally well"


def _num_ways(stage: _Messages, sequence: _Sequence) -> int:
    """Return how many streams a stage has for its messages, counted for each way of these."""
    ways = np.stack((stage.stream, sequence.direction, sequence.peer))
    return int(np.unique(ways, axis=1).shape[1])


def _candidates(stages: Sequence[_Messages], num_steps: int | None) -> Iterator[_Order]:
    """Yield the orders in which each stage has as many messages, and passes at the same places."""
    num, total = len(stages), len(stages[0].rows)
    for in_step in (size for size in range(1, total + 1) if not total % size):
        steps = stages[0].between[1:].reshape(-1, in_step)[:, :-1]
        if num_steps not in (None, len(steps)) or (steps != steps[0]).any():
            continue
        for order, num_micro_batches, num_chunks in _sizes(num, in_step):
            passes = [
                interleaved(stage, num, num_micro_batches, num_chunks)
                if order == "interleaved"
                else ORDERS[order](stage, num, num_micro_batches)
                for stage in range(num)
            ]
            for style in _STYLES:
                step = [
                    _sequence(
                        stage, [_ends(stage, num, num_chunks, pass_) for pass_ in of_stage], style
                    )
                    for stage, of_stage in enumerate(passes)
                ]
                sequences = [sequence.repeated(total // in_step) for sequence in step]
                if all(map(_fits, stages, sequences)):
                    yield _Order(sequences, Size(order, num_micro_batches, num_chunks))


def _sizes(num_stages: int, in_step: int) -> Iterator[tuple[ScheduleName, int, int]]:
    """Yield orders, micro-batches and chunks that may have as many messages of the first stage."""
    # In one kernel: all sends but those before the first receive, or one send of all.
    counts = {in_step // 2, (in_step + 1) // 2, in_step - (num_stages - 1)}
    for num_micro_batches in sorted(counts):
        if num_micro_batches > 0:
            yield "gpipe", num_micro_batches, 1
            yield "1f1b", num_micro_batches, 1
    for num_chunks in range(2, _MAX_CHUNKS + 1):
        num_micro_batches, rest = divmod(in_step, 2 * (2 * num_chunks - 1))
        if not rest and num_micro_batches and not num_micro_batches % num_stages:
            yield "interleaved", num_micro_batches, num_chunks


def _ends(
    stage: int, num_stages: int, num_chunks: int, pass_: Pass
) -> tuple[int | None, int | None]:
    """Return the stages that make the input of a pass and need its result; None if none does."""
    part = pass_.chunk * num_stages + stage
    beside = (part - 1, part + 1) if pass_.is_forward else (part + 1, part - 1)
    source, destination = (
        other % num_stages if 0 <= other < num_stages * num_chunks else None for other in beside
    )
    return source, destination


def _sequence(stage: int, passes: Sequence[tuple[int | None, int | None]], style: str) -> _Sequence:
    """Return the launches of a stage in a step, in one of the styles.

    Args:
        stage: its number.
        passes: the stages before and after each of its passes.
        style: of `_STYLES`.
    """
    messages: list[tuple[int, int]] = []
    between = [_NO_PASS]
    sent: int | None = None

    def add(direction: int, peer: int) -> None:
        messages.append((direction, peer))
        between.append(_NO_PASS)

    for source, destination in passes:
        if source is not None and source == sent and style == _STYLES[2]:
            add(SENDS | RECEIVES, source)
        else:
            ends = [(SENDS, sent), (RECEIVES, source)]
            if _receives_first(style, stage, sent, source):
                ends.reverse()
            for direction, peer in ends:
                if peer is not None:
                    add(direction, peer)
        between[-1] = _PASS
        sent = destination
    if sent is not None:
        add(SENDS, sent)
    directions, peers = np.array(messages, np.int64).reshape(-1, 2).T
    return _Sequence(directions, peers, np.array(between, np.int64))


def _receives_first(style: str, stage: int, destination: int | None, source: int | None) -> bool:
    """Return whether the receive of the next pass is launched before the send of a pass."""
    if style != _STYLES[1] or destination is None or source is None:
        return False
    # Megatron-LM without batches: neighbours of even and odd stages never both send first.
    return source < stage if source == destination else stage % 2 == 1


# -- how an order fits ----------------------------------------------------------------------------


def _fits(stage: _Messages, sequence: _Sequence) -> bool:
    """Return whether a stage has as many messages as expected, with passes between the same."""
    if len(stage.rows) != len(sequence.peer):
        return False
    agree = (sequence.between == _ANY) | (sequence.between == stage.between)
    return bool(agree.all())


def _apart_ns(
    stages: Sequence[_Messages], order: Sequence[_Sequence], is_one_clock: bool
) -> float | None:
    """Return how far apart both sides of messages end in all; None if they contradict time."""
    apart = 0.0
    for low in range(len(stages)):
        for high in range(low + 1, len(stages)):
            sends = [
                (sent[order[source].peer[sent] == destination], source, destination)
                for source, destination in ((low, high), (high, low))
                for sent in [np.flatnonzero(order[source].direction & SENDS)]
            ]
            ends = []
            for sent, source, destination in sends:
                came = np.flatnonzero(
                    (order[destination].direction & RECEIVES > 0)
                    & (order[destination].peer == source)
                )
                if len(sent) != len(came):
                    return None
                end, start = stages[destination].end_ns[came], stages[source].start_ns[sent]
                if is_one_clock and len(end) and np.mean(end + ROUNDED_NS >= start) < _AGREE:
                    return None
                ends.append((end - stages[source].end_ns[sent]) * (1 if source == low else -1))
            differences = np.concatenate(ends)
            if len(differences):
                shift = 0.0 if is_one_clock else float(median_of(differences))
                apart += float(np.abs(differences - shift).sum())
    return apart
