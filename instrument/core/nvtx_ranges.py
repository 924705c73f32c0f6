"""Ranges in the domain `traceprof`: push/pop on one thread, start/end across threads.

They go to the tool that records NVTX, or to torch.profiler; without a recorder all functions are
no-ops. With a tool, the four functions that open and close ranges are C functions: a signal handler
runs before or after them, so that a wrapper knows, whatever exception arrives, whether its range is
open.

The package nvtx would register every distinct text for good, and labels with sequence numbers are
all distinct; from 0.2.12 on it also writes nothing under a tool without `nvtxDomainIsEnabled`, such
as Nsight Systems 2023.4. So the tool is called directly.
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
"""Most texts that are registered with the tool. Further texts are written in full with every range,
as varying texts are."""


def _connected() -> Functions | None:
    """Return the tool's functions; None without a tool. Failures are logged once."""
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
    """Return whether ranges are recorded; if not, labels need not be made."""
    return _functions is not None


def message(text: str) -> Any:  # noqa: ANN401  (the tool's, or a test's)
    """Return the argument of `push` or `start` for a varying label, which is not registered."""
    return nvtx_injection.plain(text.encode(errors="replace"))


def prepare(text: str) -> Any:  # noqa: ANN401
    """Return the argument of `push` or `start` for a repeated label: registered, so cheaper."""
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
"""Open a range on the calling thread; takes the result of `message` or `prepare`."""

pop: Callable[[], object] = _functions.pop if _functions else _nothing
"""Close the range that the calling thread opened last, if one is open."""

start: Callable[[Any], int | None] = _functions.start if _functions else _nothing
"""Open a range that may end on another thread; return its handle for `end`, None if not opened."""

end: Callable[[Any], object] = _functions.end if _functions else _nothing
"""Close a range that `start` opened."""


end_with: Callable[[Any, Any], object] | None = None
"""Close a range when a future is complete, if `end` only works on the thread of `start`."""


def annotate_in_profiler() -> None:
    """Write ranges as annotations into the traces of torch.profiler, from here on.

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
    """Open no range until `resume`; open ranges close as usual."""
    if _functions is not None:
        globals().update(push=_nothing, start=_nothing)


def resume() -> None:
    """Open ranges again."""
    if _functions is not None:
        globals().update(push=_functions.push, start=_functions.start)


def start_into(handles: list[Any], *texts: Any) -> None:  # noqa: ANN401
    """Open ranges that may end on another thread, from results of `message` or `prepare`.

    No exception can arrive between opening a range and storing its handle in the list.
    """
    handles.extend(filterfalse(_is_none, map(start, texts)))


def end_all(handles: list[Any]) -> None:
    """Close the ranges that `start` opened, and empty the list: both or neither."""
    handles[:] = filter(None, map(end, handles))
