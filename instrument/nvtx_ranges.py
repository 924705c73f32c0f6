"""Push/pop ranges in the domain `traceprof`, and their twins that do nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof import labels

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    import nvtx
except ImportError:  # nobody can record ranges: the program runs as it would without us
    nvtx = None


def _push(text: str) -> None:
    nvtx.push_range(text, domain=labels.DOMAIN)


def _pop() -> None:
    nvtx.pop_range(domain=labels.DOMAIN)


def _push_nothing(text: str) -> None:
    pass


def _pop_nothing() -> None:
    pass


push: Callable[[str], None] = _push if nvtx is not None else _push_nothing
"""Open a range with this label on the calling thread; close it with `pop`."""

pop: Callable[[], None] = _pop if nvtx is not None else _pop_nothing
"""Close the range that the calling thread opened last."""
