"""Summaries of reports and their ranks without their events: small and picklable.

A report may be measured by another process or on another machine, which sends this back.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import field

from traceprof.run.session_clocks import UNNAMED_MACHINES
from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence
    from pathlib import Path

    from traceprof.errors import TraceprofError
    from traceprof.run.open_calls import OpenCall
    from traceprof.run.recognition import ReportIdentity
    from traceprof.run.session_clocks import Clocks
    from traceprof.trace.model.parts import HowToCollect, Part
    from traceprof.trace.model.trace import Content, Session


class RankInfo(Record, frozen=True):
    """The identity of a rank: its report, process and device.

    Attributes:
        rank: the global rank if the report contains it, else a running number.
        report: index of the report in the run.
        process: the process within its report (a number of the trace's own).
        pid: the operating system's process id.
        device: the CUDA ordinal as the process sees it; None for a process without GPU work.
        gpu: the GPU's name, None if unknown.
        gpu_id: the GPU's uuid, else its place on the PCI bus, None if unknown.
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
        """Its report, process and device, which identify it in the run."""
        return self.report, self.process, self.device


class CpuRankGaps(Record, frozen=True):
    """Gaps in the ranges of a process without GPU work.

    Attributes:
        used_gpu: whether they include copies to or from a GPU.
        num_open: number of ranges that were open when the capture ended.
    """

    used_gpu: bool
    num_open: int


class ReportSummary(Record, frozen=True):
    """The origin of a report, and its notes.

    Attributes:
        path: as it was given.
        format: such as `nsight-sqlite`.
        origin: the program that wrote it, in prose, as it follows `exported by`.
        product_version: of the program that wrote it, None if unknown.
        schema_version: of the file, None if unknown.
        how_to_collect: how to record each part that it may lack.
        notes: remarks about its data.
        contents: its tables of events, if it has no rank.
        identity: the facts by which it is assigned to a run.
        rank_numbers: the numbers of the report's ranks, by source.
        cpu_rank_gaps: of each rank without GPU work, by process.
        open_calls: by process, the communication call that it was in when the capture ended.
        recorded: the parts that it holds, of those that distinguish recordings.
        gpus: the names of the GPUs that its processes see.
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
    gpus: tuple[str, ...] = ()

    @property
    def session(self) -> Session:
        """The session in which it was captured."""
        return self.identity.session


class RunSummary(Record, frozen=True, dict=True):
    """The reports of one training run, open or not.

    Attributes:
        reports: in the order given.
        ranks: their ranks, in order of their numbers.
        clocks: the reports' clocks, by their sessions' starts.
        run_numbers: for each report, the number of its run: 0, unless reports of several runs were
            given.
        rank_source: where the ranks' numbers are from: `labels`, `torch`, `nccl`, `mpi`,
            `environment`, `file name`, or `order` if no source has them.
    """

    reports: Sequence[ReportSummary]
    ranks: Sequence[RankInfo]
    clocks: Clocks
    run_numbers: Sequence[int]
    rank_source: str

    def rank_beside(self, rank: int, device: int, gpu_id: str | None) -> int | None:
        """Return the number of the rank on another GPU; None if none or several are there.

        Args:
            rank: the number of a rank that sees the other GPU.
            device: the CUDA ordinal of that GPU as the rank's process sees it.
            gpu_id: of that GPU; None if unknown.
        """
        report, process, machine = self._homes[rank]
        ranks = self._ranks_at.get((report, process, device))
        if ranks is None and gpu_id is not None:
            ranks = self._ranks_at.get((machine, gpu_id))
        return ranks[0] if ranks is not None and len(ranks) == 1 else None

    @cached_property
    def _homes(self) -> dict[int, tuple[int, int, Hashable]]:
        """The report, the process and the machine of each rank."""
        hosts = [
            (number, report if name is None else name)
            for report, (number, name) in enumerate(
                zip(self.run_numbers, self.machines, strict=True)
            )
        ]
        return {rank.rank: (rank.report, rank.process, hosts[rank.report]) for rank in self.ranks}

    @cached_property
    def _ranks_at(self) -> dict[Hashable, list[int]]:
        """The ranks on each GPU, by their place, and by machine and GPU."""
        by_place: dict[Hashable, list[int]] = defaultdict(list)
        for rank in self.ranks:
            by_place[rank.place].append(rank.rank)
            by_place[self._homes[rank.rank][2], rank.gpu_id].append(rank.rank)
        return dict(by_place)

    @property
    def machines(self) -> list[str | None]:
        """The machine of each report, None if that is unknown.

        Reports without its name are of one where each lists the same GPUs, and their ranks use
        different ones of them.
        """
        names = [report.session.host for report in self.reports]
        nameless = {index for index, name in enumerate(names) if name is None}
        listed = {self.reports[index].gpus for index in nameless}
        used = [rank.device for rank in self.ranks if rank.report in nameless]
        if len(listed) == 1 and len(used) == len(set(used)) > 1 and None not in used:
            num_gpus = len(listed.pop())
            if all(device is not None and device < num_gpus for device in used):
                return [UNNAMED_MACHINES[1] if name is None else name for name in names]
        return list(names)

    def how_to_collect(self, part: Part) -> str:
        """Return how to record or export so that reports like the first contain a part."""
        return self.reports[0].how_to_collect(part)


class FailedReport(Record, frozen=True):
    """A report that could not be analysed, while others of its run were.

    Attributes:
        path: as it was given.
        error: why.
    """

    path: Path
    error: TraceprofError
