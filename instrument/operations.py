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


COLLECTIVE, TRANSFER, BLOCK = range(3)
"""Of the whole group, between two of its ranks, or around other operations: how it is numbered."""


class Operation(NamedTuple):
    """What a call's arguments tell of it.

    Attributes:
        group: the process group; None is the default group.
        tensors: one rank's message, as NCCL counts it; empty where its size is not known.
        direction: `dst` or `src` where the operation has a peer or a root, else empty.
        peer: that rank in the default group.
        group_peer: or that rank in this group.
        kind: how it is numbered.
        is_split: the message is the part of the tensors that one member of the group gets.
        is_async: the call returns before the operation is done.
    """

    group: dist.ProcessGroup | None
    tensors: Sequence[Tensor] = ()
    direction: str = ""
    peer: int | None = None
    group_peer: int | None = None
    kind: int = COLLECTIVE
    is_split: bool = False
    is_async: bool = False


def label(function: str, operation: Operation) -> tuple[str, bool] | None:
    """Label this call of a function, and count it.

    Returns the text, and whether the backend will tell when the operation is done; None for who
    is no member of the group.
    """
    group, tensors, direction, peer, group_peer, kind, is_split, is_async = operation
    facts = groups.find(group)
    if facts is None:
        return None
    if group_peer is not None:
        peer = facts.ranks[group_peer]
    text = function if peer is None else f"{function} {direction}={peer}"
    if tensors:
        first = tensors[0]
        size = _bytes(tensors) // (len(facts.ranks) if is_split else 1)
        text = f"{text} bytes={size} dtype={_name(first.dtype)} {facts.text}"
        will_report = is_async and first.device.type in facts.reporting
    else:
        text = f"{text} {facts.text}"
        will_report = is_async and bool(facts.reporting)
    if kind == COLLECTIVE:
        number: int | None = facts.next_collective()
    else:
        number = facts.next_transfer(direction, peer) if kind == TRANSFER else None
    return text if number is None else f"{text} seq={number}", will_report


def _bytes(tensors: Sequence[Tensor]) -> int:
    """Return the size of a message; of sparse tensors, of what they store."""
    try:
        return tensors[0].nbytes if len(tensors) == 1 else sum(each.nbytes for each in tensors)
    except RuntimeError:  # sparse tensors have no such size
        return sum(_stored(each) if each.is_sparse else each.nbytes for each in tensors)


def _stored(tensor: Tensor) -> int:
    return tensor._indices().nbytes + tensor._values().nbytes  # noqa: SLF001  (also uncoalesced)


@functools.cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
