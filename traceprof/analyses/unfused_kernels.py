"""Chains of kernels that are bound by memory, one after the other on a stream."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import ceil
from typing import Annotated

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from traceprof import findings as f
from traceprof import intervals
from traceprof.analyses.kernels.kernel_table import named_signatures
from traceprof.analyses.remedies import GRAPH_BREAKS, GRAPHS
from traceprof.analyses.results import CostResult, facts_of
from traceprof.host.host_code import MAX_BETWEEN_MARKERS_NS
from traceprof.host.host_waits import with_operators
from traceprof.host.idle_causes import idle_causes
from traceprof.host.launching_code import launching_code
from traceprof.intervals import Int64, Intervals, Mask
from traceprof.kernel_names import function_name, short_title
from traceprof.kernel_names.categories import Category, KernelKind, kernel_kind
from traceprof.run.rank import Rank, Window
from traceprof.run.steady_steps import covered_in_mean, only_step, share_per_step
from traceprof.run.step_ranges import OPTIMIZER_RANGES
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in, numbered
from traceprof.units import counted, duration, percent

MIN_KERNELS = 3
"""Shorter chains are in every program, and one kernel of them has to stay."""

_BY_MEMORY = frozenset({Category.ELEMENTWISE, Category.REDUCTION, Category.NORMALIZATION})
# Made by a compiler out of several operators: what it left apart it could not fuse.
_FUSED = re.compile(r"^(?:triton_|(?:loop|input)_\w*fusion)")
_OF_LISTS = re.compile(r"multi_tensor_apply_kernel|foreach_tensor")
_OF_OPTIMIZERS = re.compile(r"addcdiv")
_LAYOUT_KERNELS = re.compile(r"(?i)nchwToNhwc|nhwcToNchw|convertTensor")
_MIX = np.uint64(0x9E37_79B9_7F4A_7C15)


class NameTraits(Record, frozen=True):
    """The traits of kernels that their names show, each bool[m] by name."""

    is_member: Mask  # it may be in a chain: bound by memory, and not fused already
    is_of_list: Mask  # it works on a list of tensors (`torch._foreach_*`)
    is_of_optimizer: Mask  # only optimizers run it
    is_layout: Mask  # it changes the layout of a tensor

    @classmethod
    def of(cls, names: Sequence[str], kinds: Sequence[KernelKind]) -> NameTraits:
        """Return the traits of m names."""
        functions = [function_name(name) for name in names]
        members = [
            kind.category in _BY_MEMORY and not _FUSED.search(function)
            for kind, function in zip(kinds, functions, strict=True)
        ]
        return cls(
            np.array(members, np.bool_),
            _have(functions, _OF_LISTS),
            _have(names, _OF_OPTIMIZERS),
            _have(functions, _LAYOUT_KERNELS),
        )


def _have(texts: Sequence[str], expression: re.Pattern[str]) -> Mask:
    return np.array([expression.search(text) is not None for text in texts], np.bool_)


class Chains(Record, frozen=True):
    """Chains of a rank: of k kernels in c chains, those of a chain together, in their order."""

    kernel: Int64  # int64[k], indices of kernels
    first: Int64  # int64[c], where each chain begins among them
    count: Int64  # int64[c], how many kernels it has
    # bool[k], whether a kernel is of the pass that takes longest, which one fused kernel takes,
    # too
    kept: Mask
    total_ns: Int64  # int64[c], the sum of durations
    saved_ns: Int64  # int64[c], the same without the pass that takes longest
    is_optimizer: Mask  # bool[c], whether an optimizer runs it
    pattern: npt.NDArray[np.uint64]  # uint64[c], equal for chains of the same kernels
    alone: Int64  # int64[m], indices of other kernels that could be in a chain of the model


def chains_of(
    rank: Rank, chosen: Int64, which: Int64, traits: NameTraits, in_optimizer: Mask | None
) -> Chains:
    """Find chains among kernels of a rank: `chosen`, int64[n], ascending; all others end chains.

    A chain ends at any other operation of its stream, with its step, and where an optimizer begins
    or ends. Its longest pass is that of the name that takes longest: kernels of one name and
    different grids have tensors of different sizes, so that all of them have to be read and
    written; and kernels on lists of tensors, one after the other, have different tensors.

    `which`: int64[n], the name of each. `in_optimizer`: bool[n], whether an optimizer launched
    each; None if that is unknown.
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
        step = np.searchsorted(rank.steps.start_ns, kernels.start_ns.take(kernel), "right")
        begins[1:] |= step[1:] != step[:-1]
    # A list of tensors may take several kernels.
    goes_on = np.zeros(len(kernel), np.bool_)
    goes_on[1:] = ~begins[1:] & is_of_list[1:] & (name[1:] == name[:-1])
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
        kernel,
        first,
        count,
        kept,
        total.astype(np.int64),
        saved.astype(np.int64),
        is_optimizer,
        pattern.astype(np.uint64),
        alone,
    )


def _longest_pass(chain: Int64, name: Int64, unit: Int64, length_ns: Int64) -> Mask:
    """Return which kernels are the longest pass of their chain, bool[k].

    `chain` ascends. `unit` is negative and equal for the kernels on one list of tensors; of others
    it is equal for equal name and grid.
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
    order = np.lexsort((rank_of[which], chain))
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
    """Return the longest row of each group, of equal ones the first: ascending indices."""
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

    Kernels come by stream. Of several operations that start at once, kernels count in their order,
    and before others.
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
            before[here] += np.searchsorted(on_stream, start)
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


_SOFTMAX = re.compile(r"(?i)soft_?max")
# The loss of a classifier; PyTorch's kernel for short rows says it by its fifth parameter.
_LOG_SOFTMAX = re.compile(r"(?i)log_?soft_?max|softmax_warp_\w+<(?:[^,<>]+(?:<[^<>]*>)?, *){4}true")
_BACKWARD = re.compile(r"(?i)backward|bwd")
_MAKES_VALUES = re.compile(
    r"distribution_(?:elementwise|nullary)"
)  # of random numbers: new matrices
_MAX_GAP_NS = 1_000_000  # between kernels of one attention
_OTHER, _ELEMENTWISE, _SOFTMAX_FORWARD, _SOFTMAX_BACKWARD, _MATMUL = range(5)


def _role(name: str, kind: KernelKind) -> int:
    if kind.category == Category.MATMUL:
        return _MATMUL
    if _SOFTMAX.search(name) and not _LOG_SOFTMAX.search(name):
        return _SOFTMAX_BACKWARD if _BACKWARD.search(name) else _SOFTMAX_FORWARD
    is_elementwise = kind.category == Category.ELEMENTWISE and not _MAKES_VALUES.search(name)
    return _ELEMENTWISE if is_elementwise else _OTHER


def attention_kernels(
    rank: Rank, chosen: Int64, roles: npt.NDArray[np.int8]
) -> tuple[Int64, Int64]:
    """Return the k kernels of attention that is not fused, and where each of r rows of them begins.

    The first is int64[k], indices of kernels by stream and start, the second int64[r].

    On one stream a multiplication of matrices, one softmax and another multiplication, with
    nothing but elementwise kernels between them (scale, mask, dropout, copies of format) and at
    most 1 ms from one to the next. Neither multiplication is another softmax's on the way forward.
    On the way back there are two on each side, of which the outer ones may be elsewhere.

    `chosen`: int64[n], ascending indices of kernels; all others are none of attention. `roles`:
    int8[n], what each may be.
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
        start = kernels.start_ns.take(here)
        is_late = start[1:] - kernels.ends(here)[:-1] > _MAX_GAP_NS
        is_attention = _is_attention(role, np.append(False, is_late))
        attention.append(here[is_attention])
        begins.append(~np.concatenate([[False], is_attention[:-1]])[is_attention])
    return np.concatenate(attention), np.flatnonzero(np.concatenate(begins))


def _is_attention(
    role: npt.NDArray[np.int8], is_late: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Return which kernels of a stream are of attention, bool[n], by what they may be, int8[n].

    `is_late`: bool[n], whether a kernel starts long after the one before it.
    """
    place = np.flatnonzero(role != _ELEMENTWISE)
    main = role[place]
    is_softmax = (main[1:-1] == _SOFTMAX_FORWARD) | (main[1:-1] == _SOFTMAX_BACKWARD)
    is_between = is_softmax & (main[:-2] == _MATMUL) & (main[2:] == _MATMUL)
    softmax = 1 + np.flatnonzero(is_between)
    low, high = place[softmax - 1], place[softmax + 1]
    goes_back = main[softmax] == _SOFTMAX_BACKWARD
    num_late = np.cumsum(is_late)
    is_one = num_late[low] == num_late[high]
    shares = ~goes_back[1:] & ~goes_back[:-1] & (low[1:] == high[:-1])
    is_one &= ~(np.append(shares, False) | np.append(False, shares))
    softmax, low, high, goes_back = (of[is_one] for of in (softmax, low, high, goes_back))
    low -= goes_back & (role[np.maximum(low - 1, 0)] == _MATMUL) & (low > 0)
    last = len(role) - 1
    high += goes_back & (role[np.minimum(high + 1, last)] == _MATMUL) & (high < last)
    # On the way back one multiplication may end a row and begin the next one.
    steps = np.zeros(len(role) + 1, np.int64)
    np.add.at(steps, low, 1)
    np.subtract.at(steps, high + 1, 1)
    return np.cumsum(steps)[:-1] > 0


OPTIMIZER = (
    "The optimizer: torch.optim.AdamW(..., fused=True) (PyTorch 2.0; SGD 2.3) updates all"
    " parameters in one pass, foreach=True (the default on GPUs since 2.0) at least in few kernels;"
    " before that NVIDIA apex's FusedAdam, FusedSGD"
)
_COMPILE = "torch.compile(model) (PyTorch 2.0) fuses such chains into Triton kernels"
LAYOUT = (
    "Changes of layout around convolutions: model.to(memory_format=torch.channels_last) and the"
    " same for the input (channels_last_3d for volumes, PyTorch 1.5) avoid them"
)
ATTENTION = (
    "Attention in one kernel, which never writes its scores to memory:"
    " torch.nn.functional.scaled_dot_product_attention (PyTorch 2.0; in Transformers"
    " attn_implementation='sdpa'), which uses FlashAttention for FP16 and BF16;"
    " jax.nn.dot_product_attention(..., implementation='cudnn')"
)
ALL_ADVICE = (ATTENTION, OPTIMIZER, _COMPILE, GRAPH_BREAKS, GRAPHS, LAYOUT)


def _advice(result: UnfusedKernelsResult, by_attention: float) -> tuple[str, ...]:
    """Return what to do, most promising first; `by_attention`: its share of what could be saved."""
    metrics = result.metrics
    attention = (ATTENTION,) if by_attention >= _MIN_SHARE else ()
    if not (result.is_pytorch and metrics.num_chains):
        return attention
    by_optimizer = f.share(result.saved_by_optimizer_ns, result.saved_ns)
    by_optimizer = 0.0 if result.has_fused_optimizer else by_optimizer
    by_layout = f.share(metrics.layout_ns, metrics.kernel_ns)
    compiles = GRAPH_BREAKS if result.is_compiled else _COMPILE
    rest = [GRAPHS if result.is_launch_bound else compiles]
    if by_layout >= _MUCH_LAYOUT:  # one flag takes them away; no fusion does
        rest.insert(0, LAYOUT)
    if by_optimizer >= _MIN_SHARE:
        rest.insert(0 if by_optimizer >= 0.5 else len(rest), OPTIMIZER)
    if LAYOUT not in rest and by_layout >= _MIN_SHARE:
        rest.append(LAYOUT)
    return (*attention, *rest) if by_attention >= 0.5 else (*rest, *attention)


_MIN_SHARE = 0.1
_MUCH_LAYOUT = 0.25


ID = "unfused-kernels"
_MAX_NAMED = 3  # kernels of a chain
# A compiler also fuses two in a row, and those between which others run that need not.
_LIMITED_BY = "the time of kernels that only read and write memory, and of launching them"


class UnfusedKernelsMetrics(f.Metrics):
    """Numbers of `unfused-kernels`."""

    kernel_ns: Annotated[f.Ns, "the time in which kernels of such chains ran"]
    optimizer_ns: Annotated[f.Ns, "the part of `kernel_ns` in chains of an optimizer"]
    fraction: Annotated[
        f.Fraction, "`kernel_ns` as a share of the time in which any kernel computed"
    ]
    num_kernels: Annotated[f.Count, "the number of kernels in chains"]
    num_chains: Annotated[f.Count, "the number of chains"]
    longest_chain: Annotated[f.Count, "the number of kernels in the longest chain"]
    attention_ns: Annotated[
        f.Ns,
        "the time of attention that is not one kernel: a softmax, the matrix multiplications before"
        " and after it, and everything in between; some of it is also in `kernel_ns`",
    ]
    layout_ns: Annotated[f.Ns, "the part of `kernel_ns` in kernels that only change layouts"]
    idle_ns: Annotated[
        f.Ns,
        "the time between the kernels of a chain in which the GPU did nothing;"
        " not part of the impact",
    ]
    coverage: Annotated[f.Fraction, "the share of compute time in kernels with known names"]


FINDINGS = {ID: f.FindingKind(UnfusedKernelsMetrics, changes_kernels=True, needs=f.Sight.NAMES)}
PAGE = {"advice": f.bullets(ALL_ADVICE), "min_kernels": str(MIN_KERNELS)}


class UnfusedKernelsResult(CostResult, frozen=True):
    """The chains of one rank."""

    metrics: UnfusedKernelsMetrics  # the numbers of the finding
    # the time of kernels that one fused kernel for each chain would do without, and all of
    # attention
    saved_ns: int
    saved_by_optimizer_ns: int  # the part of it that is an optimizer's
    most_ns: int  # what the mean steady step would gain at most, or all without steps
    has_fused_optimizer: bool  # whether its optimizer is fused already
    is_compiled: bool  # whether torch.compile made other kernels
    is_launch_bound: bool  # whether launching most of the chains takes longer than running them


def run(rank: Rank, window: Window) -> UnfusedKernelsResult:
    """Measure the chains among the kernels that start in a window of a rank."""
    kernels = rank.operations.kernels
    computes = ~rank.is_communication_kernel
    chosen = np.flatnonzero(window.holds_start(kernels.start_ns) & computes)
    names, of_signature = named_signatures(rank)
    which = of_signature.take(kernels.packed_signature.at(chosen))
    kinds = [kernel_kind(name, communicates=False) for name in names]
    traits = NameTraits.of(names, kinds)
    is_known = np.array([kind.is_known for kind in kinds], np.bool_)
    length = kernels.packed_length.at(chosen)
    total_ns = intervals.total(length)
    coverage = intervals.total(length[is_known.take(which)]) / total_ns if total_ns else 1.0
    chains = chains_of(rank, chosen, which, traits, _in_optimizer(rank, chosen))
    roles = np.array([*map(_role, names, kinds)], np.int8)
    attention, rows = attention_kernels(rank, chosen, roles.take(which))
    kept_longer_ns = longer_by_bytes(rank, chains)
    if len(attention) and len(chains.first):
        goes_anyway = is_in(chains.kernel, attention) & chains.kept
        kept_longer_ns[np.logical_or.reduceat(goes_anyway, chains.first)] = 0
    chains = replace(chains, saved_ns=chains.saved_ns - kept_longer_ns)
    name = of_signature[kernels.packed_signature.at(chains.kernel)]
    of_optimizer = np.repeat(chains.is_optimizer, chains.count)

    def cover(*which: Int64) -> Intervals:
        kernel = np.concatenate(which)
        covered = intervals.union(kernels.start_ns.take(kernel), kernels.ends(kernel))
        return window.clip(covered)

    def measure(which: Int64) -> int:
        return cover(which).measure_ns

    compute_ns = window.clip(rank.compute).measure_ns
    kernel_ns = measure(chains.kernel)
    spared = np.append(chains.kernel.compress(~chains.kept), attention)
    most_spared, kept_ns = np.append(spared, chains.alone), int(kept_longer_ns.sum())
    metrics = UnfusedKernelsMetrics(
        kernel_ns=kernel_ns,
        optimizer_ns=measure(chains.kernel[of_optimizer]),
        fraction=f.share(kernel_ns, compute_ns),
        num_kernels=len(chains.kernel),
        num_chains=len(chains.first),
        longest_chain=int(chains.count.max(initial=0)),
        attention_ns=measure(attention),
        layout_ns=kernel_ns - measure(chains.kernel[~traits.is_layout[name]]),
        idle_ns=_idle_within(rank, chains),
        coverage=coverage,
    )
    return UnfusedKernelsResult(
        **facts_of(rank, window),
        metrics=metrics,
        saved_ns=max(measure(spared) - kept_ns, 0),
        saved_by_optimizer_ns=max(
            measure(chains.kernel[~chains.kept & of_optimizer])
            - int(kept_longer_ns[chains.is_optimizer].sum()),
            0,
        ),
        most_ns=_most_ns(rank, window, cover(most_spared), most_spared, kept_ns),
        only_step=only_step(rank, window, cover(spared)),
        has_fused_optimizer=rank.program.has_fused_optimizer,
        is_compiled=rank.program.is_compiled,
        is_launch_bound=_idle_within(rank, chains, MAX_BETWEEN_MARKERS_NS) > kernel_ns,
        evidence=(*_row_of_attention(rank, attention, rows), *_evidence(rank, chains, name, names))[
            : f.MAX_EVIDENCE
        ],
    )


def findings(result: UnfusedKernelsResult) -> list[f.Finding | f.NotApplicable]:
    """Judge the most that fused kernels could save."""
    metrics = result.metrics
    if not (result.is_pytorch or metrics.attention_ns):
        return []  # other programs get no advice on chains
    texts = []
    if metrics.num_chains:
        where = f"{metrics.num_kernels} kernels of {counted(metrics.num_chains, 'chain')}"
        if metrics.optimizer_ns:
            where += f", {duration(metrics.optimizer_ns)} of it in the optimizer's"
        texts.append(
            f"{percent(metrics.fraction)} of the compute time goes to chains of kernels that only"
            f" read and write memory: {duration(metrics.kernel_ns)} in {where}"
        )
    by_attention = f.share(metrics.attention_ns, result.saved_ns)
    if metrics.attention_ns:
        text = f"attention that is not one kernel takes {duration(metrics.attention_ns)}"
        texts.insert(0 if by_attention >= 0.5 else 1, text)
    return result.finding(
        ID,
        "; ".join(texts),
        result.saved_ns,
        metrics,
        _advice(result, by_attention),
        saving=f.Saving.at_most(result.most_ns, limited_by=_LIMITED_BY),
    )


def _most_ns(
    rank: Rank, window: Window, spared_time: Intervals, spared: Int64, kept_ns: int
) -> int:
    """Return what the mean steady step would gain at most, or all without steps.

    That is what kernels would take less, and the host's time for launching them, if it is the
    slower one. `spared_time`: when the kernels ran that fused ones may do without, of which
    `kept_ns` stays.
    """
    of_step = share_per_step(rank, window, spared_time)
    saved_ns = max(spared_time.measure_ns - kept_ns, 0)
    most, calls = ceil(saved_ns * (1 if of_step is None else of_step)), rank.calls
    if calls is None:
        return most
    chosen, called = np.zeros(len(calls), np.bool_), rank.launched_by[0].take(spared)
    chosen[called[called >= 0]] = True
    launching = intervals.subtract(with_operators(rank, calls, chosen), spared_time)
    slower = idle_causes(rank).host_is_slower
    return most + min(covered_in_mean(rank, window, time) for time in (launching, slower))


def _in_optimizer(rank: Rank, chosen: Int64) -> Mask | None:
    ranges = rank.trace.ranges(OPTIMIZER_RANGES, rank.process).get(rank.process)
    if ranges is None or len(ranges.start_ns) == 0 or not rank.calls:
        return None
    inside = intervals.union(ranges.start_ns, np.minimum(ranges.end_ns, intervals.BEYOND_NS))
    call = rank.launched_by[0][chosen]
    launched = rank.calls.start_ns[np.maximum(call, 0)]
    return (intervals.holder(inside.start_ns, inside.end_ns, launched) >= 0) & (call >= 0)


def _idle_within(rank: Rank, chains: Chains, longest_ns: int = intervals.BEYOND_NS) -> int:
    """Return how long the GPU did nothing between kernels of a chain, in gaps up to a length."""
    start, end = _times(rank, chains.kernel)
    follows = np.ones(len(start), np.bool_)
    follows[chains.first] = False
    after = np.flatnonzero(follows)
    low, high = end[after - 1], start[after]
    waits = (high > low) & (high - low <= longest_ns)
    between = intervals.union(low[waits], high[waits])
    return intervals.subtract(between, rank.busy).measure_ns


def _times(rank: Rank, kernel: Int64) -> tuple[Int64, Int64]:
    kernels = rank.operations.kernels
    return kernels.start_ns.take(kernel), kernels.ends(kernel)


def _row_of_attention(rank: Rank, kernel: Int64, first: Int64) -> list[f.Evidence]:
    if len(first) == 0:
        return []
    start, end = _times(rank, kernel)
    longest = int(np.argmax(np.add.reduceat(end - start, first)))
    count = int(np.diff(first, append=len(kernel))[longest])
    here = slice(int(first[longest]), int(first[longest]) + count)
    times = "" if len(first) == 1 else f", {len(first)} rows in all"
    text = f"attention in {count} kernels: multiplication, softmax, multiplication{times}"
    return [f.Evidence(int(start[here][0]), int(end[here].max()), text)]


def _evidence(
    rank: Rank, chains: Chains, name: Int64, names: Sequence[str]
) -> tuple[f.Evidence, ...]:
    """Show the chain that takes longest of each pattern, the costliest patterns first."""
    start, end = _times(rank, chains.kernel)
    patterns, which, num = np.unique(chains.pattern, return_inverse=True, return_counts=True)
    saved = np.zeros(len(patterns), np.int64)
    np.add.at(saved, which, chains.saved_ns)
    evidence = []
    for pattern in intervals.largest(saved, f.MAX_EVIDENCE).tolist():
        of_pattern = np.flatnonzero(which == pattern)
        chain = int(of_pattern[np.argmax(chains.total_ns[of_pattern])])
        first, count = int(chains.first[chain]), int(chains.count[chain])
        last = first + count
        texts = (names[index] for index in dict.fromkeys(name[first:last].tolist()))
        titles = list(dict.fromkeys(map(short_title, texts)))
        shown = ", ".join([*titles[:_MAX_NAMED], *["…"][: len(titles) - _MAX_NAMED]])
        times = "" if num[pattern] == 1 else f", {num[pattern]} times"
        gain = duration(int(saved[pattern]))
        text = f"{count} kernels in a row{times}: at most {gain} to gain ({shown})"
        evidence.append(f.Evidence(int(start[first]), int(end[first:last].max()), text))
    return tuple(evidence)
