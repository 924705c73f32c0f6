"""Tensor cores of GPUs by name or compute capability, and their speed-up.

The capability comes from the report, the name of the GPU, or the names of kernels, which show the
lowest one that they run on. A board whose rates are not known has those of the fastest board of its
generation: a number here is a bound for a gain, never a promise.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from traceprof.hardware import board
from traceprof.patterns import lazy
from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Iterable

Capability = tuple[int, int]


class TensorCores(Record, frozen=True):
    """The rates of tensor cores, as multiples of the rate of the same GPU for FP32 without them."""

    tf32: float | None  # for TF32; None if they have no TF32
    half: float  # for FP16, and for BF16 where they have it
    has_bf16: bool  # whether they have it


class Generation(Record, frozen=True):
    """The tensor cores of a generation of GPUs."""

    capability: Capability  # the first compute capability that has them, major and minor
    cores: TensorCores  # of the fastest board
    source: str  # of these rates


def _generation(capability: Capability, tf32: float | None, half: float, source: str) -> Generation:
    return Generation(capability, TensorCores(tf32, half, capability >= _FIRST_BF16), source)


_FIRST_BF16 = (8, 0)
GENERATIONS: tuple[Generation, ...] = (
    _generation((7, 0), None, 8, "V100: 15.7 TFLOPS in FP32, 125 in FP16"),
    _generation((7, 5), None, 8, "T4: 8.1 TFLOPS in FP32, 65 in FP16"),
    _generation((8, 0), 8, 16, "A100: 19.5 TFLOPS in FP32, 156 in TF32, 312 in FP16"),
    _generation((8, 6), 2, 4, "A40: 37.4 TFLOPS in FP32, 74.8 in TF32, 149.7 in FP16"),
    _generation((8, 9), 2, 4, "L40S: 91.6 TFLOPS in FP32, 183 in TF32, 362 in FP16"),
    _generation((9, 0), 7.4, 14.8, "H100 SXM: 67 TFLOPS in FP32, 495 in TF32, 989 in FP16"),
    _generation((10, 0), 15, 30, "B200: 75 TFLOPS in FP32, 1100 in TF32, 2250 in FP16"),
    _generation((12, 0), 2, 4, "RTX PRO 6000: 125 TFLOPS in FP32, 251 in TF32, 503 in FP16"),
)

# NVIDIA, "CUDA GPUs": the first matching pattern counts.
_BOARDS: tuple[tuple[str, Capability], ...] = (
    (r"\bG?B[23]00\b", (10, 0)),
    (r"\b(?:GH200|H[12]00|H800|H20)\b", (9, 0)),
    (r"\bRTX 50[5-9]0|\bRTX PRO [2-6]\d00\b", (12, 0)),
    (r"\bGB10\b", (12, 1)),
    (r"\bL(?:4|20|40S?)\b|\bAda\b|\bRTX 40[5-9]0", (8, 9)),
    (r"\b(?:A100|A800|A30)\b", (8, 0)),
    (r"\b(?:A2|A10G?|A16|A40)\b|\bRTX A[2-6]\d00\b|\bRTX 30[5-9]0", (8, 6)),
    (r"\bT4\b|\bRTX 20[6-8]0|\bTITAN RTX\b|\bQuadro RTX\b", (7, 5)),
    (r"\bV100\b|\bTITAN V\b", (7, 0)),
    (r"\bP(?:4|6|40|100)\b|\bGTX 10\d0|\bTITAN Xp?\b", (6, 0)),
)
# TU116 and TU117, of capability 7.5; and of AMD the capability is no CUDA capability.
_WITHOUT = lazy(r"\bAMD\b|\bGTX 16\d0|\bT(?:400|500|550|600|1000|1200|2000)\b|\bMX4[05]0\b")
# Code for one generation runs on none before it.
_CODE_NAMES: dict[str, Capability] = {
    "volta": (7, 0),
    "turing": (7, 5),
    "ampere": (8, 0),
    "hopper": (9, 0),
    "nvjet": (9, 0),
}
_CODE = lazy(r"(?:\A|[\s<:])(?:(volta|turing|ampere|hopper|nvjet)_|(?:sm|cutlass_)(\d{2,3})_)")


def capability_of_board(gpu: str | None) -> Capability | None:
    """Compute capability of a GPU by its name; None for an unknown one."""
    if gpu is None:
        return None
    return next((capability for board, capability in _BOARDS if re.search(board, gpu)), None)


def capability_of_code(kernel_names: Iterable[str]) -> Capability | None:
    """Lowest compute capability that can run all of these kernels, by their names."""
    needed = [
        _CODE_NAMES[match[1]] if match[1] else divmod(int(match[2]), 10)
        for match in map(_CODE.search, kernel_names)
        if match
    ]
    return max(needed, default=None)


def tensor_cores(capability: Capability | None, gpu: str | None = None) -> TensorCores | None:
    """Tensor cores of a GPU; None if it has none or is unknown.

    An unknown capability counts as the one before. Rates of a board known by the name of the `gpu`
    come before those of its generation.
    """
    known = board(gpu)
    if known is not None and known.rates is not None:
        rates = known.rates
        tf32 = None if rates.tf32 is None else rates.tf32 / rates.fp32
        half = max(rates.fp16, rates.bf16 or 0) / rates.fp32
        return TensorCores(tf32, half, rates.bf16 is not None)
    if capability is None or (gpu is not None and _WITHOUT.search(gpu)):
        return None
    older = [of.cores for of in GENERATIONS if of.capability <= capability]
    return older[-1] if older else None
