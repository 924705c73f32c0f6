"""Process groups in labels, and the sequence numbers of their operations."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed import distributed_c10d

from instrument.core.identity import ByIdentity
from traceprof import labels

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Group:
    """The facts of a process group for labels, read at its first operation.

    Attributes:
        text: name, this process's global rank, size, and the user's description.
        ranks: the members' global ranks, in the order of their ranks in the group.
        reports: whether the backend reports the end of an operation on the CPU.
        collectives: their sequence numbers; c10d requires one order on all ranks.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.ranks: Sequence[int] = _members(group)
        rank = dist.get_rank() if dist.is_initialized() else group.rank()
        self.text = f"group={_word(group.group_name)} rank={rank} size={group.size()}"
        if group.group_desc not in labels.OWN_DESCRIPTIONS:
            self.text += f" desc={_word(group.group_desc)}"
        self.reports = _reports(group)
        self.collectives = itertools.count()
        self._transfers: dict[tuple[str, int | None], Iterator[int]] = {}
        self._transfers_known = True

    def next_transfer(self, direction: str, peer: int | None) -> int | None:
        """Return the sequence number of the next `dst` or `src` operation with this peer.

        None for a receive from any source, and for every receive after it: the sources of the
        received messages are unknown.
        """
        if peer is None:
            self._transfers_known = False
        if direction == "src" and not self._transfers_known:
            return None
        key = direction, peer
        numbers = self._transfers.get(key)
        if numbers is None:
            numbers = self._transfers.setdefault(key, itertools.count())
        return next(numbers)


_groups: ByIdentity[Group] = ByIdentity()


def find(group: dist.ProcessGroup | None) -> Group | None:
    """Return the facts of a group, of the default group for None.

    None if this process is not in the group, in which case PyTorch skips the operation, or if there
    is no such group.
    """
    if group is None:
        group = dist.group.WORLD
    known = _groups.get(group)
    if known is None and isinstance(group, dist.ProcessGroup):  # non-members have another object
        known = Group(group)
        _groups.set(group, known)
    return known


def _members(group: dist.ProcessGroup) -> Sequence[int]:
    """Return the global ranks of the members, in the order of their ranks in the group."""
    try:
        return dist.get_process_group_ranks(group)
    except (KeyError, ValueError, RuntimeError):  # not created by torch.distributed
        return range(group.size())


def _reports(group: dist.ProcessGroup) -> bool:
    """Return whether a CPU operation completes its future only at its end: Gloo's do.

    NCCL's futures are complete when the kernel is queued; the kernels show the end.
    """
    try:
        backends = distributed_c10d.get_backend_config(group).split(",")
    except (KeyError, ValueError, RuntimeError):
        return False
    return any(entry.split(":")[0] == "cpu" for entry in backends if "gloo" in entry)


def _word(text: str) -> str:
    """Return a name as one word: a label's facts are separated by spaces."""
    return "_".join(text.split()) or "-"
