"""Write docs/validation.md and docs/h100.md: predicted gains beside measured ones.

TRACEPROF_TRACES=FOLDER python docs/validation.py

FOLDER holds recordings before and after changes that their authors made on purpose and published.
docs/h100.md is about programs of our own, whose recordings are in tests/gpu/recordings. Nothing
here is adjusted to either: misses stand as misses.
"""

from __future__ import annotations

import itertools
import json
import lzma
import math
import os
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

import traceprof
from traceprof.analyses.verdict.yields import UsualYield, UsualYields, cause_of
from traceprof.documents.comparison import Comparison
from traceprof.findings import Finding, Saving
from traceprof.units import duration, percent

Change = tuple[str, str | None, str | None]

PAGE = Path(__file__).parent / "validation.md"
GPU_PAGE = Path(__file__).parent / "h100.md"
YIELDS_PAGE = Path(__file__).parent / "yields.md"
RECORDINGS = Path(__file__).parents[1] / "tests" / "gpu" / "recordings"
FOLDER = "TRACEPROF_TRACES"
_STUDENT = 2.262  # of ten rounds, 95 %
_SAME = 0.001  # of a step: what equal numbers may differ by
_MS = 1_000_000
NO_USE = "limit without use"  # the change gained nothing, or less than a tenth of the limit
_USELESS = 0.1
YIELDS = Path(traceprof.__file__).parent / "analyses" / "verdict" / "usual_yields.json"


@dataclass(frozen=True)
class Outcome:
    """What a change brought of the limit that a finding had given."""

    finding: str
    cause: str | None
    change: str
    limit_ns: int
    came_ns: float

    @property
    def ratio(self) -> float:
        """What came, as a share of the limit; 0 if it became slower."""
        return max(self.came_ns, 0.0) / self.limit_ns


OUTCOMES: list[Outcome] = []  # of all pages, in their order


@dataclass(frozen=True)
class Pair:
    """A change that somebody made, with recordings before and after it.

    Attributes:
        before: the recording, a path in the folder without its suffix.
        after: the recording.
        source: where it was published.
        change: what was changed.
        reasons: ids of findings that name what was changed.
        assumptions: what comes closest to the change.
        gain_ms: what a mean step gained, measured without this program; None where it was not.
        measured: how that was measured.
        note: what else is known.
    """

    before: str
    after: str
    source: str
    change: str
    reasons: tuple[str, ...]
    assumptions: tuple[str, ...]
    gain_ms: float | None
    measured: str
    note: str


_NERSC = "NERSC/sc22-dl-tutorial"
PAIRS = (
    Pair(
        "a100x4_ddp_baseline_rank0",
        "a100x4_ddp_nobroadcast_rank0",
        _NERSC,
        "DDP on 4 A100: `gradient_as_bucket_view=True`, `broadcast_buffers=False`",
        ("exposed-copy",),
        ("copies-hidden",),
        0.59,
        "medians 30.55 and 29.96 ms",
        "24 consecutive copies of gradients are gone (0.853 ms of exposed copies a step). The limit"
        " also counts other copies, which stay.",
    ),
    Pair(
        "pairs/a100_loader_0_baseline",
        "pairs/a100_loader_1_8workers",
        _NERSC,
        "A100: eight processes load data instead of two",
        ("gpu-idle",),
        ("no-data-loading",),
        509.7,
        "means 719.6 and 209.9 ms; medians 728.7 and 176.7",
        "Some steps still wait for the eight: 33 ms of a mean step are idle afterwards.",
    ),
    Pair(
        "pairs/a100_loader_1_8workers",
        "pairs/a100_loader_2_dali",
        _NERSC,
        "A100: DALI loads and decodes on the GPU",
        ("gpu-idle", "exposed-copy"),
        ("no-data-loading",),
        43.1,
        "means 209.9 and 166.8 ms; medians 176.7 and 164.6",
        "Idle time and exposed copies (27.2 to 4.2 ms a step) went together.",
    ),
    Pair(
        "pairs/a100_loader_2_dali",
        "pairs/a100_loader_3_dali_amp",
        _NERSC,
        "A100: mixed precision",
        ("full-precision-matmul",),
        ("half-precision",),
        16.1,
        "means 166.8 and 150.6 ms; medians 164.6 and 137.4",
        "Afterwards steps are of two kinds, since the loader no longer keeps up: the change is"
        " larger in the median, and cannot be distinguished from chance in the mean. The kernels"
        " of a step took 57 ms less, so that the loader sets the pace: of all kernels as much"
        " faster (`kernel:.=0.635x`), `whatif` says at most 56.9 ms, as without the loader.",
    ),
    Pair(
        "pairs/v100_mpas_0_noasync",
        "pairs/v100_mpas_1_async",
        "NCAR/GPU_workshop",
        "V100, OpenACC and MPI: `async` clauses",
        ("host-sync",),
        ("no-kernel-sync", "no-sync"),
        0.279,
        "1.882 and 1.603 ms; with two waits for files before 2.008",
        "A step is the period of 27 kernels, as no range marks steps. The clauses also had one of"
        " them compiled anew (110 in place of 68 µs, six times a step), which nothing recorded"
        " before shows: so the replay is too optimistic, under a condition that it states. With"
        " that kernel's new time (`no-kernel-sync + kernel:semi_discrete=1.619x`) it says 307 µs."
        " No kernel became bound by its launch but for those before which data go over the host.",
    ),
    Pair(
        "pairs/openacc/before",
        "pairs/openacc/after",
        "PolPuigPuy/OpenACC_Project_PolPuig",
        "RTX 3080, OpenACC: not documented by the author",
        ("gpu-idle",),
        ("launch=0",),
        None,
        "by `traceprof compare`",
        "It became slower; kernels took the same time (4.49 ms). A limit is not beaten by that,"
        " and no more is shown.",
    ),
)  # fmt: skip


GPU_CHANGES = {
    "read_loss": ("never reads the loss and the norm of gradients", "host-sync", "no-sync"),
    "synchronize": ("no longer synchronizes after each part of a step", "host-sync", "no-sync"),
    "pinned": ("copies batches from pinned memory", "pageable-copy", "copies-hidden"),
    "prefetch": ("copies the next batch beside the step", "exposed-copy", "copies-hidden"),
    "autocast": ("FP32 to bfloat16, by autocast", "full-precision-matmul", "half-precision"),
    "tf32": ("FP32 to TF32", "full-precision-matmul", "half-precision"),
    "graph": ("a step is one CUDA graph", "gpu-idle", "launch=0"),
    "attention": ("attention is one kernel", "unfused-kernels", None),
    "activation": ("GELU is one kernel, not eight", "unfused-kernels", None),
    "optimizer": ("`fused=True` in place of `foreach=False`", "gpu-idle", "launch=0"),
    "empty_cache": ("no `torch.cuda.empty_cache()`", "gpu-idle", None),
    "host_code": ("4 ms of Python removed", "gpu-idle", None),
    "stall": ("10 ms of sleep in every third step removed", "gpu-idle", "no-host-stall"),
    "scalars": ("20 scalars are made on the GPU", "host-sync", "no-sync"),
    "load": ("four processes load data", "gpu-idle", "no-data-loading"),
}
"""By program: what is changed, the reason, and what comes closest to it."""

MODEL_CHANGES = {
    "gpt2_half": (
        "GPT-2: FP32 to bfloat16, by autocast", "full-precision-matmul", "half-precision",
    ),
    "gpt2_loop": ("GPT-2: `foreach=True` in place of `False`", "gpu-idle", "launch=0"),
    "channels_last": ("ResNet-50: `channels_last`", "unfused-kernels", None),
    "workers": ("ResNet-50: six processes load data, not one", "gpu-idle", "no-data-loading"),
    "clip": ("the norm of all gradients, not of one after the other", "gpu-idle", "no-sync"),
    "masked": ("rows multiplied by a mask, not chosen by it", "gpu-idle", "no-sync"),
    "save": ("no checkpoint in every third step", "gpu-idle", None),
}  # fmt: skip

H200_CHANGES = {
    "gpt2_attention": ("GPT-2: attention is one kernel", "unfused-kernels", None),
    "recompute": ("activations are kept, not computed again", "gpu-idle", "launch=0"),
    "offload": ("activations stay on the GPU", "exposed-copy", "copies-hidden"),
    "collect": ("no `gc.collect()` in every step", "gpu-idle", None),
    "accumulate": ("the loss is read once, not in each of four passes", "gpu-idle", "no-sync"),
    "metrics": ("a metric on the GPU, not of copied outputs", "exposed-copy", "copies-hidden"),
    "many_tensors": ("one copy for 40 small tensors", "gpu-idle", "copies-hidden"),
    "threads": ("three threads load data, not one", "gpu-idle", "no-data-loading"),
    "two_streams": ("the evaluation on a stream of its own", "gpu-idle", None),
}

NSIGHT_CHANGES = {
    "no_reduction": ("no reductions", "exposed-communication", "communication=0"),
    "half_reduction": ("half as many bytes", "exposed-communication", "link=2x"),
    "short_reduction": (
        "no reductions, most of which compute hid", "exposed-communication", "communication=0",
    ),
    "late_reduction": ("reductions in the backward", "late-allreduce", "perfect-overlap"),
    "small_reductions": ("one reduction for 96 small ones", "small-collectives", None),
    "faster_kernel": ("`matmul` takes half the time", None, "kernel:matmul=0.5x"),
    "faster_beside_reduction": (
        "the same, beside reductions", None, "kernel:matmul=0.5x",
    ),
    "graph": ("a step is one CUDA graph", "gpu-idle", "launch=0"),
    "synchronize": ("no wait after each layer", "host-sync", "no-sync"),
    "read_back": ("one number is read, not one of each layer", "host-sync", "no-sync"),
    "pin": ("copies from pinned memory", "pageable-copy", "copies-hidden"),
    "prefetch": ("the next batch is copied beside the step", "exposed-copy", "copies-hidden"),
    "results": ("no copies of results to the host", "exposed-copy", "copies-hidden"),
    "offload": ("nothing is copied to the host and back", "exposed-copy", "copies-hidden"),
    "stall": ("8 ms of sleep in every third step removed", "gpu-idle", None),
    "load": ("four threads load data, not one", "gpu-idle", "no-data-loading"),
}  # fmt: skip
"""By program of CUDA 12 without PyTorch: the same."""


@dataclass(frozen=True)
class Promise:
    """What a step was to gain, in ns; without `low_ns` a limit, without both nothing."""

    low_ns: int | None
    high_ns: int | None
    said_ns: int | None = None

    def __str__(self) -> str:
        """Return it in words."""
        if self.high_ns is None:
            return "none"
        if self.low_ns is None:
            return f"at most {duration(self.high_ns)}"
        said = "" if self.said_ns is None else f"{duration(self.said_ns)} "
        return f"{said}({duration(self.low_ns)} to {duration(self.high_ns)})"

    def kept_within(self, low_ns: float, high_ns: float) -> str:
        """Return whether it holds for a measured gain between two numbers."""
        if self.low_ns is not None and self.low_ns > high_ns:
            return self.kept(high_ns, 0)
        if self.is_limit and high_ns < _USELESS * (self.high_ns or 0):
            return NO_USE
        least_ns = low_ns if self.low_ns is None else max(low_ns, self.low_ns)
        return self.kept(min(least_ns, high_ns), 0)

    @property
    def is_limit(self) -> bool:
        """Whether nothing is promised."""
        return bool(self.high_ns) and self.low_ns is None

    def kept(self, came_ns: float, step_ns: int) -> str:
        """Return whether it holds for a measured gain."""
        if self.high_ns is None:
            return "no prediction"
        if self.is_limit and came_ns < _USELESS * self.high_ns:
            return NO_USE
        if came_ns > self.high_ns + _SAME * step_ns:
            return f"**{'too low' if self.low_ns is not None else 'the limit was beaten'}**"
        if self.low_ns is not None and came_ns < self.low_ns - _SAME * step_ns:
            return f"**too optimistic**: {self.low_ns / max(came_ns, 1):.1f} times"
        return "yes"


def _rows(folder: Path, pair: Pair) -> tuple[str, list[str]]:
    """Return a pair's row of the first table, and its rows of the second."""
    before, after = (folder / f"{one}.sqlite" for one in (pair.before, pair.after))
    comparison = traceprof.compare(before, after)
    step = comparison.step
    came_ns = step.before_ns - step.after_ns if pair.gain_ms is None else round(pair.gain_ms * _MS)
    came = f"{_signed(came_ns)} ({pair.measured})"
    with closing(traceprof.analyze(before)) as analysis:
        found = [
            (place, finding)
            for place, finding in enumerate(analysis.findings, 1)
            if finding.id in pair.reasons
        ]
        total = len(analysis.findings)
    reason, promise = "not named", Promise(None, None)
    if found:
        place, finding = min(found, key=lambda item: pair.reasons.index(item[1].id))
        reason = f"`{finding.id}`, {place} of {total}: {finding.title}"
        saving = finding.saving
        if saving is not None:
            promise = Promise(saving.low_ns, saving.high_ns, saving.step_ns)
        _note_outcome(finding, pair.change, promise, came_ns)
    kept = promise.kept(came_ns, step.before_ns)
    first = (
        f"| {pair.change} ({pair.source}) | {reason} | {promise} | {came} | {kept}"
        f" | {_verdict(comparison)} |"
    )
    return first, list(_predictions(before, pair, came_ns))


def _note_outcome(finding: Finding, change: str, promise: Promise, came_ns: float) -> None:
    if promise.is_limit and promise.high_ns:
        cause = cause_of(finding)
        OUTCOMES.append(Outcome(finding.id, cause, change, promise.high_ns, came_ns))


def learnt(outcomes: Iterable[Outcome]) -> dict[tuple[str, str | None], list[float]]:
    """Return the ratios of each kind of limit, by finding and cause: one for each change."""
    by_change: dict[tuple[str, str | None], dict[str, list[float]]] = {}
    for outcome in outcomes:
        changes = by_change.setdefault((outcome.finding, outcome.cause), {})
        changes.setdefault(outcome.change, []).append(outcome.ratio)
    return {
        kind: sorted(statistics.fmean(ratios) for ratios in changes.values())
        for kind, changes in by_change.items()
    }


@dataclass(frozen=True)
class Expected:
    """The share of a limit to expect, by kind, where kinds are drawn from all kinds there are.

    A mean, since what is expected is what changes bring on average. That of a kind is drawn to the
    mean of all kinds by as much as chance within kinds explains: random effects, by the variances
    of a one-way analysis of variance.
    """

    of_kind: Mapping[tuple[str, str | None], float]
    of_any: float  # of a kind without a change: the mean of all kinds
    within: float  # variance within kinds
    between: float  # variance between kinds

    @classmethod
    def of(cls, kinds: Mapping[tuple[str, str | None], Sequence[float]]) -> Expected:
        """Return what to expect, from the ratios of each kind."""
        means = {kind: statistics.fmean(ratios) for kind, ratios in kinds.items()}
        every = [ratio for ratios in kinds.values() for ratio in ratios]
        num, others, mean = len(every), len(kinds) - 1, statistics.fmean(every)
        sums = {kind: statistics.fsum(ratios) for kind, ratios in kinds.items()}
        squares = sum(sums[kind] * means[kind] for kind in kinds)
        within = (sum(ratio**2 for ratio in every) - squares) / (num - len(kinds))
        usual = (num - sum(len(ratios) ** 2 for ratios in kinds.values()) / num) / others
        between = max(((squares - num * mean**2) / others - within) / usual, 0.0)
        trust = {kind: between / (between + within / len(ratios)) for kind, ratios in kinds.items()}
        of_any = mean
        if between:
            of_any = sum(trust[kind] * means[kind] for kind in kinds) / sum(trust.values())
        drawn = {kind: of_any + trust[kind] * (means[kind] - of_any) for kind in kinds}
        return cls(drawn, of_any, within, between)


def usual_yields(outcomes: Iterable[Outcome]) -> UsualYields:
    """Return what limits usually bring."""
    kinds = learnt(outcomes)
    expected = Expected.of(kinds)
    rows = []
    for (finding, cause), ratios in sorted(
        kinds.items(), key=lambda item: (item[0][0], item[0][1] or "")
    ):
        low, middle, high = (
            statistics.quantiles(ratios, n=4, method="inclusive") if ratios[1:] else ratios * 3
        )
        share = expected.of_kind[finding, cause]
        numbers = (round(value, 3) for value in (low, middle, high, share))
        rows.append(UsualYield(finding, cause, len(ratios), *numbers))
    return UsualYields(round(expected.of_any, 3), rows)


def left_out_one(outcomes: Sequence[Outcome]) -> tuple[int, int, int]:
    """Return how many brought what others let expect, within a factor of two, and of how many.

    The last number is of those that brought at least a tenth of their limit.
    """
    right = 0
    for outcome in outcomes:
        others = Expected.of(learnt(one for one in outcomes if one.change != outcome.change))
        usual = others.of_kind.get((outcome.finding, outcome.cause), others.of_any)
        right += usual / 2 <= outcome.ratio <= usual * 2
    return right, len(outcomes), sum(outcome.ratio >= _USELESS for outcome in outcomes)


def yields_page(outcomes: Sequence[Outcome]) -> str:
    """Return the page about usual yields, from the outcomes of the other pages."""
    usual, variances = usual_yields(outcomes), Expected.of(learnt(outcomes))
    rows = [
        f"| `{row.finding}` | {row.cause or ''} | {row.num_changes}"
        f" | {row.low:.2f} | {row.middle:.2f} | {row.high:.2f}"
        f" | {row.expected:.2f} |"
        for row in usual.kinds
    ]
    single = [
        f"| {one.change} | `{one.finding}` | {one.cause or ''}"
        f" | {duration(one.limit_ns)} | {one.ratio:.3f} |"
        for one in outcomes
    ]
    return "\n".join(
        [
            "# Usual yields",
            "",
            _YIELDS_INTRO.format(
                variances.within, variances.between, variances.of_any, *left_out_one(outcomes)
            ),
            "",
            (
                "| finding | largest part | changes | first quartile | median | third quartile"
                " | expected |"
            ),
            "|" + "---|" * 7,
            *rows,
            "",
            "## Each change",
            "",
            "| change | finding | largest part | limit | came ÷ limit |",
            "|" + "---|" * 5,
            *single,
            "",
        ]
    )


_YIELDS_INTRO = """\
What changes brought of the limits that findings had given before them: what came ÷ the limit, from
[pairs of recordings](validation.md) and from [changes timed on GPUs](h100.md). A change that was
recorded twice counts once. The report multiplies a limit with what is expected: the mean of the
changes of its kind, drawn to the mean of all kinds the more, the fewer its changes are (random
effects: a variance of {:.3f} within kinds, {:.3f} between them). Of a kind without a change {:.2f}
is expected. Learnt without the change itself, that is within a factor of two of what came in {} of
{} recordings; in {} of all at least a tenth of the limit came.

`make validation` writes this page."""


def _predictions(before: Path, pair: Pair, came_ns: int) -> Iterator[str]:
    for assume in pair.assumptions:
        (answer,) = traceprof.whatif(before, assume=[assume]).whatif.answers
        kind = "limit" if answer.is_bound else "estimate"
        start = f"| {pair.change} | `{assume}` | {kind} "
        if answer.change_ns is None or answer.step_ns is None:
            yield f"{start}| none: {answer.refused} | {_signed(came_ns)} | no prediction |"
            continue
        step_ns = answer.step_ns - answer.change_ns
        low, high = step_ns - (answer.high_ns or 0), step_ns - (answer.low_ns or 0)
        promise = Promise(None if answer.is_bound else low, high, -answer.change_ns)
        kept = promise.kept(came_ns, step_ns)
        yield f"{start}| {promise} | {_signed(came_ns)} | {kept} |"


_GPU_INTRO = """\
What traceprof predicts from a recording *before* a change (torch.profiler, unless a section says
otherwise), beside the gain measured **without a recorder**: the mean difference of ten rounds of
each, in turn, with its 95 % interval. *Recorded* is a step under the recorder, before and after.
A row has the finding's place in the report and the assumption of `whatif`, one below the other,
or together where they predict the same. A prediction holds if the two intervals overlap. Nothing
is adjusted to the recordings, which are in [tests/gpu/recordings](../tests/gpu/recordings); `make
validation` writes this page.

Fifteen small trainings (`git log -- tests/gpu/changes.py` has them) on one H100, PyTorch 2.11, CUDA
13.0, 16 cores of a virtual machine, November 2026. Held: {} of {}. The first change also removes
the norm itself, 99 µs of kernels in a step, which `no-sync` does not include."""

_MODELS_INTRO = """\
Seven changes of models of transformers and torchvision (`git log -- tests/gpu/models.py` has them),
which traceprof had never seen, on the same machine. Held: {} of {}. The host sets the pace of most.
Of GPT-2 in FP32, one round took three times as long as the others: its interval is wide."""


_H200_INTRO = """\
Nine more changes, on one H200. Held: {} of {}. With three loading threads the limit does not hold
because none of the recorded steps waited for a batch: the queue had filled while the recorder
started. Two errors that this table showed were mended before it was written."""

_SAME_INTRO = """\
Six of these programs before the change, as Nsight Systems 2025.3 recorded them. Held: {} of {}."""

_NSIGHT_INTRO = """\
Sixteen changes of programs of CUDA 12 without PyTorch (`git log -- tests/gpu/nsight.py` has them),
recorded with Nsight Systems 2023.4 on one H200. Their reductions are kernels with NCCL's names that
move memory on 24 multiprocessors, since there is one GPU. Held: {} of {}.

What does not hold: half the work of `matmul` takes 0.507 of its time; kernels of a kind that also
works on other sizes have no known slowdown, which `communication=0` then leaves out; and Nsight
Systems makes each wait and what follows it longer, so that fewer waits gain less without it."""


@contextmanager
def _unpacked(packed: Path) -> Iterator[Path]:
    """Give a recording as it can be opened."""
    if packed.suffix != ".xz":
        yield packed
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / packed.stem
        path.write_bytes(lzma.decompress(packed.read_bytes()))
        yield path


def _without_recorder(saving: Saving) -> Promise:
    """Return what was promised for a host that no recorder slows down."""
    return Promise(saving.low_ns, saving.faster_host_ns or saving.high_ns, saving.step_ns)


def _of_gpu(report: Path, named: Change, rounds: dict[str, list[float]]) -> str:
    """Return the row of one of our programs: what its finding promised, and what `whatif` did."""
    change, reason, assume = named
    gains = [1e3 * (old - new) for old, new in zip(rounds["before"], rounds["after"], strict=True)]
    came, error = statistics.fmean(gains), statistics.stdev(gains) / math.sqrt(len(gains))
    low, high = came - _STUDENT * error, came + _STUDENT * error
    measured = f"{duration(round(came))} ({duration(round(low))} to {duration(round(high))})"
    with closing(traceprof.analyze(report)) as analysis:
        findings = analysis.findings
    promises = [("not named", Promise(None, None))] if reason is not None else []
    for place, finding in enumerate(findings, 1):
        if finding.id == reason:
            saving = finding.saving
            promise = _without_recorder(saving) if saving else None
            if promise is not None:
                _note_outcome(finding, change, promise, came)
            place_of = f"`{reason}`, {place} of {len(findings)}"
            promises = [(place_of, promise or Promise(None, None))]
    if assume is not None:
        (answer,) = traceprof.whatif(report, assume=[assume]).whatif.answers
        said = Promise(None, None)
        if answer.change_ns is not None and answer.step_ns is not None:
            step = answer.step_ns - answer.change_ns
            least = None if answer.is_bound else step - (answer.high_ns or 0)
            said = Promise(least, step - (answer.low_ns or 0), -answer.change_ns)
        promises.append((f"`{assume}`", said))
    if len(promises) == len({str(promise) for _, promise in promises}) + 1:
        promises = [("; ".join(named for named, _ in promises), promises[0][1])]
    step_us = statistics.fmean(rounds["before"])
    recorded = " to ".join(duration(round(1e3 * us)) for us in rounds["recorded"])
    cells = zip(
        *((named, str(promise), promise.kept_within(low, high)) for named, promise in promises),
        strict=True,
    )
    predictors, predicted, held = ("<br>".join(cell) for cell in cells)
    step = duration(round(1e3 * step_us))
    return f"| {change} | {step} | {recorded} | {predictors} | {predicted} | {measured} | {held} |"


def _gpu_table(intro: str, folder: Path, changes: Mapping[str, Change]) -> list[str]:
    """Return an introduction, which says how many held, and a table of changes."""
    times = json.loads((folder / "times.json").read_text(encoding="utf-8"))
    rows: list[str] = []
    for name, change in changes.items():
        for packed in folder.glob(f"{name}.*"):
            with _unpacked(packed) as report:
                rows.append(_of_gpu(report, change, times[name]))
    cells = (row.split(" | ")[-1].removesuffix(" |").split("<br>") for row in rows)
    kept = [*itertools.chain.from_iterable(cells)]
    return [
        intro.format(
            kept.count("yes"), len(kept) - kept.count("no prediction") - kept.count(NO_USE)
        ),
        *([f"Limits without use: {kept.count(NO_USE)}."] if NO_USE in kept else []),
        "",
        ("| change | a step | recorded | finding, assumption | predicted | measured | held |"),
        "|" + "---|" * 7,
        *rows,
        "",
    ]


def gpu_page() -> str:
    """Return the page of changes to programs of our own on one GPU."""
    return "\n".join(
        [
            "# Changes on one GPU",
            "",
            *_gpu_table(_GPU_INTRO, RECORDINGS, GPU_CHANGES),
            "## Known models",
            "",
            *_gpu_table(_MODELS_INTRO, RECORDINGS / "models", MODEL_CHANGES),
            "## Known models on one H200",
            "",
            *_gpu_table(_H200_INTRO, RECORDINGS / "h200", H200_CHANGES),
            "## The same with Nsight Systems",
            "",
            *_gpu_table(_SAME_INTRO, RECORDINGS / "h200_nsight", H200_CHANGES),
            "## CUDA programs with Nsight Systems",
            "",
            *_gpu_table(_NSIGHT_INTRO, RECORDINGS / "nsight", NSIGHT_CHANGES),
        ]
    )


def _signed(gain_ns: int) -> str:
    return duration(gain_ns) if gain_ns >= 0 else f"{duration(-gain_ns)} more"


def _verdict(comparison: Comparison) -> str:
    step = comparison.step
    change = f"{duration(step.before_ns)} to {duration(step.after_ns)}"
    if step.change is not None:
        change += f", {percent(step.change)}"
    if step.low is not None and step.high is not None:
        change += f" [{percent(step.low)}, {percent(step.high)}]"
    return f"{step.verdict}: {change}"


def page(folder: Path) -> str:
    """Return the page made from the recordings of a folder."""
    rows = [_rows(folder, pair) for pair in PAIRS]
    notes = [
        f"* **{pair.change}**: {pair.note}" for pair in PAIRS
    ]  # fmt: skip
    kept = [row.split(" | ")[4] for row, _ in rows]
    predicted = [row.split(" | ")[-1].removesuffix(" |") for _, of_pair in rows for row in of_pair]
    intro = (
        "Recordings before and after changes that their authors made on purpose. The gain that"
        " traceprof predicts from the recording *before*\nstands beside the measured one. `make"
        " validation` writes this page from a folder of recordings (`TRACEPROF_TRACES`);\nthe table"
        " of pairs, with the gains measured without traceprof, is in"
        " [validation.py](validation.py). Nothing is\nadjusted to them, and misses are shown."
        f" Held: {kept.count('yes')} of {len(kept) - kept.count(NO_USE)} predictions of findings,"
        " and"
        f" {predicted.count('yes')} of {len(predicted) - predicted.count(NO_USE)} predictions of"
        " `whatif`\n"
        f"({predicted.count('no prediction')} refused). Limits that brought less than a tenth"
        f" are without use, and not counted as held: {[*kept, *predicted].count(NO_USE)}."
    )
    limits = (
        "The finding that names the reason, its place in the order of the report, and its saving in"
        " a mean step.\n"
        'A limit ("at most") holds if the change gained no more; a limit does not say how much it'
        " gains."
    )
    first_head = (
        "| change | reason named, and its place | predicted | measured, in a mean step | held"
        " | `traceprof compare` |"
    )
    lines = [
        "# Predictions and outcomes",
        "",
        intro,
        "",
        "## Savings that findings predicted",
        "",
        limits,
        "",
        first_head,
        "|" + "---|" * 6,
        *(first for first, _ in rows),
        "",
        "## Gains that `whatif` predicted",
        "",
        "The assumption closest to each change.",
        "",
        "| change | assumption | kind | predicted gain | measured | held |",
        "|" + "---|" * 6,
        *(row for _, of_pair in rows for row in of_pair),
        "",
        "## Notes on the changes",
        "",
        *notes,
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    GPU_PAGE.write_text(gpu_page(), encoding="utf-8")
    PAGE.write_text(page(Path(os.environ[FOLDER])), encoding="utf-8")
    YIELDS_PAGE.write_text(yields_page(OUTCOMES), encoding="utf-8")
    usual = msgspec.to_builtins(usual_yields(OUTCOMES))
    YIELDS.write_text(json.dumps(usual, indent=1) + "\n", encoding="utf-8")
