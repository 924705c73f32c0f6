"""Bubbles of a pipeline in plain Python, from the tables of an export with `instrument`'s labels.

A second implementation: it shares no code with `traceprof`. It knows programs whose stages are
processes that send by NCCL, with ranges `forward` and `backward` and labels of sends and receives.
Starts are found by going over all passes and messages again and again until none moves.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import pstdev

from tests.reference.nsight_export import export_of

PARTS = ("warm_up_ns", "imbalance_ns", "transfer_ns", "late_ns")
_LABEL = re.compile(r"(send dst|recv src)=(\d+) .*")


@dataclass
class _Pass:
    stage: int
    kind: str
    step: int
    start: int
    end: int
    compute: int = 0
    inputs: list[_Message] = field(default_factory=list)


@dataclass
class _Message:
    way: tuple[int, int]
    transfer: int
    producer: _Pass
    posted_after: _Pass | None
    before: list[_Message] = field(default_factory=list)
    over: int = 0


@dataclass
class _Exchange:
    launched: int
    start: int
    end: int
    number: int
    way: tuple[int, int]
    is_send: bool
    stream: int


def bubbles(path: Path) -> list[dict[str, int]]:
    passes, exchanges = _read(path)
    messages = _messages(passes, exchanges)
    everything = [pass_ for of_stage in passes for pass_ in of_stage]
    own = {id(pass_): pass_.end - pass_.start for pass_ in everything}
    sums: dict[tuple[str, int], list[int]] = defaultdict(list)
    for pass_ in everything:
        if pass_.kind:
            sums[pass_.kind, pass_.step].append(own[id(pass_)])
    other = [sum(own[id(pass_)] for pass_ in stage if not pass_.kind) for stage in passes]
    mean = sum(other) / len(other)
    equal = {
        id(pass_): round(sum(sums[pass_.kind, pass_.step]) / len(sums[pass_.kind, pass_.step]))
        if pass_.kind
        else round(own[id(pass_)] * mean / other[pass_.stage])
        for pass_ in everything
    }
    levels = [
        _gaps(passes, messages, took, moves=moves)
        for took, moves in ((equal, False), (own, False), (own, True))
    ]
    begin = min(stage[0].start for stage in passes)
    finish = max(stage[-1].end for stage in passes)
    stages = []
    for number, stage in enumerate(passes):
        parts = [0, 0, 0, 0]
        reached = begin
        for place in range(len(stage) + 1):
            last = place == len(stage)
            length = (finish if last else stage[place].start) - reached
            if last or stage[place].inputs:
                done = 0
                for level, explained in enumerate(
                    [*(gaps[number][place] for gaps in levels), length]
                ):
                    now = max(done, min(explained, length))
                    parts[level] += now - done
                    done = now
            if not last:
                reached = stage[place].end
        stages.append({"bubble_ns": sum(parts), **dict(zip(PARTS, parts, strict=True))})
    return stages


def stage_orders(folder: Path) -> list[list[int]]:
    """Ranks of each pipeline in the order of their first forwards, from traces of torch.profiler.

    A stream of sends belongs to the stream of receives whose ends are most regularly apart.
    """
    ends: dict[tuple[int, int], list[float]] = {}
    first: dict[int, float] = {}
    for path in folder.glob("rank_*.json.gz"):
        with gzip.open(path) as file:
            events = json.load(file)["traceEvents"]
        rank = int(path.name.split(".")[0].removeprefix("rank_"))
        kernels = [event for event in events if event.get("cat") == "kernel"]
        named = [event["ts"] for event in kernels if event["name"].startswith("forward")]
        first[rank] = min(named)
        for event in kernels:
            if "SendRecv" in event["name"]:
                of_stream = ends.setdefault((rank, event["args"]["stream"]), [])
                of_stream.append(event["ts"] + event["dur"])
    beside: dict[int, set[int]] = defaultdict(set)
    for stream, own in ends.items():
        other = min(
            (one for one in ends if one[0] != stream[0] and len(ends[one]) == len(own)),
            key=lambda one: pstdev(
                a - b for a, b in zip(sorted(own), sorted(ends[one]), strict=True)
            ),
        )
        beside[stream[0]].add(other[0])
    orders: list[list[int]] = []
    for rank in sorted(beside, key=first.__getitem__):
        order = [rank]
        while further := sorted(beside[order[-1]] - {*order}, key=first.__getitem__):
            order.append(further[-1])
        if not any({*order} <= {*known} for known in orders):
            orders.append(order)
    return sorted(orders)


def _gaps(
    passes: list[list[_Pass]], messages: list[_Message], took: dict[int, int], *, moves: bool
) -> list[list[int]]:
    """Return the gaps of each stage if passes take so long and messages move, or take no time."""
    starts = {id(pass_): 0 for stage in passes for pass_ in stage}
    for message in messages:
        message.over = 0
    is_moving = True
    while is_moving:
        is_moving = False
        for message in messages:
            sides = [starts[id(message.producer)] + took[id(message.producer)]]
            if message.posted_after is not None:
                after = message.posted_after
                sides.append(starts[id(after)] + took[id(after)])
            sides += [before.over for before in message.before]
            over = max(sides) + message.transfer * moves
            is_moving |= over != message.over
            message.over = over
        for stage in passes:
            reached = 0
            for pass_ in stage:
                start = max([reached, *(message.over for message in pass_.inputs)])
                is_moving |= start != starts[id(pass_)]
                starts[id(pass_)] = start
                reached = start + took[id(pass_)]
    finish = max(starts[id(stage[-1])] + took[id(stage[-1])] for stage in passes)
    gaps = []
    for stage in passes:
        reached, of_stage = 0, []
        for pass_ in stage:
            of_stage.append(starts[id(pass_)] - reached)
            reached = starts[id(pass_)] + took[id(pass_)]
        gaps.append([*of_stage, finish - reached])
    return gaps


def _messages(passes: list[list[_Pass]], exchanges: list[list[_Exchange]]) -> list[_Message]:
    """Return the messages, the k-th send of a way with its k-th receive, with their passes."""
    sides: dict[tuple[tuple[int, int], bool], list[_Exchange]] = defaultdict(list)
    for of_stage in exchanges:
        for exchange in of_stage:
            sides[exchange.way, exchange.is_send].append(exchange)
    messages, received = [], defaultdict(list)
    for (way, is_send), sent in sides.items():
        if not is_send:
            continue
        last = None
        for send, receive in zip(sent, sides[way, False], strict=True):
            receiver = passes[way[1]]
            after = receive.number
            follows = receiver[after - 1] if after else None
            if follows is not None and follows.end > receive.start:
                follows = None
            message = _Message(
                way,
                min(send.end - send.start, receive.end - receive.start),
                passes[way[0]][send.number - 1],
                follows,
                [] if last is None else [last],
            )
            kind = message.producer.kind
            consumer = next(
                item for item in receiver[after:] if item.kind == kind and item.start >= receive.end
            )
            consumer.inputs.append(message)
            messages.append(message)
            received[way[1], receive.stream].append((receive.start, len(messages) - 1))
            last = message
    for queue in received.values():
        order = [messages[place] for _, place in sorted(queue)]
        for earlier, later in pairwise(order):
            later.before.append(earlier)
    return messages


def _read(path: Path) -> tuple[list[list[_Pass]], list[list[_Exchange]]]:
    export = export_of(path)
    passes, exchanges = [], []
    for number, (process, device) in enumerate(sorted(export.ranks)):
        own = [(start, end, text) for start, end, _, text in export.ranges.get(process, [])]
        launched = sorted(
            (op.call.start, op.start, op.end, op.stream, op.short)
            for op in export.ranks[process, device]
            if op.call and op.table == "KERNEL"
        )
        of_stage: list[_Pass] = []
        messages: list[_Exchange] = []
        mark = None
        for launch, start, end, stream, name in launched:
            inside = [text for low, high, text in own if low <= launch < high]
            label = next((match for match in map(_LABEL.match, inside) if match), None)
            if "SendRecv" in name:
                assert label is not None
                peer, is_send = int(label[2]), label[1].startswith("send")
                way = (number, peer) if is_send else (peer, number)
                messages.append(_Exchange(launch, start, end, len(of_stage), way, is_send, stream))
                mark = None
                continue
            kind = next((text for text in inside if text in ("forward", "backward")), "")
            step = next((int(text[5:]) for text in inside if text.startswith("step ")), -1)
            around = next((low for low, _, text in own if text == kind and low <= launch < _), -1)
            if mark != (kind, step, around):
                mark = (kind, step, around)
                of_stage.append(_Pass(number, kind, step, start, end))
            of_stage[-1].start = min(of_stage[-1].start, start)
            of_stage[-1].end = max(of_stage[-1].end, end)
            of_stage[-1].compute += end - start
        passes.append(of_stage)
        exchanges.append(messages)
    return passes, exchanges
