"""Sends of a pipeline in what-if answers: which waited behind which, and better orders."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich.text import Text

from traceprof.errors import one_line
from traceprof.reports.tables import new_table
from traceprof.units import duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from traceprof.replay.answers.answers import Answer, WhatIf
    from traceprof.replay.assumptions.run_change import StreamOrder as Order

_MAX_SHOWN = 5


def schedule_lines(whatif: WhatIf) -> list[RenderableType]:
    """Say what the stages of a pipeline would take in each order of their passes."""
    if not whatif.schedules:
        return []
    table = new_table(
        "passes in the order", "take", "without slowdown beside communication",
        left=("passes in the order",),
    )  # fmt: skip
    for order in whatif.schedules:
        table.add_row(order.order, _time(order.step_ns), _time(order.naive_ns))
    return [Text(""), Text("A step of these stages, passes only:"), table]


def _time(time_ns: int | None) -> str:
    return "waits for ever" if time_ns is None else duration(time_ns)


def blocked_lines(whatif: WhatIf) -> list[RenderableType]:
    """Say which sends waited behind which, and which stage waited for them."""
    if whatif.unknown_sends is not None:
        why = one_line(whatif.unknown_sends)
        return [Text(f"Which sends wait behind others of their stream is unknown: {why}")]
    if not whatif.blocked_sends:
        return []
    table = new_table(
        "of rank", "this", "waits behind", "so that waits", "in a step",
        left=("this", "waits behind", "so that waits"),
    )  # fmt: skip
    for blocked in whatif.blocked_sends[:_MAX_SHOWN]:
        table.add_row(
            str(blocked.rank), Text(str(blocked.blocked)), Text(str(blocked.behind)),
            f"rank {blocked.stage}", duration(blocked.blocked_ns),
        )  # fmt: skip
    more = len(whatif.blocked_sends) - _MAX_SHOWN
    lines: list[RenderableType] = [
        Text(""),
        Text("Sends and receives that wait on their stream although both sides are ready:"),
        table,
    ]
    if more > 0:
        lines.append(Text(f"… {more} more: --format json has them"))
    return lines


def order_lines(answers: list[Answer]) -> list[RenderableType]:
    """Say in which order streams would run their sends, once for orders that are the same."""
    lines: list[RenderableType] = []
    seen: dict[tuple[Order, ...], str] = {}
    for answer in answers:
        if not answer.orders:
            continue
        if answer.orders in seen:
            lines.append(Text(f"{answer.assume}: the order of {seen[answer.orders]}"))
            continue
        seen[answer.orders] = answer.assume
        lines.append(Text(f"{answer.assume}: the order of micro-batches in every step"))
        lines += [Text(f"  rank {order.rank}: {_in_turns(order)}") for order in answer.orders]
    return lines


def _in_turns(order: Order) -> str:
    """Return an order with the micro-batches that go the same way one after the other together."""
    turns = groupby(order.sends, key=lambda send: send.way)
    return "; ".join(
        f"{way}: {', '.join(str(send.micro_batch) for send in sends)}" for way, sends in turns
    )
