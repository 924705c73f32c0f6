"""Direct calls of the tool that records NVTX ranges, by NVTX's interface for such tools.

From the library that the tool names in the environment come its functions for ranges in our own
domain. They are C functions, which no signal handler interrupts: it runs before or after them. The
interface is that of NVTX 3 (nvtxDetail/nvtxTypes.h), the same since 2017.
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
"""The tables that a tool requests."""

_NUM_FUNCTIONS = {1: 16, 2: 16, 3: 16, 4: 8, 5: 16, 6: 16}
"""Places for functions in each of NVTX's modules; ours are in the fifth, the others stay unused."""

_DOMAINS = 5
_START, _END, _PUSH, _POP, _REGISTER, _CREATE = 2, 3, 4, 5, 10, 12


class Attributes(ctypes.Structure):
    """Attributes of a range to open: `nvtxEventAttributes_t`."""

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


# The GIL is held: the calls are shorter than releasing it, and no other thread runs meanwhile.
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
        pop: closes the last range that the calling thread opened.
        start: opens a range that may end on any thread; returns its number.
        end: closes the range of this number.
        register: registers a text with the tool; returns its handle, None without support.
    """

    push: Callable[[Attributes], int]
    pop: Callable[[], int]
    start: Callable[[Attributes], int]
    end: Callable[[int], None]
    register: Callable[[bytes], int | None]


def is_attached() -> bool:
    """Return whether a tool is attached."""
    return bool(os.environ.get(VARIABLE))


def connect(domain: str) -> Functions | None:
    """Return the attached tool's functions for a domain; None if it does not record ranges.

    Raises:
        OSError: the tool's library cannot be loaded.
        AttributeError: it is not the library of a tool for NVTX 3.
    """
    library = ctypes.PyDLL(os.environ[VARIABLE])
    return functions(_Initialize(("InitializeInjectionNvtx2", library)), domain)


_kept: list[object] = []
"""Objects to which tools hold pointers, kept until the process ends."""


def functions(initialize: Callable[[Any], int], domain: str) -> Functions | None:
    """Return the functions of a tool, given its function that initializes it."""
    tables = {number: (c_void_p * size)() for number, size in _NUM_FUNCTIONS.items()}
    # A tool gets the address of each function pointer, and stores its own there.
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
    if not all(made.values()):  # a null pointer is false
        return None
    handle = made[_CREATE](domain.encode())
    return Functions(*(partial(made[p], handle) for p in (_PUSH, _POP, _START, _END, _REGISTER)))


def plain(text: bytes) -> Attributes:
    """Return the attributes of a range with an unregistered text."""
    return Attributes(_VERSION, ctypes.sizeof(Attributes), 0, _ARGB, _BLUE, 0, 0, 0, _PLAIN, text)


def registered(handle: int) -> Attributes:
    """Return the attributes of a range with a registered text."""
    attributes = plain(b"")
    attributes.message_type = _REGISTERED
    ctypes.cast(ctypes.addressof(attributes) + Attributes.message.offset, ctypes.POINTER(c_void_p))[
        0
    ] = handle
    return attributes
