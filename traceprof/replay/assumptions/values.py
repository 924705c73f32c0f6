"""Values of assumptions: each function reads the value of an assumption as it was written."""

from __future__ import annotations

import re

from traceprof.errors import UsageError

MIN_CAP_MIB, MAX_CAP_MIB = 1, 100_000


def speed_up(text: str) -> tuple[float]:
    """Read the factor of `link=2x`, which is above 0.

    Raises:
        UsageError: it is not a factor, or 0.
    """
    return (_factor(text, "link=2x", is_zero_allowed=False),)


def multiple(text: str) -> tuple[float]:
    """Read the factor of `micro-batches=2x`, which is above 1.

    Raises:
        UsageError: it is not a factor, or 1 or less.
    """
    factor = _factor(text, "micro-batches=2x", is_zero_allowed=False)
    if factor <= 1:
        raise UsageError(f"cannot assume {text}", "there would be no more", "give a factor above 1")
    return (factor,)


def pattern_and_factor(text: str) -> tuple[re.Pattern[str], float]:
    """Read the regular expression and the factor of `kernel:REGEX=0.5x`.

    Raises:
        UsageError: one of both is missing, or is not written as it should be.
    """
    pattern, has_value, _ = text.partition(":")[2].rpartition("=")
    if not has_value or not pattern:
        raise UsageError(
            f"cannot assume {text!r}", "it needs a regular expression and a factor",
            "write it as kernel:gemm=0.5x",
        )  # fmt: skip
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
    """Read the size of gradient buckets in MiB.

    Raises:
        UsageError: it is not a number, too small or too large.
    """
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
