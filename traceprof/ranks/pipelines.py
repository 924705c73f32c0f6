"""Pipelines of a run: the ranks that form one, their order as stages, messages and schedule.

Ranks form a pipeline if their messages join them to a line or a ring, in both directions, and each
rank between two others computes exactly one pass from what it received to what it sent on. The
schedule is named by the order of forwards and backwards.

Kernels of sends and receives whose calls do not tell who sends are paired by their ends. One of the
two ranks is the earlier stage if all that they exchange follows its forwards and precedes forwards
of the other, or follows backwards of the other and precedes its own, within one step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from msgspec.structs import replace

from traceprof.communication.messages import EXCHANGE, RECEIVES, SENDS
from traceprof.intervals import Int64, Mask
from traceprof.ranks.arrivals import Arrivals
from traceprof.ranks.comparison import RankComparison
from traceprof.ranks.matching import OperationList, members_of, peers_of, shift_between
from traceprof.ranks.passes import BACKWARD, FORWARD, WEIGHTS, RankPasses
from traceprof.structs import Record
from traceprof.trace.columns import Rows
from traceprof.trace.grouping import distinct_values, is_in


class Pass(Record, frozen=True):
    """The forward or the backward of one micro-batch through a part of the model."""

    is_forward: bool  # false for backward
    micro_batch: int  # its number
    chunk: int = 0  # index of the stage's part of the model; 0 if it has only one


def gpipe(stage: int, num_stages: int, num_micro_batches: int) -> list[Pass]:
    """Return all forward passes, then all backward passes, the last micro-batch first."""
    del stage, num_stages  # all stages do the same
    numbers = range(num_micro_batches)
    return [
        *(Pass(is_forward=True, micro_batch=number) for number in numbers),
        *(Pass(is_forward=False, micro_batch=number) for number in reversed(numbers)),
    ]


def one_forward_one_backward(stage: int, num_stages: int, num_micro_batches: int) -> list[Pass]:
    """Return forward passes until the first backward can start, then alternate."""
    num_ahead = min(num_stages - 1 - stage, num_micro_batches)
    forwards = [Pass(is_forward=True, micro_batch=number) for number in range(num_micro_batches)]
    backwards = [Pass(is_forward=False, micro_batch=number) for number in range(num_micro_batches)]
    return _in_turns(forwards, backwards, num_ahead)


def interleaved(
    stage: int, num_stages: int, num_micro_batches: int, num_chunks: int = 2
) -> list[Pass]:
    """Return Megatron's interleaved order: each stage has `num_chunks` separate parts of the model.

    Raises ValueError: the number of micro-batches is no multiple of the number of stages.
    """
    if num_micro_batches % num_stages:
        raise ValueError(f"{num_micro_batches} micro-batches are not a multiple of {num_stages}")
    total = num_micro_batches * num_chunks

    def numbered(place: int, *, is_forward: bool) -> Pass:
        turn, within = divmod(place, num_stages * num_chunks)
        chunk, number = divmod(within, num_stages)
        return Pass(
            is_forward=is_forward,
            micro_batch=turn * num_stages + number,
            chunk=chunk if is_forward else num_chunks - 1 - chunk,
        )

    num_ahead = min(2 * (num_stages - 1 - stage) + (num_chunks - 1) * num_stages, total)
    forwards = [numbered(place, is_forward=True) for place in range(total)]
    backwards = [numbered(place, is_forward=False) for place in range(total)]
    return _in_turns(forwards, backwards, num_ahead)


ORDERS: dict[str, Callable[[int, int, int], list[Pass]]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
}
"""Functions by name: from stage, stages and micro-batches to the passes of that stage."""


def _in_turns(forwards: list[Pass], backwards: list[Pass], num_ahead: int) -> list[Pass]:
    passes = forwards[:num_ahead]
    rest = forwards[num_ahead:]
    for forward, backward in zip(rest, backwards, strict=False):
        passes += [forward, backward]
    return passes + backwards[len(rest) :]


ROUNDED_NS = 1_000
"""A kernel that waited for a message starts after its end, but torch.profiler rounds."""
MAX_UNSURE_NS = 200_000
"""Of clocks that are known less well, the difference is taken from the messages: a pass takes
milliseconds."""
_ROUNDED = 100  # the part of a pass by which it may seem to begin before its input has come
_AGREE = 0.99  # of the passes of a rank must have one message in and one out


class PairMessages(Rows, frozen=True):
    """The n messages from one rank to another, in order; indices of passes are -1 for none."""

    source: int  # index of the sending rank
    destination: int  # index of the receiving one
    are_copies: bool  # whether the sender copies them, without a call of the receiver
    producer: Int64  # int64[n], the last pass that the sender launched before
    consumer: Int64  # int64[n], the first pass of the receiver that waited for it
    follows: Int64  # int64[n], the last pass of the receiver that was over when it began to receive
    holds: Int64  # int64[n], the first pass of the sender that waited for it, -1 if it goes on
    stream: Int64  # int64[n], that received it; -1 of copies
    start_ns: Int64  # int64[n], when the sender began, in the run's time
    came_ns: Int64  # int64[n], when the receiver began
    sent_ns: Int64  # int64[n], when the sender was done
    end_ns: Int64  # int64[n], when the receiver had it
    transfer_ns: Int64  # int64[n], how long it moved: the shorter one of both sides


class Pipeline(Record, frozen=True):
    """The stages of a pipeline."""

    members: tuple[int, ...]  # indices of the ranks, in order of the stages
    messages: Mapping[tuple[int, int], PairMessages]  # by sender and receiver (indices of ranks)
    num_missing: int = 0  # ranks that exchange messages with them and were not recorded

    def between(self, stage: int, other: int) -> PairMessages | None:
        """Return the messages from one stage to another; None without any."""
        return self.messages.get((self.members[stage], self.members[other]))


class _Side(Rows, frozen=True):
    """What one rank sends to another, or receives from it, in order; times are the run's."""

    called_ns: Int64  # int64[n], in the report's time
    start_ns: Int64
    end_ns: Int64
    size: Int64
    stream: Int64
    is_both: Mask  # bool[n], whether the kernel sends and receives


def pipelines(
    ranks: RankComparison,
    passes: Sequence[RankPasses],
    arrivals: Sequence[Arrivals],
    runs: Sequence[int],
) -> list[Pipeline]:
    """Pipelines of a run."""
    arrivals = _directed(ranks, passes, arrivals)
    messages = _messages(ranks, passes, arrivals, runs)
    orders = [
        order
        for component in _components(messages)
        if (order := _order(component, messages)) is not None
        and _are_certain(order, messages, passes)
    ]
    found = []
    for members in orders:
        chosen = {pair: way for pair, way in messages.items() if {*pair} <= {*members}}
        if len(members) > 1 and chosen:
            missing = _missing(members, ranks, arrivals, runs)
            found.append(Pipeline(members, chosen, missing))
    return found


def _missing(
    members: Sequence[int], ranks: RankComparison, arrivals: Sequence[Arrivals], runs: Sequence[int]
) -> int:
    of_run, missing = members_of(arrivals, runs), set[int]()
    for place in members:
        peers = peers_of(arrivals[place], of_run[runs[place]])
        chosen = arrivals[place].is_exchange & (peers >= 0)
        missing |= {*distinct_values(peers[chosen]).tolist()} - {*ranks.ranks}
    return len(missing)


# -- messages -------------------------------------------------------------------------------------


def _directed(
    ranks: RankComparison, passes: Sequence[RankPasses], arrivals: Sequence[Arrivals]
) -> list[Arrivals]:
    """Operations of the ranks; what they exchange is given the direction that passes tell."""
    directed, of_pairs = [*arrivals], defaultdict(list)
    for group in (waits.group for waits in ranks.waits):
        if len(group.members) == 2:
            places = group.place[group.is_whole & group.is_one_of((EXCHANGE,))]
            for pair, columns in ((group.members, places), (group.members[::-1], places[:, ::-1])):
                of_pairs[pair].append(columns[arrivals[pair[0]].direction[columns[:, 0]] < 0])
    sent = {
        pair: _sent_forward(pair, np.concatenate(parts).T, passes, arrivals)
        for pair, parts in of_pairs.items()
    }
    for pair, parts in of_pairs.items():
        forward, backward = sent[pair]
        if not _is_usual(forward | backward) or _is_usual(np.logical_or(*sent[pair[::-1]])):
            continue
        bits = np.stack(
            (forward * SENDS + backward * RECEIVES, forward * RECEIVES + backward * SENDS)
        )
        for side, at in enumerate(np.concatenate(parts).T):
            of_rank = directed[pair[side]]
            direction, peer = of_rank.direction.copy(), of_rank.peer.copy()
            direction[at], peer[at] = bits[side], ranks.ranks[pair[1 - side]]
            directed[pair[side]] = replace(of_rank, direction=direction, peer=peer)
    return directed


def _sent_forward(
    pair: Sequence[int], at: Int64, passes: Sequence[RankPasses], arrivals: Sequence[Arrivals]
) -> tuple[Mask, Mask]:
    """Which exchanges may be inputs of forwards, and of backwards, if the first rank is earlier.

    `at`: int64[2, m], indices into the operations of both. Streams carry one kind where all that is
    in them may be of it.
    """
    beside = []
    for member, rows in zip(pair, at, strict=True):
        of_rank = passes[member]
        chosen = np.flatnonzero(is_in(of_rank.kind, (FORWARD, BACKWARD)))
        after = np.searchsorted(of_rank.launched_ns[chosen], arrivals[member].called_ns[rows])
        # Kind and step of the pass before, and of the pass after.
        keys = np.stack([np.append(of[chosen], _NONE) for of in (of_rank.kind, of_rank.step)])
        beside.append((keys[:, after - 1], keys[:, after]))
    (before, after), (before_other, after_other) = beside
    forward = (before == after_other).all(axis=0) & (before[0] == FORWARD)
    backward = (before_other == after).all(axis=0) & (after[0] == BACKWARD)
    stream = arrivals[pair[0]].stream[at[0]]
    for number in distinct_values(stream).tolist():
        of_stream = stream == number
        only = [_is_usual(way[of_stream]) for way in (forward, backward)]
        if only[0] != only[1]:
            forward[of_stream], backward[of_stream] = only
    return forward, backward


def _messages(
    ranks: RankComparison,
    passes: Sequence[RankPasses],
    arrivals: Sequence[Arrivals],
    runs: Sequence[int],
) -> dict[tuple[int, int], PairMessages]:
    sides: dict[tuple[int, int], dict[int, _Side]] = defaultdict(dict)
    members = members_of(arrivals, runs)
    index = {number: place for place, number in enumerate(ranks.ranks)}
    for place, arrival in enumerate(arrivals):
        if len(passes[place]):
            for bit, peer, side in _sides(ranks, arrival, members[runs[place]]):
                other = index.get(peer)
                if other is not None and other != place and runs[other] == runs[place]:
                    pair = (place, other) if bit == SENDS else (other, place)
                    sides[pair][bit] = side
    for pair, side in _copies(ranks, passes):
        sides[pair] = {SENDS: side}
    messages = {}
    for pair, both in sides.items():
        if not all(len(passes[member]) for member in pair):
            continue
        machines = {ranks.clocks.host_of[passes[member].report] for member in pair}
        joined = _joined(both, one_clock=len(machines) == 1)
        if joined is not None:
            messages[pair] = _linked(pair, passes, *joined, clocks=ranks)
    return messages


def _sides(
    ranks: RankComparison, arrivals: Arrivals, members: Mapping[str, Sequence[int]]
) -> Iterator[tuple[int, int, _Side]]:
    """The direction, the peer's number, and the messages of each side."""
    known = arrivals.is_exchange & arrivals.is_judged
    known &= (arrivals.direction > 0) & (arrivals.called_ns >= 0) & ~arrivals.is_mpi
    peers = peers_of(arrivals, members)
    for bit in (SENDS, RECEIVES):
        chosen = known & ((arrivals.direction & bit) > 0) & (peers >= 0)
        for peer in distinct_values(peers[chosen]).tolist():
            rows = np.flatnonzero(chosen & (peers == peer))
            rows = rows[np.argsort(arrivals.called_ns[rows], kind="stable")]
            yield (
                bit,
                peer,
                _Side(
                    called_ns=arrivals.called_ns[rows],
                    start_ns=ranks.clocks.to_run(arrivals.report, arrivals.start_ns[rows]),
                    end_ns=ranks.clocks.to_run(arrivals.report, arrivals.end_ns[rows]),
                    size=arrivals.bytes[rows],
                    stream=arrivals.stream[rows],
                    is_both=arrivals.direction[rows] == (SENDS | RECEIVES),
                ),
            )


def _copies(
    ranks: RankComparison, passes: Sequence[RankPasses]
) -> Iterator[tuple[tuple[int, int], _Side]]:
    places = {(rank.report, rank.process, rank.device): place for place, rank in enumerate(passes)}
    for place, rank in enumerate(passes):
        for device in distinct_values(rank.copy_to).tolist():
            other = places.get((rank.report, rank.process, device))
            if other is not None:
                rows = rank.copy_to == device
                nothing = np.full(int(rows.sum()), -1, np.int64)
                yield (
                    (place, other),
                    _Side(
                        rank.copy_called_ns[rows],
                        ranks.clocks.to_run(rank.report, rank.copy_start_ns[rows]),
                        ranks.clocks.to_run(rank.report, rank.copy_end_ns[rows]),
                        nothing,
                        nothing,
                        np.zeros(len(nothing), np.bool_),
                    ),
                )


def _joined(both: Mapping[int, _Side], *, one_clock: bool) -> tuple[_Side, _Side] | None:
    """Both sides of the same messages; None if they cannot be matched.

    A copy has one side: call and operation of the sender stand for the receiver's.
    """
    sent, received = both.get(SENDS), both.get(RECEIVES)
    if sent is None:
        return None
    if received is None:
        return (sent, sent) if (sent.stream < 0).all() else None
    if len(sent.end_ns) == len(received.end_ns):
        return sent, received
    shift = shift_between(
        OperationList(sent.size, sent.end_ns),
        OperationList(received.size, received.end_ns),
        one_clock=one_clock,
    )
    if shift is None:
        return None
    low = max(0, shift)
    num = min(len(sent.end_ns) - low, len(received.end_ns) - max(0, -shift))
    other = low - shift
    return sent.chosen(slice(low, low + num)), received.chosen(slice(other, other + num))


def _linked(
    pair: tuple[int, int],
    passes: Sequence[RankPasses],
    sent: _Side,
    received: _Side,
    *,
    clocks: RankComparison,
) -> PairMessages:
    sender, receiver = passes[pair[0]], passes[pair[1]]
    start, end = (
        clocks.clocks.to_run(receiver.report, times)
        for times in (receiver.start_ns, receiver.end_ns)
    )
    # Profilers round, and stamps of the host are less exact: a hundredth of a pass is no overlap.
    start, end = start + (end - start) // _ROUNDED, end - (end - start) // _ROUNDED
    own_start = clocks.clocks.to_run(
        sender.report, sender.start_ns + (sender.end_ns - sender.start_ns) // _ROUNDED
    )
    producer = _producers(sender, sent.called_ns)
    after = np.searchsorted(receiver.launched_ns, received.called_ns)
    kind = np.where(sent.is_both, 0, np.append(sender.kind, 0)[producer])
    consumer = _consumers(start, receiver.kind, after, received.end_ns - ROUNDED_NS, kind)
    # A receive that was posted before the pass before it was over waits for the message only.
    over = np.searchsorted(end, received.start_ns + ROUNDED_NS, side="right") - 1
    is_copy = sent is received
    follows = np.where((over < after - 1) | is_copy, -1, after - 1)
    next_of_sender = np.minimum(producer + 1, len(sender) - 1)
    waits = sent.is_both | (sender.stream[next_of_sender] == sent.stream)
    waits &= (producer + 1 < len(sender)) & (own_start[next_of_sender] >= sent.end_ns - ROUNDED_NS)
    return PairMessages(
        *pair,
        are_copies=is_copy,
        producer=producer,
        consumer=consumer,
        follows=follows,
        holds=np.where(waits, producer + 1, -1),
        stream=received.stream,
        start_ns=sent.start_ns,
        came_ns=received.start_ns,
        sent_ns=sent.end_ns,
        end_ns=received.end_ns,
        transfer_ns=np.minimum(sent.end_ns - sent.start_ns, received.end_ns - received.start_ns),
    )


def _producers(sender: RankPasses, called_ns: Int64) -> Int64:
    """Pass that made each message: the one it waited for, else the last one before it."""
    last = np.searchsorted(sender.launched_ns, called_ns) - 1
    at = np.searchsorted(sender.called_ns, called_ns)
    input_ns = np.append(sender.input_ns, -1)[at]
    producer = np.searchsorted(sender.end_ns, input_ns)
    inside = (input_ns > np.append(sender.start_ns, 0)[producer]) & (producer < len(sender))
    return np.where(inside & (producer < last), producer, last)


def _consumers(start: Int64, kinds: Int64, after: Int64, least_ns: Int64, kind: Int64) -> Int64:
    """First pass after each message that waited for it, -1 for none.

    `start` and `kinds` are those of the receiver's n passes, by start. Each message has the first
    pass that was launched `after` the receive, `least_ns` when it had come, and the `kind` of the
    pass that made it: a forward makes the input of a forward.
    """
    first = np.maximum(after, np.searchsorted(start, least_ns))
    for wanted in (FORWARD, BACKWARD):
        places = np.flatnonzero(kinds == wanted)
        rows = np.flatnonzero(kind == wanted)
        if len(places) and len(rows):
            at = np.searchsorted(places, first[rows])
            # Each message has a pass of its own: none takes that of the one before.
            order = np.arange(len(rows))
            at = np.maximum.accumulate(at - order) + order
            first[rows] = np.append(places, len(start))[np.minimum(at, len(places))]
    return np.where(first < len(start), first, -1)


# -- order of the stages --------------------------------------------------------------------------


def _components(messages: Mapping[tuple[int, int], PairMessages]) -> list[set[int]]:
    neighbours: dict[int, set[int]] = defaultdict(set)
    for source, destination in messages:
        neighbours[source].add(destination)
        neighbours[destination].add(source)
    left, components = {*neighbours}, []
    while left:
        component, new = set[int](), {min(left)}
        while new:
            component |= new
            new = {other for rank in new for other in neighbours[rank]} - component
        left -= component
        components.append(component)
    return components


def _order(
    component: set[int], messages: Mapping[tuple[int, int], PairMessages]
) -> tuple[int, ...] | None:
    beside = {
        one: {other for other in component if (one, other) in messages or (other, one) in messages}
        for one in component
    }
    if any((other, one) not in messages for one, other in messages if one in component):
        return None
    if any(len(others) > 2 for others in beside.values()):
        return None
    ends = [rank for rank, others in beside.items() if len(others) == 1]
    for begin in ends or sorted(component):
        for second in sorted(beside[begin]):
            order = [begin, second]
            while following := beside[order[-1]] - {*order}:
                order.append(min(following))
            if len(order) == len(component) and _flows(order, messages):
                return tuple(order)
    return None


def _are_certain(
    order: Sequence[int],
    messages: Mapping[tuple[int, int], PairMessages],
    passes: Sequence[RankPasses],
) -> bool:
    """Whether ranks that exchange messages like stages are a pipeline.

    Two ranks that alternate, or GPUs of one process, may do so in any program. These count only if
    forwards and backwards are known and make the messages.
    """
    own = [way for pair, way in messages.items() if {*pair} <= {*order}]
    by_way = [passes[way.source].kind[way.producer] for way in own]
    if all(_is_usual(is_in(kinds, (FORWARD, BACKWARD))) for kinds in by_way):
        return True
    return len(order) > 2 and not any(way.are_copies for way in own)


def _flows(order: Sequence[int], messages: Mapping[tuple[int, int], PairMessages]) -> bool:
    """Whether each rank sends on its input after exactly one pass."""
    for before, stage, after in zip(order, order[1:], order[2:], strict=False):
        for source, destination in ((before, after), (after, before)):
            came, went = messages[source, stage], messages[stage, destination]
            num = min(len(came), len(went))
            if not num or abs(len(came) - len(went)) > 0.1 * num:
                return False
            # Where the capture cuts a message off, the others are one place apart.
            if not (
                _is_usual(came.consumer[:num] == went.producer[:num])
                or _is_usual(came.consumer[-num:] == went.producer[-num:])
            ):
                return False
    return all(_turns(*pair, messages) for pair in pairwise(order))


def _turns(stage: int, after: int, messages: Mapping[tuple[int, int], PairMessages]) -> bool:
    went, came = messages[stage, after], messages[after, stage]
    num = min(len(went), len(came))
    if not num or abs(len(went) - len(came)) > 0.1 * num:
        return False
    # Both sides: the answer is made after the message came, and used after the message was made.
    consumer = came.consumer[:num]
    used_later = (went.producer[:num] < consumer) | (consumer < 0)
    made_later = (went.consumer[:num] <= came.producer[:num]) & (went.consumer[:num] >= 0)
    return _is_usual(used_later) and _is_usual(made_later)


def _is_usual(mask: Mask) -> bool:
    return bool(len(mask) and np.mean(mask) >= _AGREE)


ScheduleName = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]

_USUAL = 0.8  # of the steps must have one number of messages, or one order
_NONE = -1
_NAMES: tuple[ScheduleName, ...] = ("1f1b", "gpipe", "interleaved")


class PipelineSchedule(Record, frozen=True):
    """The schedule of a pipeline; None if it cannot be known."""

    name: ScheduleName | None  # `gpipe`, `1f1b`, `interleaved` or `zero-bubble`
    num_micro_batches: int | None  # of a step
    num_chunks: int | None  # parts of the model that each stage has
    micro_batch: tuple[Int64, ...]  # by stage int64[n], of each pass; -1 if that is unknown

    @property
    def ideal_fraction(self) -> float | None:
        """The bubble as a share of the time of the passes, if all stages were equal."""
        if self.num_micro_batches is None or self.num_chunks is None:
            return None
        if self.name == "zero-bubble":
            return None
        return (len(self.micro_batch) - 1) / (self.num_micro_batches * self.num_chunks)


def schedule_of(pipeline: Pipeline, passes: Sequence[RankPasses]) -> PipelineSchedule:
    """Return the schedule of a pipeline."""
    stages = [passes[member] for member in pipeline.members]
    numbers = _numbers(pipeline, stages)
    unknown = tuple(np.full(len(stage), _NONE, np.int64) for stage in stages)
    if numbers is None:
        return PipelineSchedule(None, None, None, unknown)
    num_micro_batches, num_chunks = numbers
    if any((stage.kind == WEIGHTS).any() for stage in stages):
        return PipelineSchedule("zero-bubble", num_micro_batches, num_chunks, unknown)
    for name in _NAMES:
        orders = _orders(name, len(stages), num_micro_batches, num_chunks)
        if orders is None:
            continue
        placed = [_placed(stage, order) for stage, order in zip(stages, orders, strict=True)]
        if all(share >= _USUAL for _, share in placed):
            micro_batch = tuple(of_stage for of_stage, _ in placed)
            return PipelineSchedule(name, num_micro_batches, num_chunks, micro_batch)
    return PipelineSchedule(None, num_micro_batches, num_chunks, unknown)


def _orders(
    name: str, num_stages: int, num_micro_batches: int, num_chunks: int
) -> list[list[Pass]] | None:
    if name == "interleaved":
        if num_chunks == 1 or num_micro_batches % num_stages:
            return None
        return [
            interleaved(stage, num_stages, num_micro_batches, num_chunks)
            for stage in range(num_stages)
        ]
    if num_chunks > 1:
        return None
    return [ORDERS[name](stage, num_stages, num_micro_batches) for stage in range(num_stages)]


def _placed(stage: RankPasses, order: Sequence[Pass]) -> tuple[Int64, float]:
    """Micro-batch of each pass, -1 if unknown, and the share of steps that fit."""
    kinds = np.array([FORWARD if pass_.is_forward else BACKWARD for pass_ in order], np.int64)
    placed = np.full(len(stage), _NONE, np.int64)
    is_pass = (stage.kind != 0) & (stage.step >= 0)
    rows = np.flatnonzero(is_pass)
    of_steps = np.split(rows, np.flatnonzero(np.diff(stage.step[rows])) + 1)
    fits = 0
    for place in of_steps:
        if len(place) == len(kinds) and (stage.kind[place] == kinds).all():
            placed[place] = [pass_.micro_batch for pass_ in order]
            fits += 1
    return placed, fits / len(of_steps)


def _numbers(pipeline: Pipeline, stages: Sequence[RankPasses]) -> tuple[int, int] | None:
    """Micro-batches of a step, and parts of the model of each stage; None if unsure."""
    knows_kinds = all((stage.kind == FORWARD).any() for stage in stages)
    kind = FORWARD if knows_kinds else None
    sent, back = pipeline.between(0, 1), pipeline.between(len(stages) - 1, 0)
    if sent is None or (len(stages) == 2 and not knows_kinds):
        return None
    # Each forward of the first stage is sent on; each but the last of a micro-batch comes back.
    forwards = _per_step(stages[0], sent.producer, kind)
    wrapped = 0 if back is None else _per_step(stages[-1], back.producer, kind)
    if forwards is None or wrapped is None:
        return None
    num = forwards - wrapped
    return None if num <= 0 or forwards % num else (num, forwards // num)


def _per_step(stage: RankPasses, producers: Int64, kind: int | None) -> int | None:
    """Messages that a stage makes in most steps, by passes of a kind; None if unsure."""
    chosen = producers[producers >= 0]
    if kind is not None:
        chosen = chosen[stage.kind[chosen] == kind]
    if not len(chosen):
        return 0
    steps = stage.step[chosen]
    if (steps < 0).any():
        return None
    counts = np.unique(steps, return_counts=True)[1]
    values, how_often = np.unique(counts, return_counts=True)
    best = int(np.argmax(how_often))
    return int(values[best]) if how_often[best] >= _USUAL * len(counts) else None
