"""What is kept of a report and its ranks when their events are let go of: small, and to be pickled.

A report is measured where it is opened, perhaps by another process or machine. This comes back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from traceprof.errors import TraceprofError
    from traceprof.run.open_calls import OpenCall
    from traceprof.run.recognition import ReportIdentity
    from traceprof.run.session_clocks import Clocks
    from traceprof.trace.model.parts import HowToCollect, Part
    from traceprof.trace.model.trace import Content, Session


@dataclass(frozen=True)
class RankInfo:
    """Which process on which device of which report a rank is.

    Attributes:
        rank: the global rank where the report tells it, else a running number.
        report: index of the report in the run.
        process: the process within its report (a number of the trace's own).
        pid: the operating system's process id.
        device: the CUDA ordinal as the process sees it; None for a process without GPU work.
        gpu: the GPU's name where the report tells it.
        gpu_id: the GPU's uuid, else its place on the PCI bus, where the report tells it.
    """

    rank: int
    report: int
    process: int
    pid: int
    device: int | None
    gpu: str | None
    gpu_id: str | None

    @property
    def place(self) -> tuple[int, int, int | None]:
        """Its report, process and device, which tell it from all other ranks of the run."""
        return self.report, self.process, self.device


class CpuRankGaps(NamedTuple):
    """What the ranges of a process without GPU work leave open.

    Attributes:
        used_gpu: whether they tell of copies to or from a GPU.
        num_open: those that were open when the capture ended.
    """

    used_gpu: bool
    num_open: int


@dataclass(frozen=True)
class ReportSummary:
    """Where a report comes from.

    Attributes:
        path: as it was given.
        format: such as `nsight-sqlite`.
        origin: what wrote it, in prose, after `exported by`.
        product_version: of the program that wrote it, None where it does not tell.
        schema_version: of the file, likewise.
        how_to_collect: what it may lack, should it be needed.
        notes: what to know about its data.
        contents: its tables of events, if it has no rank.
        identity: what tells which run it is of.
        rank_numbers: by source, what it says of the number of each of the report's ranks.
        cpu_rank_gaps: of each rank without GPU work, by process.
        open_calls: by process, the communication call in which it still was at the capture's end.
        recorded: the parts that it holds, of those by which recordings are told apart.
    """

    path: Path
    format: str
    origin: str
    product_version: str | None
    schema_version: str | None
    how_to_collect: HowToCollect
    notes: tuple[str, ...]
    contents: Sequence[Content]
    identity: ReportIdentity
    rank_numbers: Mapping[str, tuple[int | None, ...]]
    cpu_rank_gaps: Mapping[int, CpuRankGaps]
    open_calls: Mapping[int, OpenCall] = field(default_factory=dict)
    recorded: tuple[Part, ...] = ()

    @property
    def session(self) -> Session:
        """Where and when it was captured."""
        return self.identity.session


@dataclass(frozen=True)
class RunSummary:
    """The reports of one training run, whether they are still open or not.

    Attributes:
        reports: in the order given.
        ranks: their ranks, in order of their numbers.
        clocks: the reports' clocks, as their sessions' starts tell them.
        run_numbers: for each report, which run it is of: 0, unless reports of several runs were
            given.
        rank_source: where the ranks' numbers are from: `labels`, `torch`, `nccl`, `mpi`,
            `environment`, `file name`, or `order`, where nothing tells them.
    """

    reports: Sequence[ReportSummary]
    ranks: Sequence[RankInfo]
    clocks: Clocks
    run_numbers: Sequence[int]
    rank_source: str

    def how_to_collect(self, part: Part) -> str:
        """Return what to record or export with so that reports like the first hold a part."""
        return self.reports[0].how_to_collect(part)


@dataclass(frozen=True)
class FailedReport:
    """A report that could not be analysed, while others of its run were.

    Attributes:
        path: as it was given.
        error: why.
    """

    path: Path
    error: TraceprofError
