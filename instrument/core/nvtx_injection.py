"""Calls the tool that records NVTX ranges, by the interface that NVTX has for such tools.

In comes the library that the tool names in the environment; out come its functions for ranges in a
domain of ours. They are functions of C, which no signal's handler interrupts: it runs before them
or after. The interface is that of NVTX 3 (nvtxDetail/nvtxTypes.h), the same since 2017.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import c_char_p, c_int, c_int32, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "NVTX_INJECTION64_PATH"
"""The environment variable that names the tool's library; Nsight Systems sets it."""

_BLUE = 0xFF0000FF
_VERSION = 3
_ARGB, _PLAIN, _REGISTERED = 1, 1, 3
_CALLBACKS, _VERSION_INFO = 1, 3
"""The tables that a tool asks for."""

_NUM_FUNCTIONS = {1: 16, 2: 16, 3: 16, 4: 8, 5: 16, 6: 16}
"""Places for functions in each of NVTX's modules; ours are in the fifth, the others stay unused."""

_DOMAINS = 5
_START, _END, _PUSH, _POP, _REGISTER, _CREATE = 2, 3, 4, 5, 10, 12


class Attributes(ctypes.Structure):
    """What a range is opened with: `nvtxEventAttributes_t`."""

    _fields_ = (
        ("version", c_uint16),
        ("size", c_uint16),
        ("category", c_uint32),
        ("color_type", c_int32),
        ("color", c_uint32),
        ("payload_type", c_int32),
        ("reserved", c_int32),
        ("payload", c_uint64),
        ("message_type", c_int32),
        ("message", c_char_p),
    )


class _Callbacks(ctypes.Structure):
    _fields_ = (("size", c_size_t), ("functions_of", c_void_p))


class _VersionInfo(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("version", c_uint32),
        ("reserved", c_uint32),
        ("set_version", c_void_p),
    )


# The GIL is held: what they do is shorter than to let it go, and no other thread runs meanwhile.
_Initialize = ctypes.PYFUNCTYPE(c_int, c_void_p)
_TableOf = ctypes.PYFUNCTYPE(c_void_p, c_uint32)
_FunctionsOf = ctypes.PYFUNCTYPE(
    c_int, c_uint32, ctypes.POINTER(c_void_p), ctypes.POINTER(c_uint32)
)
_SetVersion = ctypes.PYFUNCTYPE(None, c_uint32)
_TYPES = {
    _CREATE: ctypes.PYFUNCTYPE(c_void_p, c_char_p),
    _REGISTER: ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p),
    _PUSH: ctypes.PYFUNCTYPE(c_int, c_void_p, ctypes.POINTER(Attributes)),
    _POP: ctypes.PYFUNCTYPE(c_int, c_void_p),
    _START: ctypes.PYFUNCTYPE(c_uint64, c_void_p, ctypes.POINTER(Attributes)),
    _END: ctypes.PYFUNCTYPE(None, c_void_p, c_uint64),
}


class Functions(NamedTuple):
    """The tool's functions for ranges in one domain.

    Attributes:
        push: opens a range on the calling thread.
        pop: closes the one that it opened last.
        start: opens a range that ends anywhere; returns its number.
        end: closes that.
        register: has the tool keep a text; returns what stands for it, None if it keeps none.
    """

    push: Callable[[Attributes], int]
    pop: Callable[[], int]
    start: Callable[[Attributes], int]
    end: Callable[[int], None]
    register: Callable[[bytes], int | None]


def is_attached() -> bool:
    """Return whether a tool says that it wants to record."""
    return bool(os.environ.get(VARIABLE))


def connect(domain: str) -> Functions | None:
    """Return the attached tool's functions for a domain; None where it does not take ranges.

    Raises:
        OSError: the tool's library cannot be loaded.
        AttributeError: it is none of a tool for NVTX 3.
    """
    library = ctypes.PyDLL(os.environ[VARIABLE])
    return functions(_Initialize(("InitializeInjectionNvtx2", library)), domain)


_kept: list[object] = []
"""What tools hold pointers to, until the process ends."""


def functions(initialize: Callable[[Any], int], domain: str) -> Functions | None:
    """Return the functions of the tool that this function of it initializes."""
    tables = {number: (c_void_p * size)() for number, size in _NUM_FUNCTIONS.items()}
    # A tool gets where each function's pointer is, to put its own there.
    places = {
        number: (c_void_p * (len(table) + 1))(
            *(ctypes.addressof(table) + i * ctypes.sizeof(c_void_p) for i in range(len(table)))
        )
        for number, table in tables.items()
    }

    def give_functions(module: int, out_table: Any, out_size: Any) -> int:  # noqa: ANN401
        if module not in places:
            return 0
        if out_table:
            out_table[0] = ctypes.addressof(places[module])
        if out_size:
            out_size[0] = len(tables[module])
        return 1

    functions_of = _FunctionsOf(give_functions)
    set_version = _SetVersion(lambda _: None)
    callbacks = _Callbacks(ctypes.sizeof(_Callbacks), ctypes.cast(functions_of, c_void_p))
    version = _VersionInfo(
        ctypes.sizeof(_VersionInfo), _VERSION, 0, ctypes.cast(set_version, c_void_p)
    )
    exported = {
        _CALLBACKS: ctypes.addressof(callbacks),
        _VERSION_INFO: ctypes.addressof(version),
    }
    table_of = _TableOf(exported.get)
    _kept.append((tables, places, functions_of, set_version, callbacks, version, table_of))
    if not initialize(ctypes.cast(table_of, c_void_p)):
        return None
    made = {place: kind(tables[_DOMAINS][place] or 0) for place, kind in _TYPES.items()}
    if not all(made.values()):  # a pointer to nothing is false
        return None
    handle = made[_CREATE](domain.encode())
    return Functions(*(partial(made[p], handle) for p in (_PUSH, _POP, _START, _END, _REGISTER)))


def plain(text: bytes) -> Attributes:
    """Return what opens a range with a text of which the tool keeps nothing but in the range."""
    return Attributes(_VERSION, ctypes.sizeof(Attributes), 0, _ARGB, _BLUE, 0, 0, 0, _PLAIN, text)


def registered(handle: int) -> Attributes:
    """Return what opens a range with a text that the tool keeps."""
    attributes = plain(b"")
    attributes.message_type = _REGISTERED
    ctypes.cast(ctypes.addressof(attributes) + Attributes.message.offset, ctypes.POINTER(c_void_p))[
        0
    ] = handle
    return attributes
