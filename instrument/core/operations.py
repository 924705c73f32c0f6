"""A communication call and its label."""

from __future__ import annotations

import functools
import inspect
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from instrument.core.wrapping import functions_are_overridden, without_overrides
from traceprof import labels

if TYPE_CHECKING:
    from torch import Tensor

Value = TypeVar("Value")


class ByIdentity(Generic[Value]):
    """A dictionary with weak keys that are compared by identity.

    Tensors compare by element and process groups must be freed in time, so neither `dict` nor
    `WeakKeyDictionary` fits.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[object], Value]] = {}

    def get(self, key: object) -> Value | None:
        """Return the value of an object, or None."""
        try:
            return self._known[id(key)][1]
        except KeyError:
            return None

    def set(self, key: object, value: Value) -> None:
        """Set the value of an object until it dies; raises TypeError if it has no weakrefs."""
        identity = id(key)
        # Another object can get the identity only after this has run. No Python function, in which
        # an exception of a signal handler would disappear.
        gone = weakref.ref(key, partial(self._known.pop, identity))
        self._known[identity] = (gone, value)

    def __len__(self) -> int:
        return len(self._known)


class Group:
    """The facts of a process group for labels, read at its first operation."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.ranks: Sequence[int] = _members(group)  # global, in the order of the group's
        rank = dist.get_rank() if dist.is_initialized() else group.rank()
        self.text = f"group={_word(group.group_name)} rank={rank} size={group.size()}"
        if group.group_desc not in labels.OWN_DESCRIPTIONS:
            self.text += f" desc={_word(group.group_desc)}"
        self.reports = _reports(group)
        self.collectives = itertools.count()  # c10d requires one order on all ranks
        self.texts: dict[tuple[object, ...], str] = {}  # of calls, by their facts, unnumbered
        self._transfers: dict[tuple[str, int | None], Iterator[int]] = {}
        self._transfers_known = True

    def next_transfer(self, direction: str, peer: int | None) -> int | None:
        """Return the sequence number of the next `dst` or `src` operation with this peer.

        None for a receive from any source, and for every one after it: sources are unknown then.
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

    def restart(self, number: int) -> None:
        """Give the next collective this number, and the next transfers with each peer 0."""
        self.collectives = itertools.count(number)
        self._transfers, self._transfers_known = {}, True


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


def _counting() -> Iterator[tuple[Any, list[int], int]]:
    """Yield this process's groups whose backend counts operations: ranks, and how many they had."""
    group: Any
    for group, ranks in list(distributed_c10d._world.pg_group_ranks.items()):  # noqa: SLF001
        with suppress(AttributeError, RuntimeError):  # -100 stands for the groups of others
            number = group._get_sequence_number_for_group()  # noqa: SLF001
            yield group, [*ranks], number


def count_in_groups(counts: dict[str, int]) -> list[tuple[str, int, list[int]]]:
    """Return name, number of operations since these counts, and ranks of this process's groups.

    The counts become those of now. Groups whose backend does not count are left out.
    """
    groups = []
    for group, ranks, number in _counting():
        name = group.group_name
        groups.append((name, number - counts.get(name, number), ranks))
        counts[name] = number
    return groups


def renumber() -> None:
    """Number operations from here on alike on all ranks of a group: not all had labels before."""
    for group, _, number in _counting():
        facts = find(group)
        if facts is not None:
            facts.restart(number)


def _word(text: str) -> str:
    """Return a name as one word: a label's facts are separated by spaces."""
    return "_".join(text.split()) or "-"


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
    is_async: bool = False,
) -> Operation:
    """Return the description of a call from its arguments.

    `tensors` are one rank's message as NCCL counts it, empty if its size is unknown. An operation
    with a peer or a root has a direction, `dst` or `src`, and the other's rank: `peer` in the
    default group, or `group_peer` in this one. `kind` is of its numbering.
    """
    return group, tensors, direction, peer, group_peer, kind, False, is_async


class Parameters(NamedTuple):
    """The parameters of a function that describe its operation."""

    message: str = ""  # a tensor or several: one rank's message; empty if its size is unknown
    direction: str = ""  # `dst` or `src`: the other rank, or the root; empty without one
    root: int | None = None  # where the caller gives none
    kind: int = COLLECTIVE
    is_split: bool = False  # whether one rank's message is its part of the tensors
    is_of_group: bool = False  # whether ranks are counted in the group
    names: Sequence[str] = ()  # of all parameters, where the function does not show them


def reader(
    function: Callable[..., object],
    parameters: Parameters,
    group_of: Callable[[Any, str], Any] | None = None,
) -> Callable[..., Operation]:
    """Return what describes calls of a function from their arguments.

    It has the same parameters, and so finds an argument as fast as the function itself. `group_of`
    returns the process group from the arguments `group` and `tag`.

    Raises TypeError: the function has no parameter for the process group; ValueError: it shows no
    parameters.
    """
    message, direction, root, kind, is_split, is_of_group, names = parameters
    names = names or [*inspect.signature(function).parameters]
    group = "group" if "group" in names else "process_group"
    if group not in names:
        raise TypeError(f"{function} has no parameter group")
    peer, group_peer, tag, is_async = (
        name if name in names else "None"
        for name in (direction, f"group_{direction}", "tag", "async_op")
    )
    if root is not None:
        peer = f"({root} if {peer} is {group_peer} is None else {peer})"
    if is_of_group:
        peer, group_peer = "None", peer
    tensors = f"({message},) if isinstance({message}, Tensor) else {message}"
    described = (
        group if group_of is None else f"group_of({group}, {tag} or '')",
        tensors if message in names else "()",
        *(repr(direction), peer, group_peer, kind, is_split, is_async),
    )
    source = f"lambda {'=None, '.join(names)}=None, *_, **__: ({', '.join(map(str, described))})"
    describe: Callable[..., Operation] = eval(  # noqa: S307  (ours)
        source, {"group_of": group_of, "Tensor": torch.Tensor}
    )
    return describe


Labelled = tuple[str, "int | None", bool]
"""A call's text, the number that completes it, and whether the backend will report the end."""


def label(function: str, described: Operation) -> Labelled | None:
    """Label this call of a function, and count it; None if this rank is not in the group."""
    group, tensors, direction, peer, group_peer, kind, is_split, is_async = described
    facts = find(group)
    if facts is None:
        return None
    if group_peer is not None:
        peer = facts.ranks[group_peer]
    if kind == COLLECTIVE:
        number: int | None = next(facts.collectives)
    else:
        number = facts.next_transfer(direction, peer) if kind == TRANSFER else None
    size = dtype = None
    will_report = is_async and facts.reports
    if tensors:
        first = tensors[0]
        is_plain = len(tensors) == 1 and type(first) in _PLAIN and not functions_are_overridden()
        if is_plain and not first.is_sparse:
            size, dtype, is_cpu = first.nbytes, first.dtype, first.is_cpu
        else:
            with without_overrides():
                size, dtype, is_cpu = _bytes(tensors), first.dtype, first.is_cpu
        if is_split:
            size //= len(facts.ranks)
        will_report = will_report and is_cpu
    # Made once: writing it, and looking up what is registered for it, costs more than the range.
    key = function, direction, peer, size, dtype, number is None
    text = facts.texts.get(key)
    if text is None:
        text = function if peer is None else f"{function} {direction}={peer}"
        if size is not None:
            text += f" bytes={size} dtype={_name(dtype)}"
        text += f" {facts.text}" if number is None else f" {facts.text}{labels.NUMBERED}"
        if len(facts.texts) < MAX_TEXTS:
            facts.texts[key] = text
    return text, number, will_report


MAX_TEXTS = 10_000
"""Most texts that are kept of a group."""
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def _bytes(tensors: Sequence[Tensor]) -> int:
    """Return the size of a message; of a sparse tensor, the size of its indices and values."""
    return sum(
        tensor._indices().nbytes + tensor._values().nbytes  # noqa: SLF001  (also uncoalesced)
        if tensor.is_sparse
        else tensor.nbytes
        for tensor in tensors
    )


@functools.cache
def _name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")
