"""The reports of a run in the JSON document, their ranks, and how they belong together."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from traceprof.documents.analysis.rows import record
from traceprof.findings import Count, Fraction, Text, one_of
from traceprof.ranks import lateness
from traceprof.ranks.matching import Unmatched
from traceprof.run.session_clocks import MachineClock
from traceprof.trace.model.trace import FORMATS


class Report(Struct, forbid_unknown_fields=True):
    """A report that was analysed."""

    index: Count
    path: str
    format: Annotated[str, one_of(*FORMATS)]
    product_version: str | None
    schema_version: str | None
    command_line: Annotated[list[str], "Command that was recorded; empty if unknown."]
    recorded: Annotated[list[str], "The optional parts that were recorded."]


class Rank(Struct, forbid_unknown_fields=True):
    """A process on a device, or one without GPU work."""

    rank: Annotated[
        Count,
        "The global rank where the export has it (labels of `instrument` first), otherwise a"
        " running number in (report, pid, device) order.",
    ]
    report: Count
    pid: Annotated[Count, "Process id."]
    device: Annotated[
        int | None, "The CUDA ordinal as the process sees it; null for a process without GPU work."
    ]
    gpu: str | None


class RunRank(Struct, forbid_unknown_fields=True):
    """Place of a rank: host and GPU."""

    rank: Count
    host: str
    gpu_id: Annotated[str | None, "The physical GPU: its UUID, or else its address on the PCI bus."]


@record("report", "run", ...)
class Clock(MachineClock, frozen=True, kw_only=True):
    """Clock of a report's machine, compared with the reference clock."""

    report: Count
    run: Annotated[Count, "Index of the run; 0 is the run of the first report."]


class Matched(Struct, forbid_unknown_fields=True):
    """Operations of a communicator that were matched across ranks."""

    communicator: str | None
    source: Annotated[str, one_of("labels", "communicator", "order", "mpi")]
    ranks: list[Count]
    num_ranks: Annotated[
        Count, "Number of ranks of the communicator, which may be more than were captured."
    ]
    num_operations: Count


@record("rank", "host", "num_operations", "share_last", "late_ns", "uncertainty_ns")
class Lateness(lateness.Lateness, frozen=True, kw_only=True):
    """Lateness of a rank in the operations that it shares with others."""

    rank: Count
    host: str
    share_last: Annotated[
        Fraction, "Share of operations in which it was certainly late, and the last."
    ]


class Wait(Struct, forbid_unknown_fields=True):
    """Time that a rank waited for another one."""

    rank: Count
    for_rank: Count
    wait_ns: Count


class Run(Struct, forbid_unknown_fields=True):
    """Relations between the reports of a run."""

    rank_source: Annotated[
        str,
        one_of("labels", "torch", "nccl", "mpi", "environment", "file name", "order"),
        "Source of the rank numbers.",
    ]
    num_runs: Annotated[
        Count, "Number of runs: 1, unless reports of several runs were given together."
    ]
    ranks: list[RunRank]
    clocks: list[Clock]
    matched: list[Matched]
    unmatched: list[Unmatched]
    lateness: list[Lateness]
    waits: Annotated[list[Wait], "Waits of one rank for another; pairs without waits are left out."]


class Note(Struct, forbid_unknown_fields=True):
    """Note on the data of a report."""

    report: Count
    note: Text


class LostReport(Struct, forbid_unknown_fields=True):
    """A report that could not be analysed while others could: nothing else here includes it."""

    path: str
    reason: str
