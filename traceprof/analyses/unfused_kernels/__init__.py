"""Chains of kernels that are bound by memory, which one fused kernel could replace."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Annotated

import numpy as np
from msgspec.structs import replace

from traceprof import findings as f
from traceprof import intervals, labels
from traceprof.analyses.shape.results import RankResult
from traceprof.analyses.unfused_kernels.chains import (
    MIN_KERNELS,
    NameTraits,
    attention_kernels,
    chains_of,
    longer_by_bytes,
    roles_of,
)
from traceprof.host.host_waits import with_operators
from traceprof.host.idle_causes import idle_causes
from traceprof.kernel_names import short_title
from traceprof.kernel_names.categories import kernel_kind
from traceprof.patterns import lazy
from traceprof.run.steady_steps import covered_in_mean, share_per_step
from traceprof.trace.grouping import distinct_values, is_in
from traceprof.trace.model.parts import Part
from traceprof.units import counted, duration, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.analyses.unfused_kernels.chains import Chains
    from traceprof.intervals import Int64, Intervals, Mask
    from traceprof.run.rank import Rank, Window

_OPTIMIZER = (
    "The optimizer: torch.optim.AdamW(..., fused=True) (PyTorch 2.0; SGD 2.3) updates all"
    " parameters in one pass, foreach=True (the default on GPUs since 2.0) at least in few kernels;"
    " before that NVIDIA apex's FusedAdam, FusedSGD"
)
_COMPILE = "torch.compile(model) (PyTorch 2.0) fuses such chains into Triton kernels"
_GRAPHS = (
    "The GPU waits for the host between them: torch.compile(model, mode='reduce-overhead') (PyTorch"
    " 2.0) or torch.cuda.make_graphed_callables (1.10) launch them as CUDA graphs"
)
_LAYOUT = (
    "Changes of layout around convolutions:"
    " model.to(memory_format=torch.channels_last) and the same for the"
    " input (channels_last_3d for volumes, PyTorch 1.5) avoid them"
)
_ATTENTION = (
    "Attention in one kernel, which never writes its scores to memory:"
    " torch.nn.functional.scaled_dot_product_attention (PyTorch 2.0; in"
    " Transformers attn_implementation='sdpa'), which uses FlashAttention"
    " for FP16 and BF16; jax.nn.dot_product_attention(...,"
    " implementation='cudnn')"
)
ALL_ADVICE = (_ATTENTION, _OPTIMIZER, _COMPILE, _GRAPHS, _LAYOUT)


def advice(
    *,
    has_chains: bool,
    by_attention: float,
    is_launch_bound: bool,
    by_optimizer: float,
    by_layout: float,
) -> tuple[str, ...]:
    """Return what to do, most promising first.

    Args:
        has_chains: whether chains of a PyTorch program are not fused.
        by_attention: the share of attention, by what could be saved.
        is_launch_bound: whether launching takes longer than running.
        by_optimizer: the share of chains of an optimizer that is not fused, by what could be saved.
        by_layout: the share of changes of layout, by time.
    """
    attention = (_ATTENTION,) if by_attention >= _MIN_SHARE else ()
    if not has_chains:
        return attention
    rest = _of_chains(is_launch_bound, by_optimizer, by_layout)
    return (*attention, *rest) if by_attention >= 0.5 else (*rest, *attention)


def _of_chains(is_launch_bound: bool, by_optimizer: float, by_layout: float) -> tuple[str, ...]:
    others: tuple[str, ...] = (_GRAPHS,) if is_launch_bound else (_COMPILE,)
    layout: tuple[str, ...] = (_LAYOUT,) if by_layout >= _MIN_SHARE else ()
    if by_layout >= _MUCH_LAYOUT:  # one flag takes them away; no fusion does
        others, layout = (_LAYOUT, *others), ()
    if by_optimizer < _MIN_SHARE:
        return (*others, *layout)
    if by_optimizer > 1 - _MIN_SHARE:
        return (_OPTIMIZER, *others)
    first = (_OPTIMIZER, *others) if by_optimizer >= 0.5 else (*others, _OPTIMIZER)
    return (*first, *layout)


_MIN_SHARE = 0.1
_MUCH_LAYOUT = 0.25


ID = "unfused-kernels"
REQUIRES: tuple[Part, ...] = (Part.GPU_OPERATIONS,)
READS: tuple[str, ...] = ()
_OPTIMIZER_RANGES = lazy(rf"\A(?:{labels.OPTIMIZER_STEP}(?: |\Z)|Optimizer\.step#)")
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
        "the time of attention that is not one kernel: a softmax, the matrix"
        " multiplications before and after it, and everything in between; some"
        " of it is also in `kernel_ns`",
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


class UnfusedKernelsResult(RankResult, frozen=True):
    """The chains of one rank."""

    window_ns: int  # the length of the window
    metrics: UnfusedKernelsMetrics  # the numbers of the finding
    # the time of kernels that one fused kernel for each chain would do without, and all of
    # attention
    saved_ns: int
    saved_by_optimizer_ns: int  # the part of it that is an optimizer's
    most_ns: int  # what the mean steady step would gain at most, or all without steps
    is_pytorch: bool  # whether the program is known to use PyTorch
    has_fused_optimizer: bool  # whether its optimizer is fused already
    # the longest row of attention, and the longest chain of each pattern that costs most
    evidence: tuple[f.Evidence, ...]


def run(rank: Rank, window: Window) -> UnfusedKernelsResult:
    """Measure the chains among the kernels that start in a window of a rank."""
    kernels = rank.operations.kernels
    computes = ~rank.is_communication_kernel
    chosen = np.flatnonzero(window.holds_start(kernels.start_ns) & computes)
    ids = distinct_values(kernels.name_of_signature)
    texts = [rank.kernel_names[id_] for id_ in ids.tolist()]
    names = sorted(set(texts))
    place = {name: index for index, name in enumerate(names)}
    of_signature = np.array([place[text] for text in texts], np.int64)[
        np.searchsorted(ids, kernels.name_of_signature)
    ]
    which = of_signature.take(kernels.packed_signature.at(chosen))
    kinds = [kernel_kind(name, communicates=False) for name in names]
    traits = NameTraits.of(names, kinds)
    is_known = np.array([kind.is_known for kind in kinds], np.bool_)
    length = kernels.packed_length.at(chosen)
    total_ns = intervals.total(length)
    coverage = intervals.total(length[is_known.take(which)]) / total_ns if total_ns else 1.0
    del length  # there can be many
    chains = chains_of(rank, chosen, which, traits, _in_optimizer(rank, chosen))
    attention, rows = attention_kernels(rank, chosen, roles_of(names, kinds).take(which))
    del chosen, which, computes
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
        return intervals.clip(covered, window.start_ns, window.end_ns)

    def measure(which: Int64) -> int:
        return cover(which).measure_ns

    compute_ns = intervals.clip(rank.compute, window.start_ns, window.end_ns).measure_ns
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
        rank=rank.rank,
        window_ns=window.length_ns,
        metrics=metrics,
        saved_ns=max(measure(spared) - kept_ns, 0),
        saved_by_optimizer_ns=max(
            measure(chains.kernel[~chains.kept & of_optimizer])
            - int(kept_longer_ns[chains.is_optimizer].sum()),
            0,
        ),
        most_ns=_most_ns(rank, window, cover(most_spared), most_spared, kept_ns),
        is_pytorch=rank.program.is_pytorch,
        has_fused_optimizer=rank.program.has_fused_optimizer,
        evidence=(*_row_of_attention(rank, attention, rows), *_evidence(rank, chains, name, names))[
            : f.MAX_EVIDENCE
        ],
    )


def findings(result: UnfusedKernelsResult) -> list[f.Finding | f.NotApplicable]:
    """Judge the most that fused kernels could save."""
    metrics = result.metrics
    impact = f.share(result.saved_ns, result.window_ns)
    severity = f.severity_of_cost(impact)
    if severity is None or not (result.is_pytorch or metrics.attention_ns):
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
    return [
        f.Finding(
            ID,
            severity,
            result.rank,
            "; ".join(texts),
            result.saved_ns,
            impact,
            metrics.by_name(),
            result.evidence,
            advice(
                has_chains=result.is_pytorch and metrics.num_chains > 0,
                by_attention=by_attention,
                is_launch_bound=metrics.idle_ns > metrics.kernel_ns,
                by_optimizer=f.share(result.saved_by_optimizer_ns, result.saved_ns)
                * (not result.has_fused_optimizer),
                by_layout=f.share(metrics.layout_ns, metrics.kernel_ns),
            ),
            saving=f.Saving.at_most(result.most_ns, limited_by=_LIMITED_BY),
        )
    ]


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
    """Return which kernels a range of the optimizer launched; None without such ranges."""
    ranges = rank.trace.ranges(_OPTIMIZER_RANGES, rank.process).get(rank.process)
    if ranges is None or len(ranges.start_ns) == 0 or not rank.calls:
        return None
    inside = intervals.union(ranges.start_ns, np.minimum(ranges.end_ns, intervals.BEYOND_NS))
    call = rank.launched_by[0][chosen]
    launched = rank.calls.start_ns[np.maximum(call, 0)]
    covered: Mask = intervals.covered_within(inside, launched, launched + 1) > 0
    return covered & (call >= 0)


def _idle_within(rank: Rank, chains: Chains) -> int:
    """Return how long the GPU did nothing between kernels of a chain."""
    start, end = _times(rank, chains.kernel)
    follows = np.ones(len(start), np.bool_)
    follows[chains.first] = False
    after = np.flatnonzero(follows)
    low, high = end[after - 1], start[after]
    waits = high > low
    between = intervals.union(low[waits], high[waits])
    return intervals.subtract(between, rank.busy).measure_ns


def _times(rank: Rank, kernel: Int64) -> tuple[Int64, Int64]:
    kernels = rank.operations.kernels
    return kernels.start_ns.take(kernel), kernels.ends(kernel)


def _row_of_attention(rank: Rank, kernel: Int64, first: Int64) -> list[f.Evidence]:
    """Show the longest row of attention."""
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
