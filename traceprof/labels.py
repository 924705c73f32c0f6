"""The grammar of the ranges that `instrument` writes and the analyzer reads.

A label is an operation and its facts, readable in the Nsight GUI: `all_reduce bytes=26214400
dtype=float32 group=0 size=8 seq=17`, `step 12`, `forward`. Standard library only.

What recorders of steps agree on stands here, too: `instrument` imports nothing else of traceprof.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

DOMAIN = "traceprof"
STEP = "step"
CUT = "cut"
FORWARD = "forward"
BACKWARD = "backward"
OPTIMIZER_STEP = "optimizer step"
DATA_LOADING = "data loading"
GARBAGE_COLLECTION = "garbage collection"
SAVE_CHECKPOINT = "save checkpoint"
BUCKET = "bucket"
MODULE = "module"
"""The forward pass of a module: `module PATH`."""
WAIT = "wait"
"""A wait for an asynchronous operation; the function of the operation is the fact `op`."""
UNNAMED = "(over 11000 texts)"
"""A range whose text was one too many for its process."""
NO_SIZE = "?"
"""The fact `bytes` of a label that goes without its size, since its process had too many texts."""
NUMBERED = " seq="
"""The end of the text of a label whose running number is its range's payload."""
CAPTURE_DOMAIN, CAPTURE = "traceprof-capture", "steps"
"""The range that `instrument` opens around the steps to record, for which `nsys profile` waits."""
NOT_WRITTEN = ".not-written-"
"""What a rank appends, with the reason, to the hidden name of a trace that it could not write."""
_BYTES = " bytes="
OWN_DESCRIPTIONS = frozenset({"", "undefined", "default_pg"})
"""Descriptions that PyTorch itself gives process groups."""


class Label(NamedTuple):
    """A range's operation and its facts."""

    operation: str  # one or more words, such as `all_reduce`, `to h2d` or `step 12`
    # such as sizes and groups, by name; values without spaces
    facts: Mapping[str, str] = MappingProxyType({})

    def __str__(self) -> str:
        """Return the label as it is written into a range."""
        return " ".join([self.operation, *(f"{key}={value}" for key, value in self.facts.items())])


def parse(text: str) -> Label:
    """Read a label; a text without facts is an operation."""
    words = text.split(" ")
    is_fact = ["=" in word and not word.startswith("=") for word in words]
    first = is_fact.index(True) if True in is_fact else len(words)
    facts = dict(word.split("=", 1) for word, fact in zip(words, is_fact, strict=True) if fact)
    return Label(" ".join(words[:first]), facts)


def split_number(label: str) -> tuple[str, int | None]:
    """Return a label without its running number, which is written as payload, and the number."""
    text, separator, number = label.rpartition(NUMBERED)
    if not separator:
        text, separator, number = label.partition(f"{STEP} ")
        if text not in {"", f"{CUT} "} or not separator:
            return label, None
    if not number.isdecimal():
        return label, None
    return text + separator, int(number)


def takes_number(text: str) -> bool:
    """Return whether a registered text is completed by the number in its range's payload."""
    return text.endswith(NUMBERED) or text in {f"{STEP} ", f"{CUT} {STEP} "}


def without_size(label: str) -> str:
    """Return a label with an unknown size."""
    text, separator, rest = label.partition(_BYTES)
    if not separator:
        return label
    _, space, others = rest.partition(" ")
    return f"{text}{_BYTES}{NO_SIZE}{space}{others}"


def cut(label: str) -> str:
    """Return the label of an empty range which says that a step was left by an exception."""
    return f"{CUT} {label}"


def step(number: int) -> str:
    """Return the label of a training step."""
    return f"{STEP} {number}"


class Steps(NamedTuple):
    """Steps A up to but not including B, to be recorded."""

    first: int = 0  # A, from 0 on
    stop: int | None = None  # B; None to record until the process ends

    def __str__(self) -> str:
        return f"{self.first}:{'' if self.stop is None else self.stop}"


def parse_steps(text: str) -> Steps:
    """Read `A:B`, `A:` or `:B`; ValueError for other forms and empty ranges."""
    first, colon, stop = text.partition(":")
    numbers = [side.strip() for side in (first, stop)]
    if not colon or not any(numbers) or not all(n.isdecimal() for n in numbers if n):
        raise ValueError(f"{text!r} is no range of steps: write A:B, such as 10:20, A: or :B")
    steps = Steps(int(numbers[0] or 0), int(numbers[1]) if numbers[1] else None)
    if steps.stop is not None and steps.stop <= steps.first:
        raise ValueError(f"there is no step in {text!r}: they go from A up to but not including B")
    return steps
