"""The domains of NVTX in an Nsight export, and those of which nothing was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.trace import schema
from traceprof.trace.nvtx import name_sql

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.trace.database import Database

# Libraries make these when they are loaded, whether they come to be used or not.
_OF_LIBRARIES = {
    "NCCL", "MPI", "cuBLAS", "cuBLASLt", "cuDNN", "cuFFT", "cuSOLVER", "cuSPARSE", "CCCL", "STDPAR",
    "DALI", "TensorRT", "UCX", "NVSHMEM",
}  # fmt: skip


def read_domains(database: Database) -> dict[tuple[int, int], str]:
    """Return the names of NVTX domains by process and id."""
    if schema.NVTX.name not in database.columns:
        return {}
    database.require(schema.NVTX.name, schema.NVTX.required)
    if not database.has(schema.NVTX.name, "domainId"):
        return {}
    rows = database.query(
        f"SELECT globalTid, domainId, {name_sql(database)} AS name FROM {schema.NVTX.name} "  # noqa: S608
        f"WHERE eventType = {schema.NVTX_DOMAIN} AND globalTid IS NOT NULL",
        schema.NVTX.name,
        {"globalTid": int, "domainId": int, "name": str},
    )
    return {
        (schema.process_of_thread(row["globalTid"]), row["domainId"]): row["name"] or ""
        for row in rows
        if row["domainId"] is not None
    }


def silent(database: Database, domains: Mapping[tuple[int, int], str]) -> list[str]:
    """Return the names of domains that no process recorded an event of; not those of libraries.

    Args:
        database: the export.
        domains: names by process and id.
    """
    made = {key: name for key, name in domains.items() if name not in _OF_LIBRARIES}
    if not made:
        return []
    rows = database.query(
        f"SELECT DISTINCT globalTid, domainId FROM {schema.NVTX.name} WHERE eventType IN"  # noqa: S608
        f" ({schema.NVTX_PUSH_POP}, {schema.NVTX_START_END}, {schema.NVTX_MARK})"
        " AND globalTid IS NOT NULL",
        schema.NVTX.name,
        {"globalTid": int, "domainId": int},
    )
    used = {(schema.process_of_thread(row["globalTid"]), row["domainId"]) for row in rows}
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
