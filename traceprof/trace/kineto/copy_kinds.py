"""Kinds of copies and memory sets from their names: direction and kinds of memory."""

from __future__ import annotations

import re
from typing import NamedTuple

from traceprof.trace.model.kinds import CopyKind, MemoryKind
from traceprof.trace.model.special_values import NULL

# Kineto's names, such as `Memcpy HtoD (Pageable -> Device)` and `Memset (Device)`.
_COPY = re.compile(r"\w+ (?P<kind>\w+)(?: \((?P<source>[\w ]+) -> (?P<destination>[\w ]+)\))?")
_SET = re.compile(r"\w+ \((?P<destination>[\w ]+)\)")
COPY_KINDS = {
    "HtoD": CopyKind.HOST_TO_DEVICE,
    "DtoH": CopyKind.DEVICE_TO_HOST,
    "HtoA": CopyKind.HOST_TO_ARRAY,
    "AtoH": CopyKind.ARRAY_TO_HOST,
    "AtoA": CopyKind.ARRAY_TO_ARRAY,
    "AtoD": CopyKind.ARRAY_TO_DEVICE,
    "DtoA": CopyKind.DEVICE_TO_ARRAY,
    "DtoD": CopyKind.DEVICE_TO_DEVICE,
    "HtoH": CopyKind.HOST_TO_HOST,
    "PtoP": CopyKind.PEER_TO_PEER,
}
MEMORY_KINDS = {
    "Pageable": MemoryKind.PAGEABLE,
    "Pinned": MemoryKind.PINNED,
    "Device": MemoryKind.DEVICE,
    "Array": MemoryKind.ARRAY,
    "Managed": MemoryKind.MANAGED,
    "Device Static": MemoryKind.DEVICE_STATIC,
    "Managed Static": MemoryKind.MANAGED_STATIC,
}


class CopyFacts(NamedTuple):
    """Facts from a name; NULL if unknown."""

    kind: int = NULL
    source_memory: int = NULL
    destination_memory: int = NULL


def copy_facts(name: str) -> CopyFacts:
    """Return the facts in the name of a copy or memory set."""
    match = _COPY.fullmatch(name)
    if match is not None:
        return CopyFacts(
            COPY_KINDS.get(match["kind"], CopyKind.UNKNOWN),
            MEMORY_KINDS.get(match["source"] or "", NULL),
            MEMORY_KINDS.get(match["destination"] or "", NULL),
        )
    match = _SET.fullmatch(name)
    return CopyFacts(destination_memory=MEMORY_KINDS.get(match[1], NULL) if match else NULL)
