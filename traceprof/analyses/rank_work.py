"""Ranks by their work: which rank computes longer than those that should do the same.

Needs neither clocks nor event records. *Peers* are ranks of one pipeline stage that reduce
gradients together (where no process group is known, what they reduce ends together), or that run
the same kernels equally often.
A rank's *excess* is its compute in a step less the median of its peers. *Noise* is how much peers
differ from each other and from step to step, at least 1 % of the compute.

An excess is *constant* where the median over the steps is beyond three times the noise; beyond
20 % neither noise nor several steps are needed. It *changes* where in most parts of steps (between
two meetings of the ranks) some rank is 20 % beyond the others; or less where the rank that is the
longest by three quarters of the kernels of a part is so by the last quarter, too: for equal ranks
that is nothing, on average.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceprof.analyses import pipeline_bubble
from traceprof.analyses.kernels.placed_kernels import PlacedKernels, SharedSteps, shared_steps
from traceprof.analyses.measurements import MeasuredRun
from traceprof.findings import Count, Ns, one_of
from traceprof.intervals import Float64, Int64, Mask
from traceprof.kernel_names.categories import MAIN_COMPUTE
from traceprof.ranks.comparison import RankComparison
from traceprof.ranks.passes import BACKWARD, FORWARD, RankPasses
from traceprof.ranks.waits import GroupWaits
from traceprof.run.guard import optional
from traceprof.run.session_clocks import Clocks
from traceprof.structs import Record, by_key
from traceprof.trace.grouping import (
    DISTANCE_TO_DEVIATION,
    mean_of,
    median_of,
    middle_of_others,
    places,
)

MIN_NOISE = 0.01
"""The share of its compute by which a rank differs from its peers in any run."""
NUM_NOISE = 3.0
"""How many times the noise an excess must be."""
MIN_COST = 0.01
"""The share of a step that an excess must be."""
CERTAIN = 0.2
"""The share of the compute from which on an excess needs no estimate of noise."""
MIN_STEPS = 3
"""The number of steps that show noise."""
SAME_WORK = 0.05
"""The share by which the numbers of kernels of peers may differ."""
_MIN_PEERS = 4  # from which on the spread of the peers is known beside one that is different
_MOSTLY = 0.5  # of the compute in parts, from which on an excess changes; of a cost, is constant
_REDUCE = ("AllReduce", "ReduceScatter", "AllGather")
_NAMED = ("labels", "communicator")
_TOGETHER = 0.1  # how far apart ranks leave operations that they come to, at most
_FAR_MORE = 2  # times the median of the waiting that ranks make
_MAX_PARTS = 256  # of a step: neighbours of more are taken together
_FEW = 6  # so many ranks differ no further by chance
SAME_BLOCKS = 1.02
"""Times the others' thread blocks: more are a reason to take longer."""
_ONE_KERNEL = 0.9  # of an excess: what one kernel makes where no other one is slower
_ALWAYS = 0.9  # of the parts in which one rank is the longest: it may be the same one always
_LITTLE_SLOWER = 0.25  # of the excess: a part of the step with less of it takes as long as others'
NUM_FOLDS = 4
"""Groups of the kernels of a part: three say which rank is the longest, one what it takes."""
MIN_CHANGING = 0.05
"""The share of the compute that a changing excess must be that is not certain."""
MIN_STANDARD_ERRORS = 4.0
"""Standard errors over the steps that it must be above 0."""
MIN_CHANGING_STEPS = 6
TAKES_TURNS = 0.75
"""The share of such an excess that one rank has at most."""


class PeerSet(Struct, frozen=True, forbid_unknown_fields=True):
    """Ranks that should do the same work."""

    ranks: tuple[Count, ...]
    source: Annotated[
        str,
        one_of("groups", "work"),
        "`groups`: they reduce or gather tensors together; `work`: they run the same kernels"
        " equally often.",
    ]
    num_ranks: Annotated[Count, "Number of ranks of the group, perhaps more than were recorded."]
    stage: Annotated[Count | None, "Their pipeline stage, from 0; null without a pipeline."]


class RankWork(Struct, frozen=True, forbid_unknown_fields=True):
    """Compute of a rank, and its excess over its peers; per step, or in the training without."""

    rank: Count
    stage: Annotated[Count | None, "Its pipeline stage, from 0; null without a pipeline."]
    peers: Annotated[Count | None, "Index into `peers`; null for a rank without peers."]
    num_steps: Annotated[Count, "Number of steps that were compared; 1 without steps."]
    compute_ns: Annotated[Ns, "Compute of a step, all kernels added: mean of these steps."]
    forward_ns: Annotated[Ns | None, "Median compute of a forward pass; null if unknown."]
    backward_ns: Annotated[Ns | None, "Median compute of a backward pass; null if unknown."]
    excess_ns: Annotated[int | None, "Mean of what a step's compute is beyond the peers' median."]
    noise_ns: Annotated[Ns | None, "How much peers differ from each other and between steps."]
    is_outlier: Annotated[bool, "Whether the excess is constant, and more than noise."]


class Excess(Record, frozen=True):
    """Work of peers that is uneven: on one rank always, or on another one each time."""

    member: int  # index of the rank among those with kernels, or of the one that costs most
    is_constant: bool | None  # None where one step cannot show it
    peers: int  # index of the peer set
    excess_ns: float  # in a step, on average: what the longest takes beyond the mean of the peers
    slower: float  # its compute, as a multiple of the others' mean
    share_longest: float  # in which share of the parts it was the longest
    own_ns: float  # its compute in a step, or that of the kernel that is uneven
    least_ns: float  # the same of its peers: the least
    most_ns: float
    by_step_ns: Float64  # float64[s], what it is beyond the mean of the peers in each shared step
    by_category_ns: Mapping[str, float]  # the excess of a step, by category of kernels
    num_kernels: Mapping[str, float]  # how many kernels of a category it has in a step
    # its thread blocks as a multiple of the others' mean, or its kernels where grids are unknown
    work: float
    name: str | None = None  # of the only kernel that is uneven
    # the share of its matrix products in parts of the step where they take as long on the others;
    # None where that tells nothing of its GPU
    alike_fraction: float | None = None


class RunWork(Record, frozen=True):
    """The work of the ranks of a run, compared."""

    peers: tuple[PeerSet, ...] = ()
    ranks: tuple[RankWork, ...] = ()  # in order of the ranks with a GPU
    excesses: tuple[Excess, ...] = ()  # largest first
    # by rank, a number that it shares with those that run the same kernels, whatever their stage
    alike: tuple[int, ...] = ()

    @property
    def slower(self) -> dict[int, float]:
        """By which factor ranks are slower than their peers, by number; not where that changes."""
        slower = {}
        for excess in self.excesses:
            if excess.is_constant is not False:
                row = self.ranks[excess.member]
                more = excess.own_ns - excess.own_ns / excess.slower
                slower[row.rank] = row.compute_ns / max(row.compute_ns - more, 1.0)
        return slower

    @property
    def is_changing(self) -> bool:
        """Whether another rank is the longest each time."""
        return any(excess.is_constant is False for excess in self.excesses)


def run(measured: MeasuredRun) -> RunWork:
    """Compare the work of the ranks of a run, once."""
    return measured.cache.get(_guarded, measured)


def by_note(measured: MeasuredRun) -> list[int]:
    """Return the numbers of all ranks, those first that a table of a few must show.

    First ranks that compute longer than their peers, and the longest stages; then those that make
    the others wait far longer than most do; then the median; then the rest, by the waiting they
    make.
    """
    numbers, work = measured.ranks.ranks, run(measured)
    made = dict(zip(numbers, measured.ranks.matrix_ns.sum(axis=0).tolist(), strict=True))
    named = [measured.placed[excess.member].rank for excess in work.excesses]
    named += [
        metrics[0].longest_rank
        for metrics in pipeline_bubble.run(measured).metrics
        if metrics[0].longest_rank is not None
    ]
    rest = sorted(
        (rank.rank for rank in measured.run.ranks), key=lambda rank: (-made.get(rank, 0), rank)
    )
    usual = float(median_of([*made.values()])) if made else 0.0
    late = [rank for rank in rest if made.get(rank, 0) > _FAR_MORE * usual]
    by_compute = sorted(work.ranks, key=lambda row: row.compute_ns)
    middle = [by_compute[len(by_compute) // 2].rank] if by_compute else []
    return [*dict.fromkeys((*named, *late, *middle, *rest))]


@optional("uneven-kernels", otherwise=lambda *_: RunWork())
def _guarded(measured: MeasuredRun) -> RunWork:
    if len(measured.placed) < 2:
        return RunWork()
    numbers = {rank: place for place, rank in enumerate(measured.ranks.ranks)}
    stage_of: dict[int, int] = {}
    for pipeline in pipeline_bubble.run(measured).pipelines:
        for stage, gaps in enumerate(pipeline.stages):
            stage_of[gaps.member] = stage
    stages = [stage_of.get(numbers.get(rank.rank, -1)) for rank in measured.placed]
    passes = {of_rank.rank: of_rank for of_rank in measured.passes}
    of_stages = [
        passes.get(rank.rank) if stage is not None else None
        for rank, stage in zip(measured.placed, stages, strict=True)
    ]
    forward, backward = (
        [_median_pass(of_rank, kind) for of_rank in of_stages] for kind in (FORWARD, BACKWARD)
    )
    shared = {number for _, ranks in measured.run.on_one_gpu for number in ranks}
    return work_of(
        measured.placed,
        measured.ranks.clocks,
        stages,
        _groups(measured.ranks, [rank.rank for rank in measured.placed]),
        list(zip(forward, backward, strict=True)),
        {index for index, rank in enumerate(measured.placed) if rank.rank in shared},
    )


def _median_pass(of_rank: RankPasses | None, kind: int) -> int | None:
    if of_rank is None or not (of_rank.kind == kind).any():
        return None
    return int(median_of(of_rank.compute_ns[of_rank.kind == kind]))


def _groups(ranks: RankComparison, numbers: Sequence[int]) -> list[tuple[tuple[int, ...], int]]:
    """Return the groups that reduce or gather together: places in `numbers`, and their sizes."""
    place = {number: index for index, number in enumerate(numbers)}
    groups = []
    for waits in ranks.waits:
        group, reduces = waits.group, waits.group.is_one_of(_REDUCE)
        if reduces.any() and (group.source in _NAMED or _ends_together(waits, reduces)):
            known = (place.get(ranks.ranks[member], -1) for member in group.members)
            members = tuple(member for member in known if member >= 0)
            groups.append((members, max(group.num_ranks, len(members))))
    return groups


def _ends_together(waits: GroupWaits, chosen: Mask) -> bool:
    """Return whether operations that only their order matches are those of one communicator.

    Its members wait for each other: they come apart, and leave together.
    """
    came, left = (np.ptp(times[chosen], axis=1) for times in (waits.start_ns, waits.end_ns))
    return len(came) >= MIN_STEPS and bool(median_of(left) <= _TOGETHER * median_of(came))


def work_of(
    placed: Sequence[PlacedKernels],
    clocks: Clocks,
    stages: Sequence[int | None],
    groups: Sequence[tuple[tuple[int, ...], int]],
    passes: Sequence[tuple[int | None, int | None]],
    sharing: Collection[int] = (),
) -> RunWork:
    """Compare the work of ranks.

    `groups`: ranks that reduce together, and how many they are with those not recorded. `passes`:
    by rank, the median compute of a forward and of a backward, ns. `sharing`: ranks that share a
    GPU with others, which slow their kernels down: their peers are only ranks they reduce with.
    """
    tables = _tables(placed, clocks)
    peers = _peers(tables.num_kernels, stages, groups, sharing)
    rows = []
    for index, rank in enumerate(placed):
        shared = tables.total_ns[index][tables.has_step[index]]
        of_own_steps = float(rank.length_ns.values.sum()) / max(len(rank.number), 1)
        rows.append(
            RankWork(
                rank=rank.rank,
                stage=stages[index],
                peers=None,
                num_steps=len(shared),
                compute_ns=round(float(shared.mean()) if len(shared) else of_own_steps),
                forward_ns=passes[index][0],
                backward_ns=passes[index][1],
                excess_ns=None,
                noise_ns=None,
                is_outlier=False,
            )
        )
    excesses: list[Excess] = []
    for number, (members, _, _) in enumerate(peers):
        own = tables.of(number, members, placed)
        if own is None:
            continue
        spread = _spread(own.total_ns)
        is_outlier = (spread.usual_ns > spread.limit_ns) & (
            spread.usual_ns > MIN_COST * own.step_ns
        )
        for column, member in enumerate(members):
            rows[member] = replace(
                rows[member],
                peers=number,
                excess_ns=round(float(spread.beyond_ns[:, column].mean())),
                noise_ns=round(spread.noise_ns),
                is_outlier=bool(is_outlier[column]),
            )
        excesses += _excesses(own, is_outlier)
    sets = (
        PeerSet(
            tuple(placed[member].rank for member in members),
            "work" if size is None else "groups",
            len(members) if size is None else max(size, len(members)),
            stage,
        )
        for members, size, stage in peers
    )
    like = {
        member: number
        for number, (members, *_) in enumerate(_peers(tables.num_kernels, [None] * len(placed), ()))
        for member in members
    }
    return RunWork(
        tuple(sets),
        tuple(rows),
        tuple(sorted(excesses, key=lambda excess: -excess.excess_ns)),
        tuple(like.get(index, len(placed) + index) for index in range(len(placed))),
    )


class _Spread(NamedTuple):
    """How far peers are apart."""

    beyond_ns: Float64  # float64[s, r], compute less the median of the others
    usual_ns: Float64  # float64[r], its median over the steps; of few steps, the least
    noise_ns: float
    limit_ns: float  # beyond which it is no noise


def _spread(length_ns: Float64) -> _Spread:
    """Compare peers, given what each takes in each step, float64[s, r]."""
    whole = np.rint(length_ns).astype(np.int64)
    beyond = (whole - mean_of(*middle_of_others(whole))).astype(np.float64)
    num_steps, num_ranks = beyond.shape
    typical = float(median_of(length_ns.ravel()))
    noise, limit = MIN_NOISE * typical, CERTAIN * typical
    if num_steps < MIN_STEPS:
        return _Spread(beyond, beyond.min(axis=0), noise, limit)
    usual = median_of(beyond, axis=0)
    noise = max(noise, _deviation(beyond - usual))
    if num_ranks >= _MIN_PEERS:
        noise = max(noise, _deviation(usual - median_of(usual)))
    return _Spread(beyond, usual, noise, min(limit, NUM_NOISE * noise))


def _deviation(values: Float64) -> float:
    return DISTANCE_TO_DEVIATION * float(median_of(np.abs(values).ravel()))


class _Table(Record, frozen=True):
    """What r peers take in the s steps that all of them have."""

    peers: int  # index of the peer set
    members: Sequence[int]  # r indices of ranks
    steps: Int64  # int64[s], indices of shared steps
    total_ns: Float64  # float64[s, r]
    # float64[s, u, f, r], by part of the step between two meetings, and by fold; not a number where
    # peers do not run as many kernels
    folds_ns: Float64
    products_ns: Float64  # float64[u, r], matrix products, by part of the step
    names_ns: Float64  # float64[s, k, r], by name
    names: tuple[tuple[str, str], ...]  # k names and categories
    num_of_name: Float64  # float64[k, r], kernels in a step
    size: Float64  # float64[r], thread blocks in a step; of unknown grids, kernels
    step_ns: float  # the median length of a step
    num_shared: int  # steps of the run


class _Tables(Record, frozen=True):
    """What all ranks take, by shared step."""

    has_step: Mask  # bool[ranks, s]
    total_ns: Float64  # float64[ranks, s]
    num_kernels: Float64  # float64[ranks, names], in a step
    names_ns: Float64  # float64[ranks, s, k], of the names that may matter
    names: tuple[tuple[str, str], ...]
    num_of_name: Float64  # float64[ranks, k]
    num_blocks: Float64  # float64[ranks], in a step; not a number where grids are unknown
    steps: SharedSteps

    def of(
        self, peers: int, members: Sequence[int], placed: Sequence[PlacedKernels]
    ) -> _Table | None:
        """Return the table of some ranks; None if they have no step in common, or no compute."""
        if len(members) < 2:
            return None
        at = list(members)
        steps = np.flatnonzero(self.has_step[at].all(axis=0))
        total = self.total_ns[at][:, steps].T
        if not len(steps) or not median_of(total.ravel()):
            return None
        ranks = [placed[member] for member in members]
        lengths = [median_of(rank.end_ns - rank.start_ns) for rank in ranks if len(rank.start_ns)]
        folds, products = _folds(ranks, [self.steps.of_rank[member] for member in members], steps)
        return _Table(
            peers=peers,
            members=members,
            steps=steps,
            total_ns=total,
            folds_ns=folds,
            products_ns=products,
            names_ns=self.names_ns[at][:, steps].transpose(1, 2, 0),
            names=self.names,
            num_of_name=self.num_of_name[at].T,
            size=self.num_blocks[at]
            if np.isfinite(self.num_blocks[at]).all()
            else self.num_kernels[at].sum(axis=1),
            step_ns=float(median_of(lengths)),
            num_shared=self.steps.num,
        )


def _tables(placed: Sequence[PlacedKernels], clocks: Clocks) -> _Tables:
    steps = shared_steps(placed, clocks)
    num_steps = steps.num
    number: dict[tuple[str, str], int] = {}
    name_of = [
        np.array([number.setdefault(key, len(number)) for key in zip(*texts, strict=True)], int)
        for texts in ((rank.names, rank.categories) for rank in placed)
    ]
    shape = len(placed), num_steps
    total, has_step = np.zeros(shape), np.zeros(shape, np.bool_)
    counts = np.zeros((len(placed), len(number)))
    sums = np.zeros((len(placed), len(number)))
    num_blocks = np.zeros(len(placed))
    columns = []
    for index, (rank, of_rank) in enumerate(zip(placed, steps.of_rank, strict=True)):
        step, _, name, blocks = rank.places.unpacked
        length, at = rank.length_ns.values, of_rank[step]
        known = at >= 0
        columns.append((at[known], name_of[index][name[known]], length[known]))
        total[index] = np.bincount(at[known], length[known], num_steps)
        has_step[index, of_rank[of_rank >= 0]] = True
        num_blocks[index] = blocks[known].sum() if blocks[known].all() else np.nan
        counts[index] = np.bincount(columns[-1][1], minlength=len(number))
        sums[index] = np.bincount(columns[-1][1], columns[-1][2], len(number))
    num_own = np.maximum(has_step.sum(axis=1), 1)[:, np.newaxis]
    matters = (sums > MIN_COST * np.maximum(sums.sum(axis=1, keepdims=True), 1)).any(axis=0)
    chosen = np.flatnonzero(matters)
    place = np.full(len(number), -1)
    place[chosen] = np.arange(len(chosen))
    of_names = np.zeros((len(placed), num_steps, len(chosen)))
    for index, (at, name, length) in enumerate(columns):
        known = place[name] >= 0
        cell = at[known] * len(chosen) + place[name[known]]
        sums_of_names = np.bincount(cell, length[known], num_steps * len(chosen))
        of_names[index] = sums_of_names.reshape(num_steps, len(chosen))
    names = [*number]
    return _Tables(
        has_step,
        total,
        counts / num_own,
        of_names,
        tuple(names[index] for index in chosen.tolist()),
        (counts / num_own)[:, chosen],
        num_blocks / num_own[:, 0],
        steps,
    )


def _folds(
    ranks: Sequence[PlacedKernels], of_rank: Sequence[Int64], steps: Int64
) -> tuple[Float64, Float64]:
    """Return what peers take in each part of steps, by fold, float64[s, u, f, r].

    And what their matrix products take in each part, float64[u, r].
    """
    meets = np.append(0, np.cumsum(_meeting(ranks)))
    meets //= -(-(int(meets[-1]) + 1) // _MAX_PARTS)  # rounded up
    num_parts, num_steps = int(meets[-1]) + 1, len(steps)
    length = np.zeros((num_steps * num_parts * NUM_FOLDS, len(ranks)))
    num = np.zeros((num_steps * num_parts, len(ranks)))
    products = np.zeros((num_parts, len(ranks)))
    for column, (rank, own_step) in enumerate(zip(ranks, of_rank, strict=True)):
        step, part, name, _ = rank.places.unpacked
        is_product = np.array([category in MAIN_COMPUTE for category in rank.categories], np.bool_)
        at = np.searchsorted(steps, own_step[step])
        known = (own_step[step] >= 0) & (np.append(steps, -1)[at] == own_step[step])
        cell = at[known] * num_parts + meets[np.minimum(part[known], len(meets) - 1)]
        fold = cell * NUM_FOLDS + places(cell)[0] % NUM_FOLDS
        took = rank.length_ns.values[known]
        length[:, column] = np.bincount(fold, took, len(length))
        products[:, column] = np.bincount(
            cell % num_parts, took * is_product[name[known]], num_parts
        )
        num[:, column] = np.bincount(cell, minlength=len(num))
    folds = length.reshape(-1, NUM_FOLDS, len(ranks))
    folds[num.min(axis=1) < (1 - SAME_WORK) * num.max(axis=1)] = np.nan
    return folds.reshape(num_steps, num_parts, NUM_FOLDS, len(ranks)), products


def _meeting(placed: Sequence[PlacedKernels]) -> Int64:
    """Return after which communication of a step ranks meet, 0 or 1 by its number in the step."""
    num = max(len(rank.num_communicating) for rank in placed)
    blocking, communicating = np.zeros(num, np.int64), np.zeros(num, np.int64)
    for rank in placed:
        blocking[: len(rank.num_blocking)] += rank.num_blocking
        communicating[: len(rank.num_communicating)] += rank.num_communicating
    return (2 * blocking > communicating).astype(np.int64)


def _peers(
    num_kernels: Float64,
    stages: Sequence[int | None],
    groups: Sequence[tuple[tuple[int, ...], int]],
    sharing: Collection[int] = (),
) -> list[tuple[tuple[int, ...], int | None, int | None]]:
    """Return sets of peers: members, the size of their group (None by work), and the stage.

    Ranks of different stages are none, whatever they reduce together.
    """
    num = len(stages)
    root = [*range(num)]
    size = [0] * num
    for members, num_ranks in groups:
        by_stage = by_key(members, stages.__getitem__)
        for alike in by_stage.values():
            first = min(root[member] for member in alike)
            joined = {root[member] for member in alike}
            largest = max(size[member] for member in alike)
            if len(alike) > 1 or len(by_stage) == 1:
                largest = max(largest, num_ranks if len(by_stage) == 1 else len(alike))
            root = [first if one in joined else one for one in root]
            size[first] = max(size[first], largest)
    grouped = by_key(range(num), root.__getitem__)
    sets: list[tuple[tuple[int, ...], int | None, int | None]] = [
        (tuple(together), size[first], stages[first])
        for first, together in grouped.items()
        if len(together) > 1
    ]
    left = [
        first for first, together in grouped.items() if len(together) == 1 and first not in sharing
    ]
    while left:
        one = left[0]
        most = np.maximum(num_kernels[one], num_kernels[left]).sum(axis=1)
        apart = np.abs(num_kernels[left] - num_kernels[one]).sum(axis=1)
        like_it: list[int] = [
            member
            for member, is_alike in zip(left, apart <= SAME_WORK * most, strict=True)
            if is_alike and stages[member] == stages[one]
        ]
        left = [rest for rest in left if rest not in like_it]
        if len(like_it) > 1:
            sets.append((tuple(like_it), None, stages[one]))
    return sets


def _excesses(own: _Table, outliers: Mask) -> Iterator[Excess]:
    """Yield what is uneven among peers: constant excess, else changing, else of one kernel."""
    changing = _changing(own)
    constant = [_constant(own, column) for column in np.flatnonzero(outliers).tolist()]
    most = max((excess.excess_ns for excess in constant), default=0.0)
    if constant and (changing is None or most >= _MOSTLY * changing.excess_ns):
        yield from constant
    elif changing is not None:
        yield changing
    else:
        yield from _of_kernels(own)


def _constant(own: _Table, column: int) -> Excess:
    """Return the excess of a rank: of one kernel where its others take as long as the peers'."""
    whole = _of_rank(own, column, own.total_ns)
    of_name = own.names_ns.mean(axis=0)
    beyond = of_name[:, column] - np.delete(of_name, column, axis=1).mean(axis=1)
    index = int(beyond.argmax()) if len(beyond) else 0
    is_most = len(beyond) and beyond[index] >= _ONE_KERNEL * whole.own_ns * (1 - 1 / whole.slower)
    if not is_most or of_name[index, column] > _MOSTLY * whole.own_ns or whole.work > SAME_BLOCKS:
        return whole
    return _of_rank(own, column, own.names_ns[:, index], index)


def _of_rank(own: _Table, column: int, length_ns: Float64, name: int | None = None) -> Excess:
    """Return the excess of one rank, of all its kernels or of those of one name, float64[s, r]."""
    by_step = np.zeros(own.num_shared)
    by_step[own.steps] = length_ns[:, column] - length_ns.mean(axis=1)
    others = np.delete(length_ns, column, axis=1).mean(axis=0)
    mine = float(length_ns[:, column].mean())
    chosen = range(len(own.names)) if name is None else (name,)
    by_category: dict[str, float] = defaultdict(float)
    num: dict[str, float] = defaultdict(float)
    for index in chosen:
        of_name = own.names_ns[:, index]
        category = own.names[index][1]
        by_category[category] += float((of_name[:, column] - of_name.mean(axis=1)).mean())
        num[category] += float(own.num_of_name[index, column])
    is_longest = length_ns.argmax(axis=1) == column
    return Excess(
        member=own.members[column],
        is_constant=True if len(length_ns) > 1 else None,
        peers=own.peers,
        excess_ns=float(by_step[own.steps].mean()),
        slower=mine / max(float(others.mean()), 1.0),
        share_longest=float(is_longest.mean()),
        own_ns=mine,
        least_ns=float(others.min()),
        most_ns=float(others.max()),
        by_step_ns=by_step,
        by_category_ns=by_category,
        num_kernels=num,
        work=float(own.size[column] / max(np.delete(own.size, column).mean(), 1.0)),
        name=None if name is None else own.names[name][0],
        alike_fraction=_alike_fraction(own, column),
    )


def _alike_fraction(own: _Table, column: int) -> float | None:
    """Return the share of products in parts of the step where they hardly take longer.

    None of few steps, as parts may be all before a clock fell, and where products do not make most
    of an excess.
    """
    if len(own.steps) < MIN_STEPS:
        return None
    mine, others, all_mine, all_others = (
        some
        for length_ns in (own.products_ns, own.total_ns)
        for some in (length_ns[:, column], np.delete(length_ns, column, axis=1).mean(axis=1))
    )
    beyond = mine.sum() - others.sum()
    if beyond <= max(_MOSTLY * (all_mine.sum() - all_others.sum()), 0):
        return None
    is_alike = mine <= others * (1 + _LITTLE_SLOWER * beyond / max(others.sum(), 1.0))
    return float(mine[is_alike].sum() / mine.sum())


def _changing(own: _Table) -> Excess | None:
    """Return an excess of another rank in each part of a step; None without any."""
    parts = own.folds_ns.sum(axis=2)
    num_steps, num_parts, num_ranks = parts.shape
    known: Mask = np.all(np.isfinite(parts), axis=2)
    whole = np.where(known[:, :, np.newaxis], parts, 0.0)
    flat = np.rint(whole).astype(np.int64).reshape(-1, num_ranks)
    beyond = (flat - mean_of(*middle_of_others(flat))).reshape(parts.shape).astype(np.float64)
    typical = median_of(whole.transpose(1, 0, 2).reshape(num_parts, -1), axis=1)
    # Of many ranks some one is further off by chance.
    limit = CERTAIN * (1 + np.log2(max(num_ranks / _FEW, 1)) / _FEW) * typical
    longest = beyond.argmax(axis=2)
    is_far = known & (beyond.max(axis=2) > limit) & (typical > 0)
    weight = own.total_ns.mean(axis=1).sum() or 1.0
    cost = np.where(known, whole.max(axis=2) - whole.mean(axis=2), 0.0)
    excess_ns = float(cost[is_far].sum()) / num_steps
    is_certain = whole.mean(axis=2)[is_far].sum() >= _MOSTLY * weight and is_far.sum() >= MIN_STEPS
    if not is_certain:
        is_far, excess_ns = known, _held_out_ns(own.folds_ns, known)
    by_rank = np.bincount(longest[is_far], cost[is_far], num_ranks)
    column = int(by_rank.argmax())
    takes_turns = is_certain or by_rank[column] <= TAKES_TURNS * by_rank.sum()
    if not takes_turns or excess_ns < MIN_COST * own.step_ns:
        return None
    by_step = np.zeros(own.num_shared)
    by_step[own.steps] = np.where(is_far & (longest == column), cost, 0.0).sum(axis=1)
    share_longest = float((longest[is_far] == column).mean())
    by_category: dict[str, float] = defaultdict(float)
    for index, (_, category) in enumerate(own.names):
        of_name = own.names_ns[:, index]
        by_category[category] += float((of_name.max(axis=1) - of_name.mean(axis=1)).mean())
    return replace(
        _of_rank(own, column, own.total_ns),
        is_constant=False if share_longest < _ALWAYS else None,
        excess_ns=excess_ns,
        share_longest=share_longest,
        by_step_ns=by_step,
        by_category_ns=by_category,
    )


def _held_out_ns(folds_ns: Float64, known: Mask) -> float:
    """Return what the longest rank of a part takes beyond the mean, in a step; 0 if by chance.

    Which rank that is is read from other kernels than what it takes.
    """
    num_steps, *_, num_ranks = folds_ns.shape
    if num_steps < MIN_CHANGING_STEPS:
        return 0.0
    folds = np.where(known[:, :, np.newaxis, np.newaxis], folds_ns, 0.0)
    longest = (folds.sum(axis=2, keepdims=True) - folds).argmax(axis=3)[..., np.newaxis]
    held_out = np.take_along_axis(folds, longest, axis=3)[..., 0] - folds.mean(axis=3)
    by_step = held_out.reshape(num_steps, -1).sum(axis=1)
    excess = float(by_step.mean())
    error = float(by_step.std(ddof=1)) / num_steps**0.5
    is_known = excess > MIN_STANDARD_ERRORS * error
    compute = float(folds.sum()) / (num_steps * num_ranks)
    return excess if is_known and excess >= MIN_CHANGING * compute else 0.0


def _of_kernels(own: _Table) -> Iterator[Excess]:
    worst: dict[int, tuple[float, int]] = {}
    if len(own.steps) < MIN_STEPS:
        return
    for index in range(len(own.names)):
        length = own.names_ns[:, index]
        spread = _spread(length)
        is_far = (spread.usual_ns > NUM_NOISE * spread.noise_ns) & (
            spread.usual_ns > MIN_COST * own.step_ns
        )
        for column in np.flatnonzero(is_far).tolist():
            far = float(spread.usual_ns[column])
            worst[column] = max(worst.get(column, (0.0, 0)), (far, index))
    for column, (_, index) in worst.items():
        yield _of_rank(own, column, own.names_ns[:, index], index)
