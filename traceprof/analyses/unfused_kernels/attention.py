"""Attention that several kernels compute: a softmax between two multiplications of matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.kernel_names.categories import Category
from traceprof.patterns import lazy
from traceprof.trace.grouping import distinct_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from traceprof.intervals import Int64
    from traceprof.kernel_names.categories import KernelKind
    from traceprof.run.rank import Rank

_SOFTMAX = lazy(r"(?i)soft_?max")
# The loss of a classifier; PyTorch's kernel for short rows says it by its fifth parameter.
_LOG_SOFTMAX = lazy(r"(?i)log_?soft_?max|softmax_warp_\w+<(?:[^,<>]+(?:<[^<>]*>)?, *){4}true")
_BACKWARD = lazy(r"(?i)backward|bwd")
_OTHER, _ELEMENTWISE, _SOFTMAX_FORWARD, _SOFTMAX_BACKWARD, _MATMUL = range(5)


def roles_of(names: Sequence[str], kinds: Sequence[KernelKind]) -> npt.NDArray[np.int8]:
    """Return what kernels of each name may be in attention, int8[m].

    Args:
        names: demangled.
        kinds: of each.
    """
    return np.array([*map(_role, names, kinds)], np.int8)


def _role(name: str, kind: KernelKind) -> int:
    if kind.category == Category.MATMUL:
        return _MATMUL
    if _SOFTMAX.search(name) and not _LOG_SOFTMAX.search(name):
        return _SOFTMAX_BACKWARD if _BACKWARD.search(name) else _SOFTMAX_FORWARD
    return _ELEMENTWISE if kind.category == Category.ELEMENTWISE else _OTHER


def attention_kernels(
    rank: Rank, chosen: Int64, roles: npt.NDArray[np.int8]
) -> tuple[Int64, Int64]:
    """Return the k kernels of attention that is not fused, and where each of r rows of them begins.

    The first is int64[k], indices of kernels by stream and start, the second int64[r].

    On one stream a multiplication of matrices, one softmax and another multiplication, with
    nothing but elementwise kernels between them (scale, mask, dropout, copies of format). On the
    way back there are two multiplications on each side, of which the outer ones may be elsewhere.

    Args:
        rank: the rank.
        chosen: int64[n], ascending indices of kernels; all others are none of attention.
        roles: int8[n], what each may be.
    """
    kernels = rank.operations.kernels
    is_softmax = (roles == _SOFTMAX_FORWARD) | (roles == _SOFTMAX_BACKWARD)
    attention, begins = [np.zeros(0, np.int64)], [np.zeros(0, np.bool_)]
    for number in distinct_values(kernels.packed_stream.at(chosen[is_softmax])).tolist():
        here = np.flatnonzero(kernels.packed_stream.isin([number]))
        role = np.full(len(here), _OTHER, np.int8)
        place = np.searchsorted(here, chosen)
        is_here = here[np.minimum(place, len(here) - 1)] == chosen
        role[place[is_here]] = roles[is_here]
        is_attention = _is_attention(role)
        attention.append(here[is_attention])
        begins.append(~np.concatenate([[False], is_attention[:-1]])[is_attention])
    return np.concatenate(attention), np.flatnonzero(np.concatenate(begins))


def _is_attention(role: npt.NDArray[np.int8]) -> npt.NDArray[np.bool_]:
    """Return which kernels of a stream are of attention, bool[n], by what they may be, int8[n]."""
    place = np.flatnonzero(role != _ELEMENTWISE)
    main = role[place]
    is_softmax = (main[1:-1] == _SOFTMAX_FORWARD) | (main[1:-1] == _SOFTMAX_BACKWARD)
    is_between = is_softmax & (main[:-2] == _MATMUL) & (main[2:] == _MATMUL)
    softmax = 1 + np.flatnonzero(is_between)
    low, high = place[softmax - 1], place[softmax + 1]
    goes_back = main[softmax] == _SOFTMAX_BACKWARD
    low -= goes_back & (role[np.maximum(low - 1, 0)] == _MATMUL) & (low > 0)
    last = len(role) - 1
    high += goes_back & (role[np.minimum(high + 1, last)] == _MATMUL) & (high < last)
    # One multiplication may end a row and begin the next one.
    steps = np.zeros(len(role) + 1, np.int64)
    np.add.at(steps, low, 1)
    np.subtract.at(steps, high + 1, 1)
    is_attention: npt.NDArray[np.bool_] = np.cumsum(steps)[:-1] > 0
    return is_attention
