"""Kernels as the evidence of a finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.findings import Evidence
from traceprof.kernel_names.titles import short_title

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.run.rank import Rank, Window


def kernel_evidence(rank: Rank, window: Window, texts: Mapping[int, str]) -> tuple[Evidence, ...]:
    """Show kernels of a rank within a window, each with its name.

    Args:
        rank: the rank.
        window: the time that is judged.
        texts: what is shown after the name, by the kernel's index.
    """
    kernels, chosen = rank.operations.kernels, np.array([*texts], np.int64)
    start = np.maximum(kernels.start_ns[chosen], window.start_ns).tolist()
    end = np.minimum(kernels.ends(chosen), window.end_ns).tolist()
    names = [short_title(rank.kernel_names[kernels.name_id(kernel)]) for kernel in texts]
    labels = [f"{name}{text}" for name, text in zip(names, texts.values(), strict=True)]
    return tuple(map(Evidence, start, end, labels))
