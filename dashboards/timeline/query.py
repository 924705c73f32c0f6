"""What is searched for: a text in names and labels, and conditions: `AllReduce rank:3 > 1 ms`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dashboards.timeline.kinds import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    HOST,
    MARKS,
    NVTX,
    OPERATORS,
    STALLS,
    STEPS,
)

KINDS = {
    "compute": COMPUTE, "communication": COMMUNICATION, "copy": COPY, "copies": COPY,
    "api": HOST, "call": HOST, "range": NVTX, "nvtx": NVTX, "mark": MARKS, "step": STEPS,
    "operator": OPERATORS, "stall": STALLS,
}  # fmt: skip
"""Kinds of rows, by the words that choose them."""

_UNITS_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_LENGTH = re.compile(r"(?:^|(?<=\s))([<>])=?\s*(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s)(?=\s|$)")
_NUMBERS = re.compile(r"(?:^|(?<=\s))(rank|stream):(\d{1,9}(?:,\d{1,9})*)(?=\s|$)")
_KIND = re.compile(rf"(?:^|(?<=\s))kind:({'|'.join(KINDS)})(?=\s|$)")


@dataclass(frozen=True, slots=True)
class Query:
    """What is searched for; conditions that are empty hold always.

    Attributes:
        text: in names, in full or in short, or in labels; in any case.
        ranks: of which the event has to be.
        streams: on which it has to run; only operations of the GPU do.
        kinds: of the row in which it has to stand.
        longer_ns: it has to take longer.
        shorter_ns: it has to take less time.
    """

    text: str
    ranks: frozenset[int] = frozenset()
    streams: frozenset[int] = frozenset()
    kinds: frozenset[str] = frozenset()
    longer_ns: float | None = None
    shorter_ns: float | None = None

    @property
    def has_conditions(self) -> bool:
        """True if names alone do not decide."""
        has_length = self.longer_ns is not None or self.shorter_ns is not None
        return bool(self.streams or self.kinds) or has_length or not self.text


def parsed(written: str) -> Query:
    """Read what somebody writes into the field of the search.

    Args:
        written: words that names hold, with `rank:0,3`, `stream:7`, `kind:copy`, `> 1 ms` and
            `< 20 us` anywhere between them. What is no condition is text.
    """
    numbers: dict[str, set[int]] = {"rank": set(), "stream": set()}
    lengths: dict[str, float | None] = {"<": None, ">": None}
    for what, listed in _NUMBERS.findall(written):
        numbers[what] |= set(map(int, listed.split(",")))
    for sign, number, unit in _LENGTH.findall(written):
        lengths[sign] = float(number) * _UNITS_NS[unit]
    kinds = frozenset(KINDS[word] for word in _KIND.findall(written))
    text = written
    for pattern in (_LENGTH, _NUMBERS, _KIND):
        text = pattern.sub(" ", text)
    # Spaces within names stay as they are.
    text = text if text == written else " ".join(text.split())
    return Query(
        text,
        frozenset(numbers["rank"]),
        frozenset(numbers["stream"]),
        kinds,
        lengths[">"],
        lengths["<"],
    )
