"""Opens the reports of a run for their events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from traceprof.errors import UsageError
from traceprof.frames import events
from traceprof.frames.results import Part, frame
from traceprof.run import opening
from traceprof.run.host_clock import aligned
from traceprof.run.opening import Run
from traceprof.run.rank import Rank
from traceprof.run.summary import FailedReport, all_failed, close_on_error, try_report
from traceprof.trace.model.trace import Trace
from traceprof.trace.open import AnyPath, open_trace, report_paths
from traceprof.units import reports_text

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Self


class RunFrames:
    """The events of a run as pandas frames, read on demand; a context manager.

    Times are nanoseconds on each report's own clock. Rows are in order of their start. The columns
    are the same for every format; unknown values are missing. `rank` is the number of one; without
    it a frame has the rows of all ranks, one rank after the other. What a process with several
    devices did once, such as its API calls, then appears once, under the first of its ranks.

    Whatever returns a frame raises a `UsageError` if there is no such rank, and a
    `TraceFormatError` if a report is damaged.

    Attributes:
        failed: the reports that could not be read, if others could.
    """

    def __init__(self, run: Run, failed: Sequence[FailedReport] = ()) -> None:
        self._run, self.failed = run, tuple(failed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        names = reports_text([trace.path for trace in self._run.traces])
        return f"<RunFrames of {names}, ranks: {len(self.ranks)}>"

    def close(self) -> None:
        """Release the reports once no thread reads them; existing frames stay valid."""
        self._run.close()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The numbers of the ranks, ascending."""
        return tuple(rank.rank for rank in self._run.ranks)

    @property
    def first_ranks(self) -> tuple[int, ...]:
        """The number of the first rank of each process: ranks of one process share its calls."""
        return tuple(rank.rank for rank in self._processes(None)) if self._run.ranks else ()

    def kernels(self, rank: int | None = None) -> pd.DataFrame:
        """Return the kernels, including communication kernels.

        Returns:
            rank, start_ns, end_ns, duration_ns, stream, name, category, precision, tensor_cores,
            operation (what a communication kernel does), grid and block (`108x1x1`), correlation
            (the number of the API call that launched it), place (the innermost range of the program
            or its framework around that call).
        """
        return self._frame(events.kernels, self._chosen(rank))

    def copies(self, rank: int | None = None) -> pd.DataFrame:
        """Return the memory copies, including copies between GPUs, and the memory sets.

        Returns:
            rank, start_ns, end_ns, duration_ns, stream, kind (h2d, d2h, d2d, p2p, h2h, memset),
            is_unified (pages of unified memory), bytes, source_memory, destination_memory
            (`pageable`, …), source_device, destination_device (of copies between GPUs),
            correlation, place.
        """
        return self._frame(events.copies, self._chosen(rank))

    def api_calls(self, rank: int | None = None) -> pd.DataFrame:
        """Return the CUDA API calls of the rank's process.

        Returns:
            rank, start_ns, end_ns, duration_ns (0 if the capture ended before the call did),
            thread (the operating system's number), name, correlation, place.
        """
        return self._frame(events.api_calls, self._processes(rank))

    def ranges(self, rank: int | None = None) -> pd.DataFrame:
        """Return the NVTX ranges of the rank's process.

        Returns:
            rank, start_ns, end_ns and duration_ns (missing if the range was still open at the
            end of the capture), thread, name, nests (whether it was pushed and popped).
        """
        return self._frame(events.ranges, self._processes(rank))

    def operators(self, rank: int | None = None) -> pd.DataFrame:
        """Return the operators of the rank's process, as recorded by torch.profiler.

        Returns:
            rank, start_ns, end_ns, duration_ns, thread, name, external_id (shared with the API
            calls inside it), sequence_number (shared by forward and backward), flops
            (multiplications and additions, where its shapes are recorded and it has a formula).
        """
        return self._frame(events.operators, self._processes(rank))

    def marks(self, rank: int | None = None) -> pd.DataFrame:
        """Return the moments that the rank's process named: NVTX marks, instant events.

        Returns:
            rank, time_ns, thread (the operating system's number), name.
        """
        return self._frame(events.marks, self._processes(rank))

    def communication(self, rank: int | None = None) -> pd.DataFrame:
        """Return the communication: kernels, and copies between GPUs.

        For a rank without a GPU, it is the operations in the ranges of `instrument`.

        Returns:
            rank, start_ns, end_ns, duration_ns, stream, operation (missing for a copy), name (of
            the kernel, else `peer copy`, or what the range says), communicator, peer and root (by
            labels, in the world), num_ranks, bytes (as NCCL counts a message).
        """
        return self._frame(events.communication, self._chosen(rank))

    def _chosen(self, number: int | None) -> list[Rank]:
        ranks = [rank for rank in self._run.ranks if number is None or rank.rank == number]
        if not ranks:
            there = ", ".join(map(str, self.ranks))
            raise UsageError(
                "cannot make a frame of events",
                f"the reports have no rank{'' if number is None else f' {number}'}",
                f"choose one of the ranks {there}"
                if there
                else "see what they hold: traceprof info",
            )
        return ranks

    def _processes(self, number: int | None) -> list[Rank]:
        """Return the first rank of each process."""
        first: dict[tuple[int, int], Rank] = {}
        for rank in self._chosen(number):
            first.setdefault((rank.report, rank.process), rank)
        return [*first.values()]

    def _frame(self, part: Callable[[Rank], Part], ranks: Sequence[Rank]) -> pd.DataFrame:
        parts = []
        with self._run.in_use():  # another thread may close them meanwhile
            for rank in ranks:
                parts.append(part(rank))
                rank.release()  # a frame of many ranks must not hold them all
        return frame(parts)


def open_run(*paths: AnyPath | Iterable[AnyPath]) -> RunFrames:
    """Open the reports of one run for their events, without analysing them.

    A report that cannot be read is left out, and named in `failed`, if others can.

    Args:
        paths: the reports, one by one or as a list, folders of them, or patterns.

    Raises:
        TraceprofError: no report is given, or none can be read.
    """
    traces: list[Trace] = []
    ranks: list[list[Rank]] = []
    failed: list[FailedReport] = []
    for path in report_paths(paths):
        report = try_report(path, partial(_opened, path))
        if isinstance(report, FailedReport):
            failed.append(report)
        else:
            traces.append(report[0])
            ranks.append(report[1])
    if not traces:
        raise all_failed(failed, "read")
    return RunFrames(opening.assemble_run(traces, ranks), failed)


def _opened(path: Path) -> tuple[Trace, list[Rank]]:
    trace = open_trace(path)
    with close_on_error(trace):
        return trace, aligned(opening.open_report(trace))
