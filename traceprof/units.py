"""Durations, shares, sizes and ranks as people read them; times as they write them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from traceprof.errors import UsageError, one_line

# A value that is written as 1000 of a unit is written as 1.00 of the next one.
_ROUNDED_UP = 0.9995
_TIME_UNITS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def duration(nanoseconds: int) -> str:
    """Write a duration with three significant digits and its unit: `17.2 ms`."""
    rounded = abs(nanoseconds) / _ROUNDED_UP
    unit = next((name for name in ("s", "ms", "µs") if rounded >= _TIME_UNITS[name]), "ns")
    return f"{_of_a_duration(nanoseconds / _TIME_UNITS[unit])} {unit}"


def signed_duration(nanoseconds: int) -> str:
    """Write a change or an offset: `+17.2 ms`, `-774 µs`."""
    return f"{'-' if nanoseconds < 0 else '+'}{duration(abs(nanoseconds))}"


def between(low_ns: int, high_ns: int) -> str:
    """Write a range of durations: `17.2 ms to 17.9 ms`."""
    low, high = duration(low_ns), duration(high_ns)
    return low if low == high else f"{low} to {high}"


def percent(fraction: float) -> str:
    """Write a share: `5.7 %`."""
    return f"{100 * fraction:.1f} %"


def size_text(num_bytes: int | None) -> str:
    """Write a size with three significant digits and its unit: `12.3 kB`."""
    size = float(num_bytes or 0)
    for unit in ("B", "kB", "MB"):
        if size < 1000 * _ROUNDED_UP:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{three_digits(size)} GB"


def three_digits(value: float) -> str:
    """Write a number with three significant digits, or all before its point: `0.0123`, `1234`."""
    return f"{value:.0f}" if abs(value) >= 1000 * _ROUNDED_UP else f"{value:.3g}"


def counted(number: float, thing: str) -> str:
    """Write how many there are: `1 memory copy`, `3 memory copies`; the last word has a plural."""
    text = f"{number:.12g} {thing}"
    if number == 1:
        return text
    if re.search("[^aeiou]y$", thing):
        return f"{text[:-1]}ies"
    return f"{text}es" if thing.endswith(("s", "ch")) else f"{text}s"


def times(number: int) -> str:
    """Write how often: `once`, `3 times`."""
    return "once" if number == 1 else f"{number} times"


def ranks_text(ranks: Collection[int]) -> str:
    """Write ranks briefly: `ranks 0-3, 7`."""
    spans: list[list[int]] = []
    distinct = sorted(set(ranks))
    for rank in distinct:
        if spans and spans[-1][-1] == rank - 1:
            spans[-1] = [spans[-1][0], rank]
        else:
            spans.append([rank])
    written = ", ".join("-".join(str(rank) for rank in span) for span in spans)
    return f"rank{'s' if len(distinct) > 1 else ''} {written}"


def reports_text(paths: Sequence[Path]) -> str:
    """Write the names of reports briefly: `ddp.sqlite and 3 more`."""
    others = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return one_line(f"{paths[0].name}{others}") if paths else "no report"


def parse_time(text: str) -> int:
    """Read a time such as `1500000`, `1.5ms` or `2s` as nanoseconds.

    Raises UsageError: not a number with one of these units, or a part of a nanosecond.
    """
    match = re.fullmatch(r"\s*([+-]?\d{1,30})(?:\.(\d{0,30}))?\s*(ns|us|µs|ms|s)?\s*", text)
    if match is None:
        raise UsageError(
            f"cannot read the time {text!r}",
            "it is not a number with a unit",
            "write nanoseconds, or a number with ns, us, ms or s, such as 1.5s",
        )
    if match[2] is not None and match[3] is None:
        number = text.strip()
        raise UsageError(
            f"cannot read the time {text!r}",
            "a number without a unit is a whole number of nanoseconds",
            f"write {number}s for seconds, {number}ms for milliseconds or {number}us for"
            " microseconds",
        )
    # Integer arithmetic: UTC times in nanoseconds have more digits than a float.
    scale = _TIME_UNITS[match[3] or "ns"]
    decimals = match[2] or ""
    fraction: int = int(decimals or 0) * scale // 10 ** len(decimals)
    return int(match[1]) * scale + (-fraction if match[1].startswith("-") else fraction)


def _of_a_duration(value: float) -> str:
    if value == int(value) and abs(value) < 1000:
        return str(int(value))
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f}"
