"""Ranges in the domain `traceprof`: push/pop on one thread, start/end from anywhere to anywhere.

They go to the tool that records NVTX, or to torch.profiler; without either nothing happens at all.
With a tool, the four functions that open and close ranges are functions of C: a signal's handler
runs before or after them, so that a wrapper knows, whatever exception arrives, whether its range is
open.

The package nvtx would keep and register every distinct text for good, and labels with running
numbers are all distinct; from 0.2.12 on it also writes nothing under a tool that does not know
`nvtxDomainIsEnabled`, such as Nsight Systems 2023.4. So the tool is called directly.
"""

from __future__ import annotations

import logging
import os
from functools import partial
from itertools import filterfalse
from operator import is_
from typing import TYPE_CHECKING, Any

from instrument.core import nvtx_injection
from traceprof import labels

if TYPE_CHECKING:
    from collections.abc import Callable

    from instrument.core.nvtx_injection import Functions

_log = logging.getLogger("traceprof.instrument")
_is_none = partial(is_, None)

MAX_REGISTERED = 256
"""Texts that the tool keeps. What exceeds that is written in full with every range, as all that
varies is."""


def _connected() -> Functions | None:
    """Return the tool's functions; None where nobody records. What is in the way is said once."""
    if not nvtx_injection.is_attached() or os.environ.get("NVTX_DISABLE", "0") not in {"", "0"}:
        return None
    try:
        functions = nvtx_injection.connect(labels.DOMAIN)
    except (OSError, AttributeError, ValueError) as error:
        _log.warning("a tool is attached that cannot record NVTX ranges: %s", error)
        return None
    if functions is None:
        _log.warning("a tool is attached that does not record NVTX ranges")
    return functions


_functions = _connected()
_registered: dict[str, Any] = {}


def is_recording() -> bool:
    """Return whether somebody takes the ranges; if not, labels need not even be made."""
    return _functions is not None


def message(text: str) -> Any:  # noqa: ANN401  (of the tool's; of a record's in tests)
    """Return what opens a range with a label that varies: nobody keeps it."""
    return nvtx_injection.plain(text.encode(errors="replace"))


def prepare(text: str) -> Any:  # noqa: ANN401
    """Return what opens ranges with a label that comes again and again, and costs less."""
    known = _registered.get(text)
    if known is None:
        known = message(text)
        if _functions is not None and len(_registered) < MAX_REGISTERED:
            number = _functions.register(text.encode(errors="replace"))
            known = known if number is None else nvtx_injection.registered(number)
            _registered[text] = known
    return known


def _nothing(*_: object) -> None: ...


push: Callable[[Any], object] = _functions.push if _functions else _nothing
"""Open a range on the calling thread, by what `message` or `prepare` returned."""

pop: Callable[[], object] = _functions.pop if _functions else _nothing
"""Close the range that the calling thread opened last; nothing where none is open."""

start: Callable[[Any], int | None] = _functions.start if _functions else _nothing
"""Open a range that may end on another thread; return what `end` takes, None if none was opened."""

end: Callable[[Any], object] = _functions.end if _functions else _nothing
"""Close a range that `start` opened."""


end_with: Callable[[Any, Any], object] | None = None
"""Close a range when a future is complete, where `end` can only do so on the thread of `start`."""


def annotate_in_profiler() -> None:
    """Have ranges become annotations in the traces of torch.profiler, from here on.

    To be called before any range is prepared.
    """
    from instrument.core import profiler_ranges  # noqa: PLC0415  (imports torch)

    functions, ends_with = profiler_ranges.functions()
    globals().update(
        _functions=functions,
        message=str,
        prepare=str,
        push=functions.push,
        pop=functions.pop,
        start=functions.start,
        end=functions.end,
        end_with=ends_with,
    )


def pause() -> None:
    """Open no range until `resume`; those that are open close as ever."""
    if _functions is not None:
        globals().update(push=_nothing, start=_nothing)


def resume() -> None:
    """Open ranges again."""
    if _functions is not None:
        globals().update(push=_functions.push, start=_functions.start)


def start_into(handles: list[Any], *texts: Any) -> None:  # noqa: ANN401
    """Open ranges that may end on another thread, by what `message` or `prepare` returned.

    No exception arrives between the opening of a range and its handle's place in the list.
    """
    handles.extend(filterfalse(_is_none, map(start, texts)))


def end_all(handles: list[Any]) -> None:
    """Close the ranges that `start` opened, and empty the list: both or neither."""
    handles[:] = filter(None, map(end, handles))
