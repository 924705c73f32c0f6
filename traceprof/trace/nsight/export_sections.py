"""An open Nsight export and its sections, each read on first use or supplied by another process."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from traceprof.kernel_names.categories import forget_names
from traceprof.trace.model.trace import Section, SectionData
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.gpu import (
    GpuOperationsData,
    GpuOutlineData,
    first_launches,
    read_gpu_operations,
    read_gpu_outline,
)
from traceprof.trace.nsight.host import read_api_calls
from traceprof.trace.nsight.metadata import Target
from traceprof.trace.nsight.nccl import read_communication_calls
from traceprof.trace.nsight.nvtx_events import Events, read_events, read_label_ranges
from traceprof.trace.nsight.nvtx_names import domain_names
from traceprof.trace.nsight.parts import RE_EXPORT, check_is_export
from traceprof.trace.nsight.rows import repeated_strings
from traceprof.trace.sqlite.database import Database

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from traceprof.intervals import Int64
    from traceprof.progress import Progress
    from traceprof.trace.model.communication_calls import ProcessCalls
    from traceprof.trace.model.host import ApiCalls
    from traceprof.trace.model.operations import RankKey
    from traceprof.trace.model.parts import Part
    from traceprof.trace.model.ranges import LabelRanges
    from traceprof.trace.nsight.nvtx_events import EventColumns

GPU_OPERATIONS = Section("GPU operations")
NAMED_RANGES = Section("named ranges")
API_CALLS = Section("API calls")
SECTIONS = (GPU_OPERATIONS, NAMED_RANGES, API_CALLS)
"""All sections, in the order in which an analysis needs them."""


class NamedRangesData(SectionData, frozen=True):
    """NVTX ranges and names, and the communication calls in them."""

    events: EventColumns | None  # None if the export has no NVTX table
    domains: Mapping[tuple[int, int], str]  # names of domains by process and id
    label_ranges: Mapping[int, LabelRanges]  # ranges of `instrument` by process
    communication_calls: Mapping[int, ProcessCalls]  # by process


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
    """Read a section, one of `SECTIONS`; kernels perhaps only on first use.

    `capture_end_ns` is None if unknown.
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


class SectionedExport:
    """An open export with its sections.

    Attributes:
        path: the export.
        product_version: the Nsight Systems that exported it, or None (2020 and 2021).
        schema_version: of the export, not of the capture, or None.
        target: metadata of the export, the machine and the programs.
        moved: by how many ns operations were moved, by rank.
    """

    def __init__(
        self,
        path: Path,
        progress: Progress | None = None,
        *,
        file: Path | None = None,
        kernels_on_demand: bool = False,
    ) -> None:
        """Open the export of a report: `file`, if it is not the report itself.

        Kernels are perhaps read only on first use.

        Raises:
            TraceFormatError: damaged, or the database of another program.
        """
        self.path = path
        self._database = Database(path, progress, file=file, remedy=RE_EXPORT)
        self.in_use = self._database.in_use
        self._kept: dict[Section, SectionData] = {}
        self._held: dict[Part, bool] = {}
        self.moved: Mapping[RankKey, int] = {}
        self._source: Callable[[Section], SectionData] | None = None  # else the file
        self._kernels_on_demand = kernels_on_demand
        self._events: Events | None = None
        try:
            check_is_export(self._database)
            self._database.replaced = repeated_strings(self._database)
            self.target = Target(self._database)
        except BaseException:
            self.close()
            raise
        self.product_version = self.target.metadata.get(schema.PRODUCT_VERSION)
        self.schema_version = self.target.metadata.get(schema.SCHEMA_VERSION)

    def close(self) -> None:
        self.in_use.close()
        forget_names()

    def reopen(self) -> None:
        self._database.reopen()

    @property
    def sections(self) -> tuple[Section, ...]:
        return SECTIONS

    def read_section(self, section: Section) -> SectionData:
        with self.in_use:
            return read_section(
                self._database,
                section,
                self.target.capture_end_ns,
                kernels_on_demand=self._kernels_on_demand,
            )

    def keep_section(self, section: Section, data: SectionData) -> None:
        self._kept[section] = data

    def set_section_source(self, source: Callable[[Section], SectionData]) -> None:
        # A reference to its own method would keep the trace alive after its last use.
        self._source = None if source == self.read_section else source

    def move_operations(self, key: RankKey, by_ns: int) -> None:
        data = self._gpu_operations
        moved = {**data.operations, key: data.operations[key].moved(by_ns)}
        self.keep_section(GPU_OPERATIONS, replace(data, operations=moved))
        self.moved = {**self.moved, key: by_ns}

    def first_launches(self, key: RankKey) -> Int64:
        return self._first_launches.get(key, np.empty(0, np.int64))

    @cached_property
    def _first_launches(self) -> Mapping[RankKey, Int64]:
        return first_launches(self._database) if self._kernels_on_demand else {}

    def _section(self, section: Section) -> SectionData:
        if section not in self._kept:
            read = self._source or self.read_section
            self.keep_section(section, read(section))
        return self._kept[section]

    @property
    def _gpu_operations(self) -> GpuOperationsData | GpuOutlineData:
        data = self._section(GPU_OPERATIONS)
        assert isinstance(data, GpuOperationsData | GpuOutlineData)  # noqa: S101
        return data

    @property
    def _named_ranges(self) -> NamedRangesData:
        data = self._section(NAMED_RANGES)
        assert isinstance(data, NamedRangesData)  # noqa: S101
        return data

    @property
    def _api_calls(self) -> Mapping[int, ApiCalls]:
        data = self._section(API_CALLS)
        assert isinstance(data, ApiCallsData)  # noqa: S101
        return data.by_process

    @property
    def _nvtx_events(self) -> Events | None:
        """The NVTX events, read again if they were released; None if there is no table."""
        if self._events is None:
            columns = self._named_ranges.events or read_events(self._database)
            self._events = (
                None
                if columns is None
                else Events(self._database, columns, self.target.capture_end_ns)
            )
        return self._events
