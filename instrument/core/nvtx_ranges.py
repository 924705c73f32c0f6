"""Ranges in the domain `traceprof`: push/pop on one thread, start/end across threads.

They go to the tool that records NVTX, or to torch.profiler; without a recorder all functions are
no-ops. With a tool, the four functions that open and close ranges are C functions: a signal handler
runs before or after them, so that a wrapper knows, whatever exception arrives, whether its range is
open.

Texts are registered with the tool for good, so there is a bound: a label's running number is no
part of the text but the range's payload, and beyond `MAX_TEXTS` texts new ones go without sizes.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import filterfalse
from operator import is_
from typing import Any, NamedTuple

from traceprof import labels

VARIABLE = "NVTX_INJECTION64_PATH"
"""The environment variable that names the tool's library; Nsight Systems sets it."""

_BLUE = 0xFF0000FF


class Functions(NamedTuple):
    """Functions for ranges in one domain."""

    # opens a range on the calling thread; takes the result of `attributes`
    push: Callable[[Any], object]
    pop: Callable[[], object]  # closes the last range that the calling thread opened
    start: Callable[[Any], Any]  # opens a range that may end on any thread; returns its handle
    end: Callable[[Any], object]  # closes the range of this handle
    # returns the attributes of a range from its text, which is registered for good, and its
    # number, an integer or None
    attributes: Callable[[str, int | None], Any]


def is_attached() -> bool:
    """Return whether a tool is attached."""
    return bool(os.environ.get(VARIABLE))


def connect(name: str) -> Functions:
    """Return functions for a domain of this name, for the attached tool.

    Raises OSError: its library cannot be loaded; AttributeError: that is not of a tool for NVTX 3,
    or nvtx is of another version; ImportError: nvtx is not installed.
    """
    ctypes.CDLL(os.environ[VARIABLE]).InitializeInjectionNvtx2  # noqa: B018  (nvtx says nothing)
    lib: Any = import_module("nvtx._lib.lib")
    # Its own cache would keep the attributes of every number.
    attributes = getattr(lib.Domain.get_event_attributes, "__wrapped__", None)
    attributes = attributes or lib.Domain.get_event_attributes
    if not hasattr(lib.Domain, "push_range"):  # until 0.2.11
        domain = lib.Domain(name)
        functions = (
            partial(lib.push_range, domain=domain.handle),
            partial(lib.pop_range, domain.handle),
            partial(lib.start_range, domain=domain.handle),
            lib.end_range,
        )
    else:
        domain = object.__new__(lib.Domain)
        domain.handle = lib.DomainHandle(name)
        lib.Domain.__init__(domain, name)
        functions = (domain.push_range, domain.pop_range, domain.start_range, domain.end_range)

    def attributes_of(text: str, number: int | None) -> Any:  # noqa: ANN401  (of the package)
        return attributes(domain, text, _BLUE, None, number)

    return Functions(*functions, attributes_of)


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
    if not is_attached() or os.environ.get("NVTX_DISABLE", "0") not in {"", "0"}:
        return None
    try:
        return connect(labels.DOMAIN)
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


def message(label: str, number: int | None = None) -> Any:  # noqa: ANN401  (of the package)
    """Return the argument of `push` or `start` for a label that varies.

    `number`: its running number, if the label is given without it.
    """
    if _functions is None:
        return label
    if number is None:
        label, number = labels.split_number(label)
    return _attributes(_texts.get(label) or _registered(label), number)


def joined(label: str, number: int | None = None) -> str:
    """Return a label with its running number, if it is given without it."""
    return label if number is None else f"{label}{number}"


def prepare(label: str) -> Any:  # noqa: ANN401
    """Return the argument of `push` or `start` for a repeated label, which is kept."""
    known = _prepared.get(label)
    if known is None:
        known = message(label)
        if _functions is not None and len(_prepared) < MAX_PREPARED:
            _prepared[label] = known
    return known


def _registered(text: str) -> str:
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
    """Write ranges as annotations into the traces of torch.profiler.

    To be called before any range is prepared.
    """
    functions, ends_with = _profiler_functions()
    globals().update(
        _functions=functions,
        message=joined,
        prepare=str,
        push=functions.push,
        pop=functions.pop,
        start=functions.start,
        end=functions.end,
        end_with=ends_with,
    )


def annotate_no_longer() -> None:
    """Open no range until `annotate_in_profiler` is called again; open ones close as usual."""
    globals().update(_functions=None, push=_nothing, start=_nothing, end_with=None)


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


class _Thread(threading.local):
    def __init__(self) -> None:
        self.open: list[Any] = []
        """Handles of the annotations that `push` opened on this thread, the outermost first."""


def _profiler_functions() -> tuple[Functions, Any]:
    """Return functions that write annotations, and one that closes a range with a future.

    Outside of a recording they leave nothing. An annotation may end on another thread, such as one
    of Gloo's, only if that thread has the profiler's state: PyTorch passes it on to its own
    callbacks of a future, but not to ours.
    """
    import torch  # noqa: PLC0415  (where nothing is recorded, torch need not be there)

    # The functions of `push` and `pop` take a twentieth of the time; not every PyTorch has them.
    enter: Any = getattr(torch.autograd, "_record_function_with_args_enter", None)
    leave: Any = getattr(torch.autograd, "_record_function_with_args_exit", None)
    operators: Any = torch.ops.profiler
    start, end = operators._record_function_enter_new, operators._record_function_exit  # noqa: SLF001
    start, end = start.default, end._RecordFunction  # noqa: SLF001
    end_with = operators._call_end_callbacks_on_jit_fut._RecordFunction  # noqa: SLF001
    if enter is None or leave is None:
        enter, leave = start, end
    thread = _Thread()

    def push(text: Any) -> int:  # noqa: ANN401
        thread.open.append(enter(text))
        return len(thread.open)

    def pop() -> int:
        if thread.open:
            leave(thread.open.pop())
        return len(thread.open)

    return Functions(push, pop, start, end, lambda text, _: text), end_with


MODULES = "TRACEPROF_MODULES"
"""How many levels of modules get ranges, from the outermost one on."""
GARBAGE_COLLECTION = "TRACEPROF_GC"
"""Whether garbage collections get ranges: 1 if they do."""


def asked_depth() -> int:
    """Return how many levels of modules get ranges; 0 if none is asked for."""
    return max(int(os.environ.get(MODULES, "").strip() or 0), 0)


def asks_for_collections() -> bool:
    """Return whether garbage collections get ranges."""
    return os.environ.get(GARBAGE_COLLECTION, "").strip() == "1"
