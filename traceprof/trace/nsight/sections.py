"""The sections of an Nsight export, each read as a whole, in this or another process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.trace.model.trace import Section, SectionData
from traceprof.trace.nsight.gpu import read_gpu_operations, read_gpu_outline
from traceprof.trace.nsight.host import read_api_calls
from traceprof.trace.nsight.nccl.calls import read_communication_calls
from traceprof.trace.nsight.nvtx.events import Events, read_events
from traceprof.trace.nsight.nvtx.label_ranges import read_label_ranges
from traceprof.trace.nsight.nvtx.names import domain_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.trace.model.communication_calls import ProcessCalls
    from traceprof.trace.model.host import ApiCalls
    from traceprof.trace.model.ranges import LabelRanges
    from traceprof.trace.nsight.nvtx.events import EventColumns
    from traceprof.trace.sqlite.database import Database

GPU_OPERATIONS = Section("GPU operations")
NAMED_RANGES = Section("named ranges")
API_CALLS = Section("API calls")
SECTIONS = (GPU_OPERATIONS, NAMED_RANGES, API_CALLS)
"""All sections, in the order in which an analysis needs them."""


class NamedRangesData(SectionData, frozen=True):
    """NVTX ranges and names, and the communication calls in them.

    Attributes:
        events: None if the export has no NVTX table.
        domains: names of domains by process and id.
        label_ranges: ranges of `instrument` by process.
        communication_calls: by process.
    """

    events: EventColumns | None
    domains: Mapping[tuple[int, int], str]
    label_ranges: Mapping[int, LabelRanges]
    communication_calls: Mapping[int, ProcessCalls]


class ApiCallsData(SectionData, frozen=True):
    """CUDA API calls, by process."""

    by_process: Mapping[int, ApiCalls]


def read_section(
    database: Database,
    section: Section,
    capture_end_ns: int | None,
    *,
    kernels_on_demand: bool = False,
) -> SectionData:
    """Read a section from the file.

    Args:
        database: the export.
        section: one of `SECTIONS`.
        capture_end_ns: the end of the capture; None if unknown.
        kernels_on_demand: whether kernels are read only on first use.

    Raises:
        TraceFormatError: the file is damaged.
    """
    if section == GPU_OPERATIONS:
        read = read_gpu_outline if kernels_on_demand else read_gpu_operations
        return read(database)
    if section == API_CALLS:
        return ApiCallsData(dict(read_api_calls(database)))
    return _read_named_ranges(database, capture_end_ns)


def _read_named_ranges(database: Database, capture_end_ns: int | None) -> NamedRangesData:
    columns = read_events(database)
    if columns is None:
        return NamedRangesData(None, {}, {}, {})
    events = Events(database, columns, capture_end_ns)
    domains = domain_names(events)
    label_ranges = read_label_ranges(events, domains)
    calls = read_communication_calls(events, domains, label_ranges)
    return NamedRangesData(columns, domains, label_ranges, calls)
