"""Ranges in the domain `traceprof`: push/pop on one thread, start/end from anywhere to anywhere.

Nothing here raises, and without a tool that records NVTX nothing happens at all.

nvtx's own functions keep every distinct text for good (an unbounded cache per domain), and from
0.2.12 on they write nothing under a tool that does not know `nvtxDomainIsEnabled`, such as Nsight
Systems 2023.4. Labels with running numbers are all distinct, so ranges are made here from nvtx's
parts: nothing is cached, and every Nsight records them. The parts register each text with the tool
that is attached, which keeps it: Nsight Systems takes about 0.6 kB per distinct label.

Ranges are opened between operations of the model that leave no cache to Python. What costs time
there is not what is computed but what is touched: so few functions call one another here.
"""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from traceprof import labels

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

try:
    import nvtx
except ImportError:  # nobody can record ranges: the program runs as it would without us
    nvtx = None

_log = logging.getLogger("traceprof.instrument")

INJECTION = "NVTX_INJECTION64_PATH"
"""The variable by which NVTX finds the tool that records; Nsight Systems sets it."""


class _Writer(NamedTuple):
    """How ranges are written: one function for each that is public below."""

    prepare: Callable[[str], object]
    push: Callable[[object], object]
    pop: Callable[[], object]
    start: Callable[[object], object]
    start_and_push: Callable[[str], object]
    end: Callable[[Sequence[Any]], object]


def _from_parts() -> _Writer | None:
    """Return a writer from nvtx's parts, or None where no tool is attached."""
    lib = nvtx._lib.lib  # noqa: SLF001  (the public functions cache every text)
    domain = lib.DomainHandle(labels.DOMAIN)
    is_enabled = getattr(domain, "enabled", None)  # since 0.2.12
    # Older tools do not answer, and then nvtx takes them for absent.
    if not (is_enabled and is_enabled()) and INJECTION not in os.environ:
        return None
    prepare = _preparing(lib, domain)
    handle_of, push_range, start_range = lib.StringHandle, lib.push_range, lib.start_range
    free: list[Any] = []
    """What stands for a text just while a range is opened: to make one takes four times as long."""

    def standing_for(text: str) -> Any:  # noqa: ANN401
        try:
            attributes = free.pop()
        except IndexError:  # other threads have them
            attributes = prepare(labels.DOMAIN)
        registered = attributes.message
        registered.handle = handle_of(domain, text)  # all that nvtx looks at
        attributes.message = registered
        return attributes

    def push(text: object) -> None:
        if type(text) is str:
            attributes = standing_for(text)
            push_range(attributes, domain)
            free.append(attributes)
        else:
            push_range(text, domain)

    def start(text: object) -> object:
        if type(text) is str:
            attributes = standing_for(text)
            handle = start_range(attributes, domain)
            free.append(attributes)
            return handle
        return start_range(text, domain)

    def start_and_push(text: str) -> object:
        attributes = standing_for(text)
        handle = start_range(attributes, domain)
        push_range(attributes, domain)
        free.append(attributes)
        return handle

    free.append(standing_for(labels.DOMAIN))  # raises where nvtx is made in another way
    pop, end = partial(lib.pop_range, domain), _ending(lib.end_range)
    return _Writer(prepare, push, pop, start, start_and_push, end)


def _preparing(lib: Any, domain: object) -> Callable[[str], Any]:  # noqa: ANN401  (a module without types)
    """Return what makes of a text what nvtx's parts take, for as long as anybody holds it."""
    registered, attributes_of = lib.RegisteredString, lib.EventAttributes
    try:
        attributes_of(None, registered(domain, labels.DOMAIN), "blue", None, None)
        owner: tuple[None, ...] = (None,)  # the domain, which only payloads need
    except TypeError:  # before 0.2.14 it was not asked for
        attributes_of(registered(domain, labels.DOMAIN), "blue", None, None)
        owner = ()

    def prepare(text: str) -> Any:  # noqa: ANN401
        return attributes_of(*owner, registered(domain, text), "blue")

    return prepare


def _ending(end_range: Callable[..., object]) -> Callable[[Sequence[Any]], None]:
    """Return what ends ranges by what `start_range` returned."""

    def end(handles: Sequence[Any]) -> None:
        for handle in handles:
            if type(handle) is tuple:  # since 0.2.12: (identifier, domain)
                end_range(*handle)
            elif handle is not None:
                end_range(handle)

    return end


def _from_functions() -> _Writer:
    """Return a writer from nvtx's public functions, for an nvtx whose parts we do not know."""
    domain = labels.DOMAIN
    push, start = partial(nvtx.push_range, domain=domain), partial(nvtx.start_range, domain=domain)

    def start_and_push(text: str) -> object:
        handle = start(text)
        push(text)
        return handle

    def end(handles: Sequence[object]) -> None:
        for handle in handles:
            if handle is not None:
                nvtx.end_range(handle)

    return _Writer(str, push, partial(nvtx.pop_range, domain=domain), start, start_and_push, end)


def _writer() -> _Writer | None:
    """Return how this process writes ranges; None where nobody records them."""
    if nvtx is None:
        return None
    try:
        return _from_parts() if nvtx.enabled() else None  # NVTX_DISABLE turns it off
    except Exception:  # noqa: BLE001  (parts are nvtx's private affair: any version may differ)
        return _from_functions()


_write = _writer()
_complained = False


def _complain() -> None:
    """Say once that ranges cannot be written."""
    global _complained  # noqa: PLW0603  (a process-wide "said so")
    if not _complained:
        _complained = True
        _log.warning("could not write an NVTX range", exc_info=True)


def is_recording() -> bool:
    """Return whether a tool takes the ranges; without one, labels need not even be made."""
    return _write is not None


def prepare(text: str) -> object:
    """Return what stands for a label in `push` and `start`, and costs less from then on."""
    if _write is None:
        return text
    try:
        return _write.prepare(text)
    except Exception:  # noqa: BLE001
        _complain()
        return text


def push(text: object) -> None:
    """Open a range with this label on the calling thread; close it with `pop`."""
    if _write is None:
        return
    try:
        _write.push(text)
    except Exception:  # noqa: BLE001
        _complain()
        _push_something()


def _push_something() -> None:
    """Open a range, whatever its text: the `pop` that follows must not close another one."""
    try:
        if _write is not None:
            _write.push("?")
    except Exception:  # noqa: BLE001
        _complain()


def pop() -> None:
    """Close the range that the calling thread opened last."""
    if _write is None:
        return
    try:
        _write.pop()
    except Exception:  # noqa: BLE001
        _complain()


def start(text: object) -> object:
    """Open a range that may end on another thread; return the handle that `end` takes."""
    if _write is None:
        return None
    try:
        return _write.start(text)
    except Exception:  # noqa: BLE001
        _complain()
        return None


def start_and_push(text: str) -> object:
    """Do both: for an operation, the one until it is done, the other around the call."""
    if _write is None:
        return None
    try:
        return _write.start_and_push(text)
    except Exception:  # noqa: BLE001
        _complain()
        _push_something()
        return None


def end(*handles: object) -> None:
    """Close ranges that `start` opened; `None` is no range."""
    if _write is None:
        return
    try:
        _write.end(handles)
    except Exception:  # noqa: BLE001
        _complain()
