"""The table of assumptions: each is declared here, once.

The command line's help and completion, the dashboard's page and the table in docs/whatif.md are
made from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from traceprof.errors import UsageError
from traceprof.execution.open_reports import OpenAnalysis
from traceprof.replay.assumptions import one_process, run_change
from traceprof.replay.assumptions.run_change import RunChange
from traceprof.replay.graph.weights import Durations
from traceprof.replay.pass_model import no_equal_stages
from traceprof.replay.results import Refusal
from traceprof.structs import Record

MIN_CAP_MIB, MAX_CAP_MIB = 1, 100_000


def pattern_and_factor(text: str) -> tuple[re.Pattern[str], float]:
    """Read `kernel:REGEX=0.5x`; a `UsageError` says what is missing or not understood."""
    pattern, has_value, _ = text.partition(":")[2].rpartition("=")
    if not has_value or not pattern:
        raise UsageError(
            f"cannot assume {text!r}",
            "it needs a regular expression and a factor",
            "write it as kernel:gemm=0.5x",
        )
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise UsageError(
            f"cannot assume {text!r}",
            f"{pattern!r} is not a regular expression ({error})",
            "write it in the syntax of Python's re module",
        ) from error
    return expression, _factor(text, "kernel:gemm=0.5x", is_zero_allowed=True)


def bucket_size(text: str) -> tuple[float]:
    """Read the size of gradient buckets in MiB; a `UsageError` says which sizes are possible."""
    size = text.partition("=")[2]
    if (
        re.fullmatch(r"\d+(?:\.\d+)?", size) is None
        or not MIN_CAP_MIB <= float(size) <= MAX_CAP_MIB
    ):
        raise UsageError(
            f"cannot assume {text}",
            f"the size is not a number from {MIN_CAP_MIB} to {MAX_CAP_MIB}",
            "write it in MiB, as DistributedDataParallel takes it: bucket-cap-mb=100",
        )
    return (float(size),)


def _factor(text: str, example: str, *, is_zero_allowed: bool) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)x", text.rpartition("=")[2])
    if match is None or (not is_zero_allowed and float(match[1]) == 0):
        raise UsageError(
            f"cannot assume {text}",
            "the value is no factor",
            f"write it as a number and x, such as {example}",
        )
    return float(match[1])


_HOST, _GPU, _STREAMS, _RANKS = (frozenset([kind]) for kind in ("host", "gpu", "streams", "ranks"))
_ORDER, _WAITS = frozenset(("streams", "order")), frozenset(("host", "waits"))


class Entry(Record, frozen=True, kw_only=True):
    """An assumption of the table."""

    form: str  # how it is written, with an example of the value: `no-sync`, `launch=0`, `link=2x`
    meaning: str  # what is assumed, in a few words
    details: str = ""  # what the documentation adds, in sentences of Markdown
    # (process, durations, *value, *of_run) → durations under it; None if they stay
    change: Callable[..., Durations] | None = None
    # more arguments of `change`, about all ranks
    of_run: Callable[[OpenAnalysis], tuple[Any, ...]] | None = None
    # (analysis, graph, *value) → what changes between ranks; None if nothing does
    run_change: Callable[..., RunChange | Refusal] | None = None
    # reads the value of a text; None if only `form` can be written
    value: Callable[[str], tuple[Any, ...]] | None = None
    is_bound: bool = False  # whether nobody can make the change in full: "at most"
    has_spread: bool = False  # whether the bound is the better end of an estimate's interval
    # under which condition the answer holds
    condition: str | Callable[[OpenAnalysis], str] = ""
    is_default: bool = True  # whether it is answered when no assumption is chosen
    is_at_least_communication: bool = False  # whether that is a step's least time
    of_communication: bool = False  # whether it changes nothing where nothing communicates
    needs_waits: bool = True  # whether waits of sends and receives must be known
    # whether other work of the host may gain as much again: it competed for cores and caches
    frees_host: bool = False
    comes_last: bool = False  # whether its `change` depends on what others leave of a slowdown
    # `change` by other readings, which the interval spans; as many in all entries that have any
    others: tuple[Callable[..., Durations], ...] = ()
    # (analysis, *value) → why it cannot be assumed
    refusal: Callable[..., Refusal | None] | None = None
    # kinds of what changes: `host` and `gpu` for what these take, `waits` for what the host waits
    # for, `streams` for what they do, `order` for what runs in another order, `ranks` for what
    # these wait for
    changed: frozenset[str] = _GPU
    # why it may gain nothing if assumed alone
    doubt: Callable[[OpenAnalysis], str | None] | None = None

    @property
    def name(self) -> str:
        """The form without its value: `link` of `link=2x`."""
        return name_of(self.form)


def name_of(text: str) -> str:
    """Return the name of an assumption without its value."""
    return re.split("[:=]", text, maxsplit=1)[0]


ASSUMPTIONS = (
    Entry(
        form="no-serialization",
        meaning="no communication queues behind that of other communicators or peers",
        changed=_STREAMS,
        details="An operation still waits for what the one before it waited for, and for earlier"
        " communication of its communicator, which NCCL keeps in order: more communicators on the"
        " same link do not make it faster. The interval extends to a wait of what follows for"
        " everything that was on the stream. If neither communicators nor peers are known, it"
        " extends from no gain, because each operation may need the one before it, to what there"
        " is if none does.",
        change=one_process.without_serialization,
        of_communication=True,
        others=(
            one_process.without_serialization,
            partial(one_process.without_serialization, is_apart=True),
        ),
        condition="two transfers at a time are assumed to be as fast as one",
        doubt=one_process.may_be_in_line,
    ),
    Entry(
        form="no-overlap-slowdown",
        meaning="kernels beside communication are as fast as alone",
        details="Compared with kernels alone at the same place of a step where there are any, else"
        " with all alone of the same name and size. Where there are none either, a kernel loses at"
        " most all of its time beside communication.",
        change=one_process.without_slowdown,
        is_bound=True,
        of_communication=True,
        condition=one_process.unlike_kernels,
    ),
    Entry(
        form="no-launch-stall",
        meaning="the launch queue is never full",
        changed=_HOST,
        change=one_process.switched_off("stalls"),
        is_bound=True,
    ),
    Entry(
        form="no-sync",
        meaning="the host never waits for the GPU",
        changed=_WAITS,
        details="Synchronizing calls and blocking copies return at once, except for [waits that"
        " a program needs](#waits-that-stay). Where a program waits no more, what it waited for"
        " may come to wait elsewhere: of two such changes timed on a GPU, one brought less than"
        " half of what the replay had said.",
        change=one_process.switched_off("waits_for_gpu"),
        is_bound=True,
        has_spread=True,
        condition="results are assumed to be read later, except those that the recording shows"
        " the host to send, write, process or copy back at once",
    ),
    Entry(
        form="no-kernel-sync",
        meaning="the host waits for copies, whose data it may need, and not for kernels",
        changed=_WAITS,
        details="[Waits that a program needs](#waits-that-stay) stay.",
        change=one_process.switched_off("waits_for_kernels"),
        condition="kernels are assumed to be as fast as before, even where the change recompiles"
        " them",
        is_default=False,
    ),
    Entry(
        form="no-data-loading",
        meaning="the next batch is always there, on the GPU",
        changed=_HOST | _GPU,
        details="Ranges of data loading, and time in which the GPU idled for it, are removed"
        " from the host's time. Copies to the GPU take no time, nor does work launched"
        " by threads that bring batches; nothing waits for these threads, and kernels"
        " that ran beside their work become shorter by the time that both ran. What else"
        " the host launches may take less, too, since it competed with loading for cores and"
        " caches; this adds at most as much again. There is no answer if most of the idle time"
        " that may be data loading has no known cause, as in recordings without thread switches.",
        change=one_process.without_data_loading,
        is_bound=True,
        frees_host=True,
        refusal=one_process.unknown_data_loading,
    ),
    Entry(
        form="no-straggler",
        meaning="no rank is late again and again",
        changed=_RANKS,
        details="Ranks that make others wait no longer hold them up: the others go on at their"
        " own pace, and only they are counted.",
        run_change=run_change.without_stragglers,
        is_bound=True,
        condition="the late rank is assumed to be as fast as the others",
    ),
    Entry(
        form="equal-kernels",
        meaning="ranks compute as long as their peers",
        details="A rank that is always the longest takes the mean of the others; where the longest"
        " rank changes, all take the mean of all, by a model of passes (`traceprof explain"
        " uneven-kernels`).",
        change=one_process.with_equal_kernels,
        of_run=one_process.slower_ranks,
        is_bound=True,
        refusal=one_process.not_uneven,
        condition="work or clocks are assumed to become perfectly even",
    ),
    Entry(
        form="equal-stages",
        meaning="all stages of a pipeline compute equally long",
        details="The forward of each micro-batch takes its mean over the stages, and so does its"
        " backward, and what is outside of both. A [model of passes](#pipelines) answers it, by"
        " itself only. Needs the ranges of forwards and backwards (`traceprof explain"
        " pipeline-bubble`).",
        is_bound=True,
        refusal=no_equal_stages,
        condition="layers are assumed to divide evenly, and passes keep their order",
    ),
    Entry(
        form="no-host-stall",
        changed=_HOST,
        meaning="no call of the host takes far longer than usual, on any rank",
        details="Calls, operators and silences between operators that stalled (`traceprof explain"
        " host-stall`) take their usual time.",
        change=one_process.without_stalls,
        condition="nothing else is assumed to hold the threads up in their place",
    ),
    Entry(
        form="send-order=ready-first",
        meaning="each stream runs the sends first that are ready first",
        changed=_ORDER,
        details="A send or receive is ready when both sides are.",
        run_change=run_change.order_of_readiness,
        condition="sends are launched at the same times as before",
    ),
    Entry(
        form="bucket-cap-mb=100",
        meaning="gradients are reduced in buckets of this many MiB",
        changed=_ORDER,
        details="The value is `bucket_cap_mb` of DistributedDataParallel.",
        run_change=run_change.with_bucket_cap,
        value=bucket_size,
        condition="gradients are assumed to become ready at an even rate between two buckets",
        is_default=False,
    ),
    Entry(
        form="launch=0",
        meaning="launching takes no time, as in a CUDA graph",
        changed=_HOST,
        details="What the thread runs between launches takes no time either. Data loading, MPI,"
        " sleep and one-time work, such as the first launch that loads a kernel, stay.",
        change=one_process.without_launch_time,
        is_bound=True,
        condition="what a graph costs is left out",
    ),
    Entry(
        form="link=2x",
        meaning="communication is faster by this factor",
        details="With 2x it takes half the time once all ranks are there, and slows kernels down"
        " for half as long. Where no kernel of a kind ran alone at the same place of a"
        " step, the interval extends to no slowdown, and where none ran alone at all, to all of"
        " its time beside communication.",
        change=one_process.with_faster_links,
        others=(
            partial(one_process.with_faster_links, reading="least"),
            partial(one_process.with_faster_links, reading="most"),
        ),
        of_communication=True,
        value=lambda text: (_factor(text, "link=2x", is_zero_allowed=False),),
        condition="latency is assumed to shrink as well",
    ),
    Entry(
        form="kernel:REGEX=0.5x",
        meaning="kernels whose names match take this multiple of their time",
        details="Kernels that communication slows down lose as much time to it as before, since"
        " communication takes as long; the interval extends to a slowdown that changes with them,"
        " and to communication that they slow down for less time.",
        change=one_process.with_faster_kernels,
        comes_last=True,
        others=(
            partial(one_process.with_faster_kernels, is_slowed_less=True),
            one_process.with_faster_kernels,
        ),
        value=pattern_and_factor,
        refusal=one_process.no_such_kernel,
        is_default=False,
    ),
    Entry(
        form="half-precision",
        meaning="under autocast, matrices are multiplied at the peak rate of half precision",
        details="Multiplications of FP32 numbers become shorter by the ratio of the GPU's peak"
        " rates; kernels that only move 32-bit numbers take half their time. Optimizers"
        " and communication stay as they are.",
        change=one_process.with_half_precision,
        is_bound=True,
        refusal=one_process.not_in_full_precision,
    ),
    Entry(
        form="communication=0",
        meaning="communication takes no time",
        change=one_process.without_communication,
        is_bound=True,
        of_communication=True,
        needs_waits=False,
        condition=one_process.unlike_kernels,
    ),
    Entry(
        form="perfect-overlap",
        meaning="all communication hides behind compute",
        details="A step takes at least as long as its communication.",
        change=one_process.with_hidden_communication,
        is_bound=True,
        of_communication=True,
        is_at_least_communication=True,
    ),
    Entry(
        form="copies-hidden",
        meaning="copies take no time on their stream",
        details="Neither do the calls that launch them, the host's code between these calls, its"
        " code before and after its waits, and the GPU's turn-around. Nothing waits for copies,"
        " except where the host reads numbers, which `no-sync` removes, and except for [what a"
        " program needs](#waits-that-stay)."
        " Data that is copied to the host and straight back goes directly: both copies, and what"
        " the host does between them for less than 10 ms, take no time.",
        change=one_process.with_hidden_copies,
        is_bound=True,
    ),
)
"""All assumptions, in the order in which they are answered and shown."""


def markdown() -> str:
    """Return the table of the documentation, in Markdown."""
    rows = [
        f"| `{entry.form}` | {'at most: ' if entry.is_bound else ''}{entry.meaning}"
        f"{'. ' + entry.details.removesuffix('.') if entry.details else ''} |"
        for entry in ASSUMPTIONS
    ]
    return "\n".join(["| assumption | meaning |", "|---|---|", *rows])
