"""What a step of a rank is: a training step, a layer, an iteration, or a pass of a server.

vLLM and SGLang mark each pass of the model with what it held:
`execute_CONTEXTTOKENS_context_N(sq15360…)_generation_M(sq32…)`, `execute_context_N(TOKENS)_…`,
`step[DECODE bs=32 toks=32]`. A pass that holds prompts is a prefill, also if it generates, too.
"""

from __future__ import annotations

import re
from enum import Enum

import numpy as np

from traceprof.host.places import layers_of
from traceprof.run.guard import optional
from traceprof.run.rank import Rank, Window
from traceprof.run.steady_steps import steady_steps
from traceprof.structs import Record


class StepUnit(str, Enum):
    """What a step is."""

    STEP = "step"
    LAYER = "layer"
    ITERATION = "iteration"
    DECODE = "decode"
    PREFILL = "prefill"

    @property
    def word(self) -> str:
        """Its name in prose, as in `a decode pass takes 3 ms`."""
        return f"{self.value} pass" if self in {StepUnit.DECODE, StepUnit.PREFILL} else self.value

    @property
    def several(self) -> str:
        """Its plural."""
        return f"{self.word}es" if self.word.endswith("s") else f"{self.word}s"

    @property
    def one(self) -> str:
        """Its name with the article."""
        return f"an {self.word}" if self is StepUnit.ITERATION else f"a {self.word}"


class Served(Record, frozen=True):
    """What a server's passes held that are counted as steps."""

    num_decode: int
    num_prefill: int
    sequences: int | None  # in a pass, the mean
    tokens_per_s: float | None  # that went through the model; None where the marks do not say


class Unit(Record, frozen=True):
    """What the steps of a rank are."""

    unit: StepUnit = StepUnit.STEP
    layers: tuple[int, int] | None = None  # the numbers of the first and last layer
    served: Served | None = None


_SERVING = re.compile(r"\A(?:execute_|step\[)")
_VLLM = re.compile(
    r"\Aexecute_(?:\d+_)?context_(?P<contexts>\d+)\((?:sq)?(?P<prompt>\d+)?.*\)"
    r"_generation_(?P<generations>\d+)\((?:sq)?(?P<generated>\d+)?.*\)\Z"
)
_SGLANG = re.compile(r"\Astep\[(?P<mode>[A-Z_]+) bs=(?P<batch>\d+)(?: toks=(?P<tokens>\d+))?")
_MOST = 0.8  # of the passes, of one kind
NO_UNIT = Unit()


@optional("unit", otherwise=lambda *_: NO_UNIT)
def unit_of(rank: Rank, window: Window) -> Unit:
    """Return what the steps of a rank in a window are."""
    if rank.steps is None or not len(rank.steps):
        return NO_UNIT
    if rank.step_ranges is None:
        layers = layers_of(rank)
        if layers is None:
            return Unit(StepUnit.ITERATION)
        return Unit(StepUnit.LAYER, (layers.first, layers.last))
    served = _served(rank, window)
    if served is None:
        return NO_UNIT
    num = served.num_decode + served.num_prefill
    if served.num_decode >= _MOST * num:
        return Unit(StepUnit.DECODE, served=served)
    return Unit(
        StepUnit.PREFILL if served.num_prefill >= _MOST * num else StepUnit.ITERATION, served=served
    )


def _served(rank: Rank, window: Window) -> Served | None:
    marked, steps = rank.training_ranges.steps, rank.steps
    ranges = rank.trace.ranges(_SERVING, rank.process).get(rank.process)
    if marked is None or steps is None or ranges is None:
        return None
    by_start = dict(zip(ranges.start_ns.tolist(), ranges.texts, strict=True))
    steady = steady_steps(rank, window)
    chosen = steady.step if len(steady.step) else steady.judged
    names = [by_start.get(start) for start in marked.start_ns[steps.source[chosen]].tolist()]
    passes = [found for name in names if name and (found := _pass(name)) is not None]
    if not passes:
        return None
    length_ns = int((steps.end_ns[chosen] - steps.start_ns[chosen]).sum())
    tokens = [number for _, _, number in passes]
    total = sum(number or 0 for number in tokens)
    is_known = None not in tokens and len(passes) == len(chosen)
    return Served(
        num_decode=sum(not is_prefill for is_prefill, *_ in passes),
        num_prefill=sum(is_prefill for is_prefill, *_ in passes),
        sequences=round(float(np.mean([batch for _, batch, _ in passes]))),
        tokens_per_s=total / length_ns * 1e9 if is_known and length_ns else None,
    )


def _pass(name: str) -> tuple[bool, int, int | None] | None:
    match: re.Match[str] | None = _VLLM.match(name)
    if match is not None:
        contexts, generations = int(match["contexts"]), int(match["generations"])
        known = [match["prompt"], match["generated"]]
        tokens = None if None in known else sum(map(int, known))
        return contexts > 0, contexts + generations, tokens
    match = _SGLANG.match(name)
    if match is None:
        return None
    is_decode = match["mode"] in {"DECODE", "TARGET_VERIFY", "IDLE"}
    return not is_decode, int(match["batch"]), int(match["tokens"]) if match["tokens"] else None
