"""The domains of NVTX in an Nsight export, and those of which nothing was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.trace.model.special_values import NULL
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.nvtx_events import RANGES, events_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.trace.sqlite.database import Database

# Libraries make these when they are loaded, whether they come to be used or not.
_OF_LIBRARIES = {
    "NCCL", "MPI", "cuBLAS", "cuBLASLt", "cuDNN", "cuFFT", "cuSOLVER", "cuSPARSE", "CCCL", "STDPAR",
    "DALI", "TensorRT", "UCX", "NVSHMEM",
}  # fmt: skip


def read_domains(database: Database) -> dict[tuple[int, int], str]:
    """Return the names of NVTX domains by process and id."""
    events = events_of(database)
    if events is None:
        return {}
    rows = np.flatnonzero(events.kind.isin([schema.NVTX_DOMAIN]))
    process = schema.process_of_thread(events.thread.at(rows))
    found = zip(process.tolist(), events.domain.at(rows).tolist(), events.names(rows), strict=True)
    return {(process, domain): name for process, domain, name in found if domain != NULL}


def silent(database: Database, domains: Mapping[tuple[int, int], str]) -> list[str]:
    """Return the names of domains that no process recorded an event of; not those of libraries.

    Args:
        database: the export.
        domains: names by process and id.
    """
    made = {key: name for key, name in domains.items() if name not in _OF_LIBRARIES}
    if not made:
        return []
    events = events_of(database)
    if events is None:
        return []
    by_program = events.kind.isin([*RANGES, schema.NVTX_MARK])
    process = schema.process_of_thread(events.thread.at(by_program))
    pairs = np.unique(np.stack((process, events.domain.at(by_program))), axis=1)
    used = {(process, domain) for process, domain in pairs.T.tolist()}
    heard = {name for key, name in made.items() if key in used}
    return sorted({*made.values()} - heard)


def silence_note(name: str) -> str:
    """Say why nothing may have been recorded of a domain, and what to do."""
    return (
        f"nothing was recorded of the NVTX domain {name!r}. If the program opens ranges in it with"
        " Python's package nvtx: from 0.2.12 on that writes none where the profiler does not say"
        " that it records the domain, as Nsight Systems 2023.4 does not; install nvtx==0.2.11, or"
        " record with a newer Nsight Systems"
    )
