"""What the label of a communication call says: the operation, and its facts as numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from traceprof.trace.model.communication_calls import BARRIER, NOTHING, Fields

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceprof.labels import Label

# Calls that stand around others, each with a label of its own.
_CONTAINERS = {"batch_isend_irecv": "SendRecv", "coalesced": "Unknown"}
# Beginnings of the names of PyTorch's functions, the longer one first where one begins another:
# `all_gather_into_tensor`, `reduce_scatter_single` and `broadcast_object_list` among them.
_FUNCTIONS = (
    ("all_reduce", "AllReduce"), ("all_gather", "AllGather"), ("reduce_scatter", "ReduceScatter"),
    ("all_to_all", "AlltoAll"), ("broadcast", "Broadcast"), ("reduce", "Reduce"),
    ("isend", "Send"), ("send", "Send"), ("irecv", "Recv"), ("recv", "Recv"), ("gather", "Gather"),
    ("scatter", "Scatter"), ("barrier", BARRIER), ("monitored_barrier", BARRIER),
)  # fmt: skip
_UNTOLD = NOTHING.bytes
_FACTS = {"bytes", "group", "seq", "dst", "src"}


class CallLabel(NamedTuple):
    """What a label says of a call.

    Attributes:
        operation: as NCCL names it, `Barrier`, or `Unknown`.
        is_container: whether it stands around calls that have labels of their own.
        fields: -1 and None are what it does not tell. The peer is a rank of the world.
    """

    operation: str
    is_container: bool
    fields: Fields


def operation_of(function: str) -> str | None:
    """Return what a function of PyTorch does; None where it does not communicate."""
    word = function.lstrip("_")
    return next((operation for begin, operation in _FUNCTIONS if word.startswith(begin)), None)


def read_call(label: Label) -> CallLabel | None:
    """Return what a label says of its call; None where it is no communication."""
    facts = label.facts
    container = _CONTAINERS.get(label.operation)
    # A range of the user's own says no facts, whatever it is called.
    if _FACTS.isdisjoint(facts) and container != "SendRecv":
        return None
    operation = container or operation_of(label.operation)
    if operation is None:
        if not {"bytes", "group"} <= facts.keys():
            return None
        operation = "Unknown"
    numbers = [number_of(facts.get(key)) for key in ("bytes", "size", "seq")]
    size, world_size, sequence = numbers
    if operation == "AlltoAll" and size > 0 and world_size > 0:
        size //= world_size  # the label tells what is sent to all, NCCL counts what one rank gets
    peer = number_of(facts.get("dst", facts.get("src")))
    fields = Fields(
        facts.get("group"), size, peer, world_size, sequence, description=facts.get("desc")
    )
    return CallLabel(operation, container is not None, fields)


def rank_of(labels: Iterable[Label]) -> int | None:
    """Return the rank that a process has by the labels of its calls; None where they differ."""
    numbers = {
        number_of(label.facts.get("rank")) for label in labels if read_call(label) is not None
    }
    numbers.discard(_UNTOLD)
    return numbers.pop() if len(numbers) == 1 else None


def number_of(text: str | None) -> int:
    """Return the number that a fact tells, -1 for none."""
    return int(text) if text is not None and text.isdecimal() and len(text) < 15 else _UNTOLD
