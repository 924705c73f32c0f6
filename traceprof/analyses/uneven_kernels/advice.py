"""Advice on uneven kernels, by what makes them uneven."""

from __future__ import annotations

from traceprof.findings import bullets

CLOCK, WORK, HARDWARE, CHANGING, UNKNOWN = (
    "a lower clock", "more work", "the hardware", "changing work", "too few steps",
)  # fmt: skip
"""What makes kernels uneven, as far as the reports show it."""

_LIMITS = (
    "Find what limits its clock: `nvidia-smi -q -d"
    " PERFORMANCE,CLOCK,POWER,TEMPERATURE` lists the reasons (SW Power Cap,"
    " HW Thermal Slowdown, …) while the training runs"
)
_LOCK = (
    "Give all GPUs the same clock and power limits (`nvidia-smi -lgc"
    " MIN,MAX`, `-pl WATTS`) if they were changed"
)
_COOL = "A hot GPU needs its fans or air flow fixed, or another slot; take the node out of service"
_SAMPLE = "Record clocks, too, to see whether it is throttled"
_OTHERS = "Look for another process on that GPU (`nvidia-smi pmon`), and for MIG or MPS shares"
_MOVE = "Run the job on another node, and see whether the slow rank moves with the GPU"
_PARTITION = (
    "Its kernels have more to do: divide layers, heads, embedding tables or the batch so that each"
    " rank gets the same amount"
)
_SEQUENCES = (
    "Sequences: sort or pack batches by length, so that each rank gets as many tokens in each step"
    " (attention grows with the square of the length)"
)
_EXPERTS = (
    "Experts: raise the load-balancing loss, limit tokens per expert (capacity factor), or place"
    " often-used experts on more ranks (redundant experts, EPLB)"
)
_SEE = (
    "Log tokens per rank and step beside the time, and check whether the"
    " slowest rank has most of them"
)
_STEPS = "Record at least 6 steps: they show whether it is always the same rank"

ADVICE: dict[str, tuple[str, ...]] = {
    CLOCK: (_LIMITS, _LOCK, _COOL),
    WORK: (_PARTITION, _SEE),
    HARDWARE: (_LIMITS, _SAMPLE, _OTHERS, _MOVE),
    CHANGING: (_SEQUENCES, _EXPERTS, _SEE),
    UNKNOWN: (_STEPS, _LIMITS, _SEQUENCES, _EXPERTS),
}
"""Advice by what makes kernels uneven."""


def advice(cause: str, how_to_sample: str | None) -> tuple[str, ...]:
    """Return the advice on a cause.

    Args:
        cause: a key of `ADVICE`.
        how_to_sample: how to record clocks; None if they were.
    """
    if how_to_sample is None:
        return tuple(line for line in ADVICE[cause] if line != _SAMPLE)
    sample = f"{_SAMPLE}: {how_to_sample}"
    return tuple(sample if line == _SAMPLE else line for line in ADVICE[cause])


def page_advice() -> str:
    """Return the advice of the page in Markdown, by what makes kernels uneven."""
    return "\n".join(f"\n*{cause}*\n\n{bullets(lines)}" for cause, lines in ADVICE.items())
