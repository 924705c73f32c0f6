"""A communication call and its label."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from instrument.core import groups
from instrument.core.wrapping import functions_are_overridden, without_overrides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from torch import distributed as dist


COLLECTIVE, TRANSFER, BLOCK = range(3)
"""Kinds, which decide the numbering: of the whole group, between two ranks, around operations."""


Operation = tuple[
    "dist.ProcessGroup | None", "Sequence[Tensor]", str, "int | None", "int | None", int, bool, bool
]
"""The arguments of `operation`: a tuple for speed, since every call makes one."""


def operation(
    group: dist.ProcessGroup | None,
    tensors: Sequence[Tensor] = (),
    direction: str = "",
    peer: int | None = None,
    group_peer: int | None = None,
    *,
    kind: int = COLLECTIVE,
    is_split: bool = False,
    is_async: bool = False,
) -> Operation:
    """Return the description of a call from its arguments.

    Args:
        group: the process group; None is the default group.
        tensors: one rank's message, as NCCL counts it; empty if its size is unknown.
        direction: `dst` or `src` where the operation has a peer or a root, else empty.
        peer: the peer's or root's rank in the default group.
        group_peer: or its rank in this group.
        kind: of its numbering.
        is_split: whether the message is the part of the tensors that one rank of the group gets.
        is_async: whether the call returns before the operation is done.
    """
    return group, tensors, direction, peer, group_peer, kind, is_split, is_async


def label(function: str, described: Operation) -> tuple[str, bool] | None:
    """Label this call of a function, and count it.

    Returns the text, and whether the backend will report the end of the operation; None if this
    rank is not in the group.
    """
    group, tensors, direction, peer, group_peer, kind, is_split, is_async = described
    facts = groups.find(group)
    if facts is None:
        return None
    if group_peer is not None:
        peer = facts.ranks[group_peer]
    if kind == COLLECTIVE:
        number: int | None = next(facts.collectives)
    else:
        number = facts.next_transfer(direction, peer) if kind == TRANSFER else None
    head = function if peer is None else f"{function} {direction}={peer}"
    tail = facts.text if number is None else f"{facts.text} seq={number}"
    if not tensors:
        return f"{head} {tail}", is_async and facts.reports
    first = tensors[0]
    is_plain = len(tensors) == 1 and type(first) in _PLAIN and not functions_are_overridden()
    if is_plain and not first.is_sparse:
        size, dtype, is_cpu = first.nbytes, first.dtype, first.is_cpu
    else:
        with without_overrides():
            size, dtype, is_cpu = _bytes(tensors), first.dtype, first.is_cpu
    if is_split:
        size //= len(facts.ranks)
    will_report = is_async and is_cpu and facts.reports
    return f"{head} bytes={size} dtype={_name(dtype)} {tail}", will_report


_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def _bytes(tensors: Sequence[Tensor]) -> int:
    """Return the size of a message; of a sparse tensor, the size of its indices and values."""
    return sum(_stored(tensor) if tensor.is_sparse else tensor.nbytes for tensor in tensors)


def _stored(tensor: Tensor) -> int:
    return tensor._indices().nbytes + tensor._values().nbytes  # noqa: SLF001  (also uncoalesced)


@functools.cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
