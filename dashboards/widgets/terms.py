"""The meaning of terms, shown beside them."""

from __future__ import annotations

from functools import cache

from traceprof.analyses.explanations.page import explanation

PART_MEANINGS = {
    "compute_ns": "a kernel ran that does not communicate",
    "exposed_communication_ns": "communication ran, and no compute beside it",
    "exposed_copy_ns": "a copy ran, and neither compute nor communication beside it",
    "idle_ns": "nothing ran",
}
"""By the field of `Measures`: what the GPU did in that part of the time."""


@cache
def meaning(finding: str) -> str:
    """Return the claim of a finding: the first paragraph of its page, as plain text."""
    paragraph = explanation(finding).split("\n\n")[1]
    return " ".join(paragraph.split()).replace("`", "").replace("**", "")
