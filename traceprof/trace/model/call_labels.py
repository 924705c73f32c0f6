"""Labels of communication calls: the operation, and its facts as numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from traceprof.trace.model.communication_calls import BARRIER, NOTHING, Fields
from traceprof.trace.model.limits import MAX_BYTES, whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceprof.labels import Label

# Calls around others, each with a label of its own.
_CONTAINERS = {"batch_isend_irecv": "SendRecv", "coalesced": "Unknown"}
# Beginnings of the names of PyTorch's functions, the longer one first where one begins another:
# `all_gather_into_tensor`, `reduce_scatter_single` and `broadcast_object_list` among them.
_FUNCTIONS = (
    ("all_reduce", "AllReduce"), ("all_gather", "AllGather"), ("reduce_scatter", "ReduceScatter"),
    ("all_to_all", "AlltoAll"), ("broadcast", "Broadcast"), ("reduce", "Reduce"),
    ("isend", "Send"), ("send", "Send"), ("irecv", "Recv"), ("recv", "Recv"), ("gather", "Gather"),
    ("scatter", "Scatter"), ("barrier", BARRIER), ("monitored_barrier", BARRIER),
)  # fmt: skip
_UNKNOWN = NOTHING.bytes
_FACTS = {"bytes", "group", "seq", "dst", "src"}


class CallLabel(NamedTuple):
    """The facts about a call in its label.

    Attributes:
        operation: in NCCL's spelling, `Barrier`, or `Unknown`.
        is_container: whether it encloses calls that have labels of their own.
        fields: -1 and None if unknown. The peer is a rank of the world.
    """

    operation: str
    is_container: bool
    fields: Fields


def operation_of(function: str) -> str | None:
    """Return the operation of a function of PyTorch; None if it does not communicate."""
    word = function.lstrip("_")
    return next((operation for begin, operation in _FUNCTIONS if word.startswith(begin)), None)


def read_call(label: Label) -> CallLabel | None:
    """Return the facts in the label of a call; None if it is not communication."""
    facts = label.facts
    container = _CONTAINERS.get(label.operation)
    # A range of the user's own has no facts, whatever its name.
    if _FACTS.isdisjoint(facts) and container != "SendRecv":
        return None
    operation = container or operation_of(label.operation)
    if operation is None:
        if not {"bytes", "group"} <= facts.keys():
            return None
        operation = "Unknown"
    numbers = [number_of(facts.get(key)) for key in ("bytes", "size", "seq")]
    size, world_size, sequence = numbers
    if size >= MAX_BYTES:
        size = _UNKNOWN
    if operation == "AlltoAll" and size > 0 and world_size > 0:
        size //= world_size  # the label has the size for all ranks, NCCL counts that for one
    peer = number_of(facts.get("dst", facts.get("src")))
    fields = Fields(
        facts.get("group"), size, peer, world_size, sequence, description=facts.get("desc")
    )
    return CallLabel(operation, container is not None, fields)


def rank_of(labels: Iterable[Label]) -> int | None:
    """Return the rank of a process from the labels of its calls; None if they differ."""
    numbers = {
        number_of(label.facts.get("rank")) for label in labels if read_call(label) is not None
    }
    numbers.discard(_UNKNOWN)
    return numbers.pop() if len(numbers) == 1 else None


def number_of(text: str | None) -> int:
    """Return the number in a fact; -1 if there is none."""
    number = whole_number(text)
    return _UNKNOWN if number is None else number
