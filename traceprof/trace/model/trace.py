"""Open reports, in any format."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np

from traceprof.intervals import Int64, Mask
from traceprof.structs import Record
from traceprof.trace.model import host
from traceprof.trace.model.communication_calls import NO_MPI_CALLS, MpiCalls, ProcessCalls, rank_of
from traceprof.trace.model.operations import (
    NO_COUNTERS,
    Counters,
    RankKey,
    RankOperations,
    Signatures,
)
from traceprof.trace.model.parts import HowToCollect, Part
from traceprof.trace.model.ranges import LabelRanges, Marks, NamedRanges, RangeTable

NSIGHT_FORMAT, KINETO_FORMAT = FORMATS = ("nsight-sqlite", "kineto-json")
"""The values of `Trace.format`."""

UNREAD = "unread accelerator event"
"""What is in tables of accelerators that are not supported."""


class Content(Record, frozen=True):
    """A table of events that a report holds."""

    name: str  # of the table in the report
    what: str  # its content in words, such as `kernels`
    num_rows: int  # the number of rows


class Session(Record, frozen=True):
    """Where and when a capture was made; None for what is unknown."""

    host: str | None  # the machine's name
    num_cores: int | None  # its logical processors
    start_utc_ns: int | None  # the machine's clock at time 0 of the report, in ns since 1970
    is_utc: bool  # whether the report's times are themselves ns since 1970
    command_line: tuple[str, ...]  # of the profiled program
    environment: Mapping[str, str]  # its environment variables
    start_text: str | None = None  # the UTC time of the capture's start, as the report has it
    # of the capture, in the report's own time; events may end a little later
    end_ns: int | None = None
    # versions of software by its name, and what a profiler recorded beside events
    versions: Mapping[str, str] = MappingProxyType({})


class Trace(Protocol):
    """An open report; what a format does not record has a default.

    Attributes:
        path: as it was given.
        format: the kind of the file, such as `nsight-sqlite`.
        product_version: of that program; None if unknown.
        schema_version: of the file; None if unknown.
        moved: by how many ns operations were moved, by rank.
    """

    path: Path
    format: str
    product_version: str | None
    schema_version: str | None
    moved: Mapping[RankKey, int]

    @property
    def how_to_collect(self) -> HowToCollect:
        """How to record or export each part, from what this report holds of it."""

    @property
    def in_use(self) -> AbstractContextManager[None]:
        """Keep the file open during a block, even if another thread closes it meanwhile."""

    @property
    def origin(self) -> str:
        """The program that wrote the file, with its version, after `exported by`."""

    def holds(self, part: Part) -> bool:
        """Return whether the report holds a part, but for those of `communication_calls`."""

    @property
    def operations(self) -> Mapping[RankKey, RankOperations]:
        """GPU operations by rank; empty if the report has none."""

    def move_operations(self, key: RankKey, by_ns: int) -> None:
        """Move the operations of a rank in time, until the report is closed."""

    @property
    def kernel_names(self) -> Mapping[int, str]:
        """Demangled kernel names by the ids in `Kernels.name`."""

    @property
    def notes(self) -> Sequence[str]:
        """Notes for readers about the data of this report."""

    @property
    def losses(self) -> Sequence[str]:
        """What the recorder itself says of operations that it lost."""
        return ()

    @property
    def signatures(self) -> Signatures:
        """Kernels by name, grid and block, by the numbers in `Kernels.signature`."""

    @property
    def api_names(self) -> Mapping[int, str]:
        """Names of API calls without their version, such as `cudaLaunchKernel`."""

    def calls_any(self, part_of_name: str) -> bool:
        """Return whether the name of one of the API calls contains a text."""
        return any(part_of_name in name for name in self.api_names.values())

    def calls_named(self, calls: host.ApiCalls, is_wanted: Callable[[str], object]) -> Mask:
        """Return which API calls have a wanted name, bool[calls]."""
        names = self.api_names.items()
        return calls.packed_name.isin([key for key, name in names if is_wanted(name)])

    def api_calls(self, process: int) -> host.ApiCalls | None:
        """Return the API calls of a process, or None if the report has no API calls."""

    @property
    def calling_processes(self) -> Collection[int]:
        """The processes with API calls, if these are read anyway."""
        return ()

    def synchronizations(self, process: int) -> host.Synchronizations | None:
        """Return the synchronizations of a process, or None if the report has none."""

    def event_records(self, process: int) -> host.EventRecords | None:
        """Return the recordings of CUDA events in a process, or None if unknown."""

    def launch_stalls(self, process: int) -> host.LaunchStalls | None:
        """Return the blocked launches of a process, or None if they are not exported."""

    def host_activity(self, process: int) -> host.HostActivity:
        """Return the activity of a process's CUDA-calling threads outside of CUDA."""

    def others_ran(self, times_ns: Int64, threads: Int64) -> Mask | None:
        """Return at which times another thread was on a CPU directly before, bool[n].

        Threads of any process count but for some, int64[t]; None without thread switches.
        """
        return None

    def quiet_switches(self, process: int) -> host.ThreadSwitches:
        """Return the switches of a program's threads that make no CUDA calls.

        Those that the driver and the profiler start are left out.
        """
        return host.NO_SWITCHES

    def workers_ran(self, process: int, start_ns: int, end_ns: int) -> Int64:
        """Return how long each worker of a process was on a CPU between two times, in ns.

        A worker is another process without operations on a GPU, of which a thread has the name of
        one of the process's, as forked ones have, or that of a `DataLoader`'s worker. Its thread
        that ran longest counts. Int64[n], empty without thread switches or names.
        """
        return np.empty(0, np.int64)

    def operators(self, process: int) -> host.HostCode | None:
        """Return the operators of a framework that a process ran, or None if unknown."""
        return None

    def python_functions(self, process: int) -> host.HostCode | None:
        """Return the functions of Python that a process ran, or None if they are unknown."""
        return None

    @property
    def has_unread_accelerator(self) -> bool:
        """True if an accelerator worked whose events are not read."""
        return False

    def samples(self, process: int) -> host.ThreadSamples:
        """Return the samples of a process's CUDA-calling threads."""
        return host.NO_SAMPLES

    def profiler_overhead(self, process: int) -> host.ThreadSpans:
        """Return the profiler's own work in a process, on any of its threads."""
        return host.NO_SPANS

    def communication_calls(self, process: int) -> ProcessCalls:
        """Return the communication calls on the host, from NCCL's ranges and labels."""

    @property
    def label_ranges(self) -> Mapping[int, LabelRanges]:
        """The ranges of `instrument` by process."""

    @property
    def counters(self) -> Counters:
        """Sampled counters of links; empty if nothing was sampled."""
        return NO_COUNTERS

    @property
    def has_unexported_stalls(self) -> bool:
        """True if stalls were captured, but left out of the export."""
        return False

    def ranges(
        self,
        matching: re.Pattern[str],
        process: int | None = None,
        until: re.Pattern[str] | None = None,
    ) -> dict[int, NamedRanges]:
        """Return the NVTX ranges with a match in their name, by process: of one, or of all.

        Args:
            matching: searched for in each name.
            process: the requested one; None for all.
            until: names end where it first matches; the rest need not be read.
        """

    def range_ends(self, process: int) -> tuple[Int64, Int64]:
        """Return the ends of named ranges of a process that are over, and the threads of these.

        Int64[n] each, in no order.
        """

    def range_table(self, process: int) -> RangeTable:
        """Return all NVTX ranges of a process."""

    def marks(self, process: int) -> Marks:
        """Return the marks of a process."""

    @property
    def thread_names(self) -> Mapping[int, str]:
        """Known names of threads."""

    def thread_number(self, thread: int) -> int:
        """Return the operating system's id of a thread, given its id in columns."""

    def longest_ranges(self, limit: int) -> list[str]:
        """Return the names of the longest ranges, to choose a step pattern from."""

    def empty_domain_notes(self) -> list[str]:
        """Return notes on domains of ranges of the program without any record."""
        return []

    def gpu_name(self, key: RankKey) -> str | None:
        """Return the name of the rank's GPU, if known."""

    def compute_capability(self, key: RankKey) -> tuple[int, int] | None:
        """Return the compute capability of the rank's GPU, major and minor, if known."""

    def num_sms(self, key: RankKey) -> int | None:
        """Return the number of multiprocessors of the rank's GPU, if the report has it."""

    def gpu_id(self, key: RankKey) -> str | None:
        """Return the uuid of the rank's GPU or its place on the PCI bus, if known."""
        return None

    def global_rank(self, process: int) -> int | None:
        """Return the rank of the process in its run, if known."""
        rank = self.labelled_rank(process)
        return self.distributed_rank(process) if rank is None else rank

    @property
    def session(self) -> Session:
        """The place and the time of the capture."""

    def num_threads(self, process: int) -> int | None:
        """Return the number of threads of the process, or None if unknown."""

    def labelled_rank(self, process: int) -> int | None:
        """Return the rank of the process in its run from its labels, if known."""
        return rank_of(self.label_ranges[process].kinds) if process in self.label_ranges else None

    def distributed_rank(self, process: int) -> int | None:
        """Return the rank that torch.distributed gave the process, if known."""
        return None

    @property
    def world_size(self) -> int | None:
        """The number of processes of the run, if torch.distributed gave it."""
        return None

    def contents(self) -> Sequence[Content]:
        """Return the tables of events that are not empty, with their numbers of rows."""

    @property
    def gpus(self) -> Sequence[str]:
        """Names of the machine's GPUs."""

    def program(self, process: int) -> str | None:
        """Return the name of the program of a process; None if unknown."""

    @property
    def mpi_processes(self) -> frozenset[int]:
        """The processes with calls of MPI."""
        return frozenset()

    def mpi_calls(self, process: int) -> MpiCalls:
        """Return the calls of MPI by which a process communicates."""
        return NO_MPI_CALLS

    def pid(self, process: int) -> int:
        """Return the operating system's id of the process."""

    def close(self) -> None:
        """Release the file."""

    def load(self) -> None:
        """Read what most analyses need; without this, each part is read on first use.

        Raises:
            TraceFormatError: the file is damaged.
        """
        return

    def release(self) -> None:
        """Release data that can be read again and that most analyses do not need."""
        return

    def unload(self) -> None:
        """Release all data that can be read again, which those of many reports add up to."""
        self.release()

    def reopen(self) -> None:
        """Open the file again on its next use, because another process continues with this one."""
        return
