"""A report that has been opened, whatever its format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NewType, Protocol

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from traceprof.intervals import Int64
    from traceprof.trace.model.communication_calls import ProcessCalls
    from traceprof.trace.model.counters import Counters
    from traceprof.trace.model.host import (
        ApiCalls,
        EventRecords,
        LaunchStalls,
        Synchronizations,
    )
    from traceprof.trace.model.host_activity import HostActivity, ThreadSamples, ThreadSpans
    from traceprof.trace.model.marks import Marks
    from traceprof.trace.model.operations import RankKey, RankOperations, Signatures
    from traceprof.trace.model.parts import HowToCollect, Part
    from traceprof.trace.model.ranges import LabelRanges, NamedRanges, RangeTable


Section = NewType("Section", str)
"""The name of a section of a report."""


@dataclass(frozen=True, slots=True)
class SectionData:
    """What a section of a report holds, to be kept by a trace of it; can be pickled."""


@dataclass(frozen=True, slots=True)
class Content:
    """A table of events that a report holds.

    Attributes:
        name: of the table in the report.
        what: it holds, in prose, such as `kernels`.
        num_rows: how many.
    """

    name: str
    what: str
    num_rows: int


@dataclass(frozen=True, slots=True)
class Session:
    """Where and when a report was captured, as far as it tells.

    Attributes:
        host: the machine's name.
        num_cores: its logical processors.
        start_utc_ns: what the machine's clock showed at time 0 of the report, in ns since 1970.
        is_utc: whether the report's times are themselves ns since 1970.
        command_line: what was profiled.
        environment: its environment variables.
        start_text: the UTC time at which the capture began, as the report writes it.
        end_ns: when the capture ended, in the report's own time; events may end a little later.
    """

    host: str | None
    num_cores: int | None
    start_utc_ns: int | None
    is_utc: bool
    command_line: tuple[str, ...]
    environment: Mapping[str, str]
    start_text: str | None = None
    end_ns: int | None = None


class Trace(Protocol):
    """A report that has been opened.

    Attributes:
        path: as it was given.
        format: what kind of file it is, such as `nsight-sqlite`.
        format_name: the program that writes such files, in prose, such as `Nsight Systems`.
        origin: what wrote this file, in prose, after `exported by`.
        product_version: of that program, None where the file does not tell.
        schema_version: of the file, likewise.
        how_to_collect: what to record or export with so that a trace holds a part.
    """

    path: Path
    format: str
    format_name: str
    product_version: str | None
    schema_version: str | None
    how_to_collect: HowToCollect

    @property
    def in_use(self) -> AbstractContextManager[None]:
        """A block in which the file stays open, also where another thread closes it meanwhile."""

    @property
    def origin(self) -> str:
        """What wrote the file, with its version, as `exported by` goes on."""

    def holds(self, part: Part) -> bool:
        """Say whether the report holds a part of what may be recorded."""

    @property
    def operations(self) -> Mapping[RankKey, RankOperations]:
        """GPU operations by rank; empty where the report has none."""

    @property
    def kernel_names(self) -> Mapping[int, str]:
        """Demangled kernel names by the ids that `Kernels.name` holds."""

    @property
    def notes(self) -> Sequence[str]:
        """What a reader of this report should know about its data."""

    @property
    def signatures(self) -> Signatures:
        """Kernels by name, grid and block, as `Kernels.signature` counts them."""

    @property
    def api_names(self) -> Mapping[int, str]:
        """Names of API calls without their version, such as `cudaLaunchKernel`."""

    def api_calls(self, process: int) -> ApiCalls | None:
        """Return the API calls of a process, or None where the report has no API calls."""

    def synchronizations(self, process: int) -> Synchronizations | None:
        """Return the synchronizations of a process, or None where the report has none."""

    def event_records(self, process: int) -> EventRecords | None:
        """Return where a process recorded CUDA events, or None where that is not told."""

    def launch_stalls(self, process: int) -> LaunchStalls | None:
        """Return where launches of a process were blocked, or None where it is not exported."""

    def host_activity(self, process: int) -> HostActivity:
        """Return what the threads of a process that call CUDA did outside of it."""

    def samples(self, process: int) -> ThreadSamples:
        """Return in which functions the threads of a process that call CUDA were sampled."""

    def profiler_overhead(self, process: int) -> ThreadSpans:
        """Return what the profiler itself did in a process, on any of its threads."""

    def communication_calls(self, process: int) -> ProcessCalls:
        """Return who communicated what on the host, as NCCL's ranges and labels tell."""

    @property
    def label_ranges(self) -> Mapping[int, LabelRanges]:
        """The ranges of `instrument` by process, where it has some."""

    @property
    def counters(self) -> Counters:
        """Sampled counters of links; empty where nothing was sampled."""

    @property
    def has_unexported_stalls(self) -> bool:
        """Whether stalls were captured, but left out of the export."""

    def ranges(self, matching: re.Pattern[str]) -> dict[int, NamedRanges]:
        """Return the NVTX ranges by process whose whole name, or part of it, matches."""

    def range_ends(self, process: int) -> tuple[Int64, Int64]:
        """Return when named ranges of a process were over, and which threads ended them.

        Returns:
            int64[n] in no order, int64[n]; those that never ended are left out.
        """

    def range_table(self, process: int) -> RangeTable | None:
        """Return all NVTX ranges of a process, or None where it has none."""

    def marks(self, process: int) -> Marks | None:
        """Return the moments that a process named, or None where it named none."""

    @property
    def thread_names(self) -> Mapping[int, str]:
        """Names of threads, as far as the report tells them."""

    def thread_number(self, thread: int) -> int:
        """Return the operating system's id of a thread, as columns of threads hold it."""

    def longest_ranges(self, limit: int) -> list[str]:
        """Return the names of the longest ranges, to choose a step pattern from."""

    def empty_domain_notes(self) -> list[str]:
        """Say of which domains of ranges, made by the program, nothing was recorded, and why."""

    def gpu_name(self, key: RankKey) -> str | None:
        """Return the name of the rank's GPU where the report tells it."""

    def compute_capability(self, key: RankKey) -> tuple[int, int] | None:
        """Return the compute capability of the rank's GPU, major and minor, where it is told."""

    def gpu_id(self, key: RankKey) -> str | None:
        """Return the uuid of the rank's GPU or its place on the PCI bus, where it is told."""

    def global_rank(self, process: int) -> int | None:
        """Return the rank that the process has in its run, where the report tells it."""

    @property
    def session(self) -> Session:
        """Where and when the report was captured."""

    def num_threads(self, process: int) -> int | None:
        """Return how many threads the process had, or None where the report does not tell."""

    def labelled_rank(self, process: int) -> int | None:
        """Return the rank that the process has in its run, where its labels tell it."""

    def distributed_rank(self, process: int) -> int | None:
        """Return the rank that torch.distributed gave the process, where the report tells it."""

    def contents(self) -> Sequence[Content]:
        """Return the tables of events that are not empty, and how many rows each has."""

    @property
    def gpus(self) -> Sequence[str]:
        """Names of the machine's GPUs."""

    def program(self, process: int) -> str | None:
        """Return the name of the program that a process ran, None where it is not told."""

    @property
    def mpi_processes(self) -> frozenset[int]:
        """The processes that were seen in MPI."""

    def pid(self, process: int) -> int:
        """Return the operating system's id of the process."""

    def close(self) -> None:
        """Release the file."""

    def release(self) -> None:
        """Let go of what can be read again, and most analyses do not need."""

    def reopen(self) -> None:
        """Open the file anew, because another process goes on with what is open so far."""

    @property
    def sections(self) -> tuple[Section, ...]:
        """What is read as a whole when some of it is needed, in the order of need."""

    def read_section(self, section: Section) -> SectionData:
        """Read a section from the file; the trace itself stays as it is.

        Raises:
            TraceFormatError: the file is damaged.
        """

    def keep_section(self, section: Section, data: SectionData) -> None:
        """Keep a section that was read, perhaps elsewhere."""

    def set_section_source(self, source: Callable[[Section], SectionData]) -> None:
        """Have a section that is needed and not kept yet come from there, not from the file."""
