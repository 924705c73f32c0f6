"""Ranges in the domain `traceprof`: push/pop on one thread, start/end across threads.

They go to the tool that records NVTX, or to torch.profiler; without a recorder all functions are
no-ops. With a tool, the four functions that open and close ranges are C functions: a signal handler
runs before or after them, so that a wrapper knows, whatever exception arrives, whether its range is
open.

Texts are registered with the tool for good, so there is a bound: a label's running number is no
part of the text but the range's payload, and beyond `MAX_TEXTS` texts new ones go without sizes.
"""

from __future__ import annotations

import logging
import os
from functools import partial
from itertools import filterfalse
from operator import is_
from typing import TYPE_CHECKING, Any

from instrument.core import nvtx_package
from traceprof import labels

if TYPE_CHECKING:
    from collections.abc import Callable

    from instrument.core.nvtx_package import Functions

_log = logging.getLogger("traceprof.instrument")
_is_none = partial(is_, None)

MAX_TEXTS = 10_000
"""Most texts of a process that are written as they are: each takes some 1.25 kB of memory."""

MAX_SHORT_TEXTS = 1000
"""Most further texts, which have no sizes; after these all have the text `labels.UNNAMED`."""

MAX_PREPARED = 256
"""Most arguments of `push` and `start` that are kept."""


def _connected() -> Functions | None:
    """Return the functions for our domain; None without a tool. Failures are logged once."""
    if not nvtx_package.is_attached() or os.environ.get("NVTX_DISABLE", "0") not in {"", "0"}:
        return None
    try:
        return nvtx_package.connect(labels.DOMAIN)
    except ImportError:
        _log.warning("no range is recorded: pip install nvtx, which writes them")
    except (OSError, AttributeError, TypeError, ValueError) as error:
        _log.warning("a tool is attached that cannot record NVTX ranges: %s", error)
    return None


_functions = _connected()
_attributes: Any = _functions.attributes if _functions else None
_texts: dict[str, str] = {}
"""By text, what is registered for it."""
_prepared: dict[str, Any] = {}


def is_recording() -> bool:
    """Return whether ranges are recorded; if not, labels need not be made."""
    return _functions is not None


def message(label: str) -> Any:  # noqa: ANN401  (of the package, or of a test)
    """Return the argument of `push` or `start` for a label that varies."""
    if _functions is None:
        return label
    text, number = labels.split_number(label)
    return _attributes(_texts.get(text) or _registered(text), number)


def prepare(label: str) -> Any:  # noqa: ANN401
    """Return the argument of `push` or `start` for a repeated label, which is kept."""
    known = _prepared.get(label)
    if known is None:
        known = message(label)
        if _functions is not None and len(_prepared) < MAX_PREPARED:
            _prepared[label] = known
    return known


def _registered(text: str) -> str:
    """Return the text that is written for a new one, in the bounds of all texts."""
    written = text if text.isascii() else text.encode(errors="replace").decode()
    if len(_texts) >= MAX_TEXTS:
        if not _short:
            _log.warning("over %d different texts: new ones have no sizes", MAX_TEXTS)
        written = labels.without_size(written)
        if written in _short or len(_short) < MAX_SHORT_TEXTS:
            _short.add(written)
            return written
        return labels.UNNAMED
    _texts[text] = written
    return written


_short: set[str] = set()


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
