"""NVTX ranges by the package nvtx, in a domain of our own, with registered texts.

From 0.2.12 on the package gives a domain that writes nothing if the tool does not report that
it records: Nsight Systems 2023.4 and 2024.2 do not, and record nevertheless. So the domain is made
past that question. Tried with nvtx 0.2.11, 0.2.12 and 0.2.17 under Nsight Systems 2023.4: all of
them record.

Functions that open and close ranges are C functions, which no signal handler interrupts: it runs
before or after them.
"""

from __future__ import annotations

import ctypes
import os
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "NVTX_INJECTION64_PATH"
"""The environment variable that names the tool's library; Nsight Systems sets it."""

_BLUE = 0xFF0000FF


class Functions(NamedTuple):
    """Functions for ranges in one domain.

    Attributes:
        push: opens a range on the calling thread; takes the result of `attributes`.
        pop: closes the last range that the calling thread opened.
        start: opens a range that may end on any thread; returns its handle.
        end: closes the range of this handle.
        attributes: returns the attributes of a range from its text, which is registered for good,
            and its number, an integer or None.
    """

    push: Callable[[Any], object]
    pop: Callable[[], object]
    start: Callable[[Any], Any]
    end: Callable[[Any], object]
    attributes: Callable[[str, int | None], Any]


def is_attached() -> bool:
    """Return whether a tool is attached."""
    return bool(os.environ.get(VARIABLE))


def connect(name: str) -> Functions:
    """Return functions for a domain of this name, for the attached tool.

    Raises:
        OSError: the tool's library cannot be loaded.
        AttributeError: it is not the library of a tool for NVTX 3, or nvtx is of another version.
        ImportError: the package nvtx is not installed.
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
