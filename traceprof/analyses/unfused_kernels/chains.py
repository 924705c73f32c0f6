"""Chains of kernels that are bound by memory, one after the other on a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.host.launching_code import launching_code
from traceprof.intervals import num_before
from traceprof.kernel_names import function_name
from traceprof.kernel_names.categories import Category
from traceprof.patterns import lazy
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, numbered, ordered

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

    import numpy.typing as npt

    from traceprof.intervals import Int64, Mask
    from traceprof.kernel_names.categories import KernelKind
    from traceprof.run.rank import Rank


MIN_KERNELS = 3
"""Shorter chains are in every program, and one kernel of them has to stay."""

_BY_MEMORY = frozenset({Category.ELEMENTWISE, Category.REDUCTION, Category.NORMALIZATION})
# Made by a compiler out of several operators: what it left apart it could not fuse.
_FUSED = lazy(r"^(?:triton_|(?:loop|input)_\w*fusion)")
_OF_LISTS = lazy(r"multi_tensor_apply_kernel|foreach_tensor")
_OF_OPTIMIZERS = lazy(r"addcdiv")
_LAYOUT = lazy(r"(?i)nchwToNhwc|nhwcToNchw|convertTensor")
_MIX = np.uint64(0x9E37_79B9_7F4A_7C15)


class NameTraits(Record, frozen=True):
    """The traits of kernels that their names show, each bool[m] by name.

    Attributes:
        is_member: it may be in a chain: bound by memory, and not fused already.
        is_of_list: it works on a list of tensors (`torch._foreach_*`).
        is_of_optimizer: only optimizers run it.
        is_layout: it changes the layout of a tensor.
    """

    is_member: Mask
    is_of_list: Mask
    is_of_optimizer: Mask
    is_layout: Mask

    @classmethod
    def of(cls, names: Sequence[str], kinds: Sequence[KernelKind]) -> NameTraits:
        """Return the traits of m names.

        Args:
            names: demangled.
            kinds: of each.
        """
        functions = [function_name(name) for name in names]
        members = [
            kind.category in _BY_MEMORY and not _FUSED.search(function)
            for kind, function in zip(kinds, functions, strict=True)
        ]
        return cls(
            np.array(members, np.bool_),
            _have(functions, _OF_LISTS),
            _have(names, _OF_OPTIMIZERS),
            _have(functions, _LAYOUT),
        )


def _have(texts: Sequence[str], expression: re.Pattern[str]) -> Mask:
    return np.array([expression.search(text) is not None for text in texts], np.bool_)


class Chains(Record, frozen=True):
    """Chains of a rank: of k kernels in c chains, those of a chain together, in their order.

    Attributes:
        kernel: int64[k], indices of kernels.
        first: int64[c], where each chain begins among them.
        count: int64[c], how many kernels it has.
        kept: bool[k], whether a kernel is of the pass that takes longest, which one fused kernel
            takes, too.
        total_ns: int64[c], the sum of durations.
        saved_ns: int64[c], the same without the pass that takes longest.
        is_optimizer: bool[c], whether an optimizer runs it.
        pattern: uint64[c], equal for chains of the same kernels.
        alone: int64[m], indices of other kernels that could be in a chain of the model.
    """

    kernel: Int64
    first: Int64
    count: Int64
    kept: Mask
    total_ns: Int64
    saved_ns: Int64
    is_optimizer: Mask
    pattern: npt.NDArray[np.uint64]
    alone: Int64


def chains_of(
    rank: Rank, chosen: Int64, which: Int64, traits: NameTraits, in_optimizer: Mask | None
) -> Chains:
    """Find chains among kernels of a rank.

    A chain ends at any other operation of its stream, with its step, and where an optimizer begins
    or ends. Its longest pass is that of the name that takes longest: kernels of one name and
    different grids have tensors of different sizes, so that all of them have to be read and
    written; and kernels on lists of tensors, one after the other, have different tensors.

    Args:
        rank: the rank.
        chosen: int64[n], ascending indices of kernels; all others end chains.
        which: int64[n], the name of each.
        traits: by name.
        in_optimizer: bool[n], whether an optimizer launched each; None if that is unknown.
    """
    kernels = rank.operations.kernels
    members = np.flatnonzero(traits.is_member.take(which))
    stream = kernels.packed_stream.at(chosen.take(members))
    order = np.argsort(stream, kind="stable")
    members, stream = members.take(order), stream.take(order)  # by stream, then start
    kernel, name = chosen.take(members), which.take(members)
    is_of_list: Mask = traits.is_of_list.take(name)
    splits = is_of_list if in_optimizer is None else in_optimizer[members]
    of_optimizer = splits | traits.is_of_optimizer.take(name) if in_optimizer is None else splits
    begins = np.ones(len(kernel), np.bool_)
    begins[1:] = (stream[1:] != stream[:-1]) | (np.diff(_num_before(rank, kernel, stream)) != 1)
    begins[1:] |= splits[1:] != splits[:-1]
    if rank.steps is not None:
        step = num_before(rank.steps.start_ns, kernels.start_ns.take(kernel), "right")
        begins[1:] |= step[1:] != step[:-1]
    # A list of tensors may take several kernels.
    goes_on = np.zeros(len(kernel), np.bool_)
    goes_on[1:] = ~begins[1:] & is_of_list[1:] & (name[1:] == name[:-1])
    del members, stream, order  # there can be many
    chain = np.cumsum(begins) - 1
    keep = np.bincount(chain, ~goes_on).take(chain) >= MIN_KERNELS if len(chain) else begins
    alone = kernel[~(keep | of_optimizer | is_of_list)]
    kernel, name, chain = (column.compress(keep) for column in (kernel, name, chain))
    of_list = -1 - np.cumsum(is_of_list & ~goes_on)[keep]
    unit = np.where(is_of_list[keep], of_list, kernels.packed_signature.at(kernel))
    length = kernels.packed_length.at(kernel)
    kept = _longest_pass(chain, name, unit, length)
    first = np.flatnonzero(begins[keep])
    count = np.diff(first, append=len(kernel))
    saved, total, pattern = (
        np.add.reduceat(values, first) if len(first) else values[:0]
        for values in (np.where(kept, 0, length), length, _mixed(name, first, count))
    )
    of_optimizer = of_optimizer[keep]
    is_optimizer = np.logical_or.reduceat(of_optimizer, first) if len(first) else of_optimizer[:0]
    return Chains(
        kernel, first, count, kept, total.astype(np.int64), saved.astype(np.int64), is_optimizer,
        pattern.astype(np.uint64), alone,
    )  # fmt: skip


def _longest_pass(chain: Int64, name: Int64, unit: Int64, length_ns: Int64) -> Mask:
    """Return which kernels are the longest pass of their chain, bool[k].

    Args:
        chain: int64[k], ascending.
        name: int64[k].
        unit: int64[k], of kernels on lists negative and equal for those of one list; of others
            equal for equal name and grid.
        length_ns: int64[k].
    """
    if len(chain) == 0:
        return np.zeros(0, np.bool_)
    # Each list is a pass of its own; the others are one by name, and by unit within it.
    units, which = numbered(unit)
    pass_of = np.empty(len(units), np.int64)
    pass_of[which] = np.where(unit < 0, unit, name)
    by_pass = np.lexsort((units, pass_of))
    rank_of = np.empty_like(by_pass)
    rank_of[by_pass] = np.arange(len(units))
    order = ordered(chain, rank_of[which])
    chain, which, length = chain.take(order), which.take(order), length_ns.take(order)
    counts = (units < 0)[which]
    counts[_longest(length, _differ(chain, which))] = True
    begins = _differ(chain, pass_of[which])
    first = np.flatnonzero(begins)
    took = np.add.reduceat(np.where(counts, length, 0), first)
    is_longest = np.zeros(len(first), np.bool_)
    is_longest[_longest(took, _differ(chain[first]))] = True
    kept = np.zeros(len(order), np.bool_)
    kept[order] = is_longest[np.cumsum(begins) - 1] & counts
    return kept


def _differ(*keys: Int64) -> Mask:
    """Return which rows differ from the row before in any key, bool[n]; the first one does."""
    differ = np.ones(len(keys[0]), np.bool_)
    differ[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return differ


def _longest(length_ns: Int64, begins: Mask) -> Int64:
    """Return the longest row of each group, of equal ones the first: int64[groups], ascending.

    Args:
        length_ns: int64[n], n > 0.
        begins: bool[n], where a group begins.
    """
    group = np.cumsum(begins) - 1
    most = np.maximum.reduceat(length_ns, np.flatnonzero(begins))
    rows = np.flatnonzero(length_ns == most.take(group))
    return rows[_differ(group[rows])]


def _mixed(name: Int64, first: Int64, count: Int64) -> npt.NDArray[np.uint64]:
    """Return a number for each kernel by name and place: other chains have other sums."""
    place = (np.arange(len(name)) - np.repeat(first, count)).astype(np.uint64)
    mixed = (name.astype(np.uint64) + np.uint64(1)) * (place * np.uint64(2) + np.uint64(1)) * _MIX
    mixed ^= mixed >> np.uint64(29)
    return mixed * _MIX


def _num_before(rank: Rank, kernel: Int64, stream: Int64) -> Int64:
    """Return how many operations of its stream start up to each kernel, int64[k].

    Of several that start at once, kernels come in their order, and before others.

    Args:
        rank: the rank.
        kernel: int64[k], by stream.
        stream: int64[k].
    """
    kernels, *others = rank.operations.groups
    before = np.empty(len(kernel), np.int64)
    for number in distinct_values(stream).tolist():
        here = slice(*np.searchsorted(stream, (number, number + 1)).tolist())
        so_far = np.cumsum(kernels.packed_stream.isin([number]), dtype=np.int32)
        before[here] = so_far.take(kernel[here])
        start = kernels.start_ns.take(kernel[here])
        for group in others:
            on_stream = group.start_ns[group.packed_stream.isin([number])]
            before[here] += num_before(on_stream, start)
    return before


def longer_by_bytes(rank: Rank, chains: Chains) -> Int64:
    """Return how much longer than a chain's longest pass its bytes keep a fused kernel, int64[c].

    A fused kernel reads what the first kernel of the chain reads, and writes what the last one
    writes, in the time that these bytes take of those kernels: memory is what takes their time.
    Nothing is known of operators that launched several kernels, or whose shapes are not recorded.
    """
    operators = rank.trace.operators(rank.process)
    if operators is None or len(operators.work) == 1 or not len(chains.first):
        return np.zeros(len(chains.first), np.int64)
    order = np.argsort(chains.kernel)
    code = launching_code(rank, chains.kernel[order])
    if code is None:
        return np.zeros(len(chains.first), np.int64)
    operator = np.empty(len(order), np.int64)
    operator[order] = code.innermost
    count = np.bincount(operator + 1)
    length = rank.operations.kernels.packed_length.at(chains.kernel)

    def spent(kernel: Int64, part: Int64) -> npt.NDArray[np.float64]:
        """Return the time that a part of the bytes takes of kernels, 0 if that is unknown."""
        of = operator[kernel]
        is_known = (of >= 0) & (count[of + 1] == 1) & (code.moved[of] > 0)
        share = part[of] / np.maximum(code.moved[of], 1)
        return np.where(is_known, share * length[kernel], 0.0)

    last = chains.first + chains.count - 1
    least = spent(chains.first, code.read) + spent(last, code.moved - code.read)
    return np.clip(least - (chains.total_ns - chains.saved_ns), 0, chains.saved_ns).astype(np.int64)
