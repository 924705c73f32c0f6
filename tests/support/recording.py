"""A record of the ranges that `instrument` writes, in the order in which it writes them."""

from collections.abc import Callable
from typing import Any

from instrument.core import nvtx_ranges


def record(replace: Callable[[Any, str, Any], None]) -> list[str]:
    """Record `push …`, `pop`, `start …` and `end …`, as under a tool, from `enable` on.

    `replace` sets an attribute: `setattr`, or one that takes it back.
    """
    events: list[str] = []

    def start(text: str) -> str:
        events.append(f"start {text}")
        return text

    replace(nvtx_ranges, "is_recording", lambda: True)
    replace(nvtx_ranges, "prepare", lambda text: text)
    replace(nvtx_ranges, "message", lambda text: text)
    replace(nvtx_ranges, "push", lambda text: events.append(f"push {text}"))
    replace(nvtx_ranges, "pop", lambda: events.append("pop"))
    replace(nvtx_ranges, "start", start)
    replace(nvtx_ranges, "end", lambda handle: events.append(f"end {handle}"))
    return events


def pushed(events: list[str]) -> list[str]:
    """Return the labels of the push/pop ranges, in the order in which they opened."""
    return [event.removeprefix("push ") for event in events if event.startswith("push ")]
