"""Ranges in the domain `traceprof`: push/pop on one thread, start/end from anywhere to anywhere.

Nothing here raises, and without a tool that records NVTX nothing happens at all.

nvtx's own functions keep every distinct text for good (an unbounded cache per domain), and from
0.2.12 on they write nothing under a tool that does not know `nvtxDomainIsEnabled`, such as Nsight
Systems 2023.4. Labels with running numbers are all distinct, so ranges are made here from nvtx's
parts: nothing is cached, and every Nsight records them. The parts register each text with the tool
that is attached, which keeps it: Nsight Systems takes about 0.6 kB per distinct label.
"""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from traceprof import labels

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    import nvtx
except ImportError:  # nobody can record ranges: the program runs as it would without us
    nvtx = None

_log = logging.getLogger("traceprof.instrument")

INJECTION = "NVTX_INJECTION64_PATH"
"""The variable by which NVTX finds the tool that records; Nsight Systems sets it."""


class _Writer(NamedTuple):
    """How ranges are written: one function for each of prepare, push, pop, start and end."""

    prepare: Callable[[str], object]
    push: Callable[[object], object]
    pop: Callable[[], object]
    start: Callable[[object], object]
    end: Callable[[Any], object]


def _from_parts() -> _Writer | None:
    """Return a writer from nvtx's parts, or None where no tool is attached."""
    lib = nvtx._lib.lib  # noqa: SLF001  (the public functions cache every text)
    domain = lib.DomainHandle(labels.DOMAIN)
    is_enabled = getattr(domain, "enabled", None)  # since 0.2.12
    # Older tools do not answer, and then nvtx takes them for absent.
    if not (is_enabled and is_enabled()) and INJECTION not in os.environ:
        return None
    registered, attributes_of = lib.RegisteredString, lib.EventAttributes
    try:
        attributes_of(None, registered(domain, labels.DOMAIN), "blue", None, None)
        owner: tuple[None, ...] = (None,)  # the domain, which only payloads need
    except TypeError:  # before 0.2.14 it was not asked for
        attributes_of(registered(domain, labels.DOMAIN), "blue", None, None)
        owner = ()
    push_range, pop_range = lib.push_range, lib.pop_range
    start_range, end_range = lib.start_range, lib.end_range

    def prepare(text: str) -> object:
        return attributes_of(*owner, registered(domain, text), "blue")

    def push(text: object) -> None:
        push_range(prepare(text) if type(text) is str else text, domain)

    def start(text: object) -> object:
        return start_range(prepare(text) if type(text) is str else text, domain)

    def end(handle: object) -> None:
        if isinstance(handle, tuple):  # since 0.2.12: (identifier, domain)
            end_range(*handle)
        else:
            end_range(handle)

    return _Writer(prepare, push, partial(pop_range, domain), start, end)


def _from_functions() -> _Writer:
    """Return a writer from nvtx's public functions, for an nvtx whose parts we do not know."""
    domain = labels.DOMAIN
    return _Writer(
        str,
        lambda text: nvtx.push_range(text, domain=domain),
        lambda: nvtx.pop_range(domain=domain),
        lambda text: nvtx.start_range(text, domain=domain),
        nvtx.end_range,
    )


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
    """Tell whether a tool takes the ranges; without one, labels need not even be made."""
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


def end(handle: object) -> None:
    """Close the range that `start` opened; `None` is no range."""
    if _write is None or handle is None:
        return
    try:
        _write.end(handle)
    except Exception:  # noqa: BLE001
        _complain()
