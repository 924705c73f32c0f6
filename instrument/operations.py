"""One communication call and its label."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

from instrument import groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor
    from torch import distributed as dist


class Operation(NamedTuple):
    """What a call's arguments tell of it.

    Attributes:
        group: the process group; None is the default group.
        tensors: one rank's message, as NCCL counts it; empty where its size is not known.
        direction: `dst` or `src` where the operation has a peer or a root, else empty.
        peer: that rank in the default group.
        group_peer: or that rank in this group.
        is_transfer: between two ranks, and numbered so; else a collective.
        is_block: around other operations, and not numbered.
        is_split: the message is the part of the tensors that one member of the group gets.
        is_async: the call returns before the operation is done.
    """

    group: dist.ProcessGroup | None
    tensors: Sequence[Tensor] = ()
    direction: str = ""
    peer: int | None = None
    group_peer: int | None = None
    is_transfer: bool = False
    is_block: bool = False
    is_split: bool = False
    is_async: bool = False


class Labelled(NamedTuple):
    """A call's label, and whether the backend will tell when the operation is done."""

    text: str
    will_report: bool


def label(function: str, operation: Operation) -> Labelled | None:
    """Return the label of this call of a function, and count it; None for who is no member."""
    group = groups.find(operation.group)
    if group is None:
        return None
    peer = operation.peer
    if operation.group_peer is not None:
        peer = group.ranks[operation.group_peer]
    text = function
    if peer is not None:
        text += f" {operation.direction}={peer}"
    tensors = operation.tensors
    if tensors:
        size = _bytes(tensors) // (len(group.ranks) if operation.is_split else 1)
        text += f" bytes={size} dtype={_name(tensors[0].dtype)}"
    text += f" {group.text}"
    number = None
    if operation.is_transfer:
        number = group.next_transfer(operation.direction, peer)
    elif not operation.is_block:
        number = group.next_collective()
    if number is not None:
        text += f" seq={number}"
    will_report = operation.is_async and (not tensors or tensors[0].device.type in group.reporting)
    return Labelled(text, will_report and bool(group.reporting))


def _bytes(tensors: Sequence[Tensor]) -> int:
    """Return the size of a message; of sparse tensors, of what they store."""
    return sum(_stored(tensor) if tensor.is_sparse else tensor.nbytes for tensor in tensors)


def _stored(tensor: Tensor) -> int:
    return tensor._indices().nbytes + tensor._values().nbytes  # noqa: SLF001  (also uncoalesced)


@functools.cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
