"""The request to record: a range of steps, and its environment variables."""

from __future__ import annotations

from typing import NamedTuple

TOOL, FOLDER, STEPS = "TRACEPROF_RECORD_WITH", "TRACEPROF_RECORD_TO", "TRACEPROF_RECORD_STEPS"
"""Environment variables: `nsys` or `torch`, the folder of the traces, and `A:B`."""
SHAPES = "TRACEPROF_RECORD_SHAPES"
"""Environment variable: 1 if torch.profiler is to record the shapes of operators' inputs."""


class Steps(NamedTuple):
    """Steps A up to but not including B.

    Attributes:
        first: A, from 0 on.
        stop: B; None to record until the process ends.
    """

    first: int = 0
    stop: int | None = None

    def __str__(self) -> str:
        return f"{self.first}:{'' if self.stop is None else self.stop}"


def parse_steps(text: str) -> Steps:
    """Read `A:B`, `A:` or `:B`.

    Raises:
        ValueError: none of these forms, or an empty range.
    """
    first, colon, stop = text.partition(":")
    numbers = [side.strip() for side in (first, stop)]
    if not colon or not any(numbers) or not all(n.isdecimal() for n in numbers if n):
        raise ValueError(f"{text!r} is no range of steps: write A:B, such as 10:20, A: or :B")
    steps = Steps(int(numbers[0] or 0), int(numbers[1]) if numbers[1] else None)
    if steps.stop is not None and steps.stop <= steps.first:
        raise ValueError(f"there is no step in {text!r}: they go from A up to but not including B")
    return steps
