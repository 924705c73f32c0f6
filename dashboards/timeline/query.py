"""A search: a text in names and labels, and conditions: `AllReduce rank:3 > 1 ms`."""

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
    """A search; empty conditions always hold.

    Attributes:
        text: in full or short names, or in labels; upper and lower case are equal.
        ranks: the event must belong to one of them.
        streams: the event must run on one of them; only GPU operations do.
        kinds: the event's row must be of one of them.
        longer_ns: the event must take longer.
        shorter_ns: the event must take less time.
    """

    text: str
    ranks: frozenset[int] = frozenset()
    streams: frozenset[int] = frozenset()
    kinds: frozenset[str] = frozenset()
    longer_ns: float | None = None
    shorter_ns: float | None = None

    @property
    def has_conditions(self) -> bool:
        """True if the text alone does not decide, or is empty."""
        has_length = self.longer_ns is not None or self.shorter_ns is not None
        return bool(self.streams or self.kinds) or has_length or not self.text


def parsed(written: str) -> Query:
    """Parse the text of the search field.

    Args:
        written: words of names, with `rank:0,3`, `stream:7`, `kind:copy`, `> 1 ms` and `< 20 us`
            anywhere between them; everything else is text.
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
