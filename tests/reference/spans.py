"""Half-open spans [start, end) in plain lists, for the references; disjoint and sorted ones out."""

from bisect import bisect_right
from collections.abc import Iterable

Span = tuple[int, int]
NEVER = 1 << 80  # later than every time of a file


def union(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def clipped(spans: list[Span], low: int, high: int) -> list[Span]:
    """What disjoint, sorted spans have of [low, high)."""
    parts = []
    index = max(bisect_right(spans, (low, NEVER)) - 1, 0)
    while index < len(spans) and spans[index][0] < high:
        start, end = max(spans[index][0], low), min(spans[index][1], high)
        if start < end:
            parts.append((start, end))
        index += 1
    return parts


def both(first: list[Span], second: list[Span]) -> list[Span]:
    return [part for low, high in first for part in clipped(second, low, high)]


def without(spans: list[Span], holes: list[Span]) -> list[Span]:
    left = []
    for start, end in spans:
        at = start
        for low, high in clipped(holes, start, end):
            if low > at:
                left.append((at, low))
            at = high
        if at < end:
            left.append((at, end))
    return left


def length(spans: Iterable[Span]) -> int:
    return sum(end - start for start, end in spans)


def covered(spans: list[Span], low: int, high: int) -> int:
    """How much of [low, high) disjoint, sorted spans cover."""
    return length(clipped(spans, low, high))
