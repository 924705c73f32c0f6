"""Host threads of a simulated run as the rows that Nsight Systems would export.

Context switches, samples, and calls of MPI and the operating system.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from sample_traces.simulator import schema_layouts
from sample_traces.simulator.event_model.actions import Sleep
from sample_traces.simulator.machine import (
    LOADING,
    MPI_CALL,
    MPI_COLLECTIVE,
    MPI_POINT_TO_POINT,
    MPI_WORLD,
    OS_CALL,
    PROFILER,
    Process,
)
from traceprof.trace.nsight import schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from sample_traces.simulator.event_model.actions import Thread
    from sample_traces.simulator.event_model.engine import RangeRecord, Result
    from sample_traces.simulator.machine import Machine

    Add = Callable[[str, dict[str, Any]], None]

_SAMPLED_EVERY_NS = 1_000_000
_PYTHON = "/usr/bin/python3.11"
_INTERPRETER = (("_PyEval_EvalFrameDefault", _PYTHON), ("main", _PYTHON))
_DRIVER = ("0x7f4c1b2d14b8", "/usr/lib/x86_64-linux-gnu/libcuda.so.1")
_UNWOUND_BY_FRAMES = 7
_MPI_TABLES = {
    MPI_CALL: schema_layouts.MPI_CALLS,
    MPI_COLLECTIVE: schema_layouts.MPI_COLLECTIVES,
    MPI_POINT_TO_POINT: schema_layouts.MPI_POINT_TO_POINT,
}


def _core(thread: Thread) -> int:
    return 2 * thread.process + thread.number


def global_thread(thread: Thread) -> int:
    """Return the globalTid of a thread."""
    return Process(thread.process).thread(thread.number)


class HostTables:
    """Writes the host tables of a capture."""

    def __init__(self, machine: Machine, string: Callable[[str], int], add: Add) -> None:
        """Prepare to write.

        Args:
            machine: has the set of host tables of the capture.
            string: returns the id of a text.
            add: adds a row to a table.
        """
        self._tables = machine.host_tables
        program = machine.thread_names[0]
        self._program = _INTERPRETER if program == "python" else (("main", f"/opt/{program}"),)
        self._string = string
        self._add = add
        self._num_samples = 0

    def write(self, result: Result) -> None:
        """Write a run."""
        for range_ in result.ranges:
            self._write_call(range_)
        for thread, (start, end) in result.lives.items():
            self._write_switches(result, thread, start, end)
            self._write_samples(result, thread, start, end)

    def _write_call(self, range_: RangeRecord) -> None:
        """Write a call of a library that has a table of its own."""
        domain, name = range_.action.domain, range_.action.name
        row = {"start": range_.start_ns, "end": range_.end_ns}
        row["globalTid"] = global_thread(range_.thread)
        if domain in _MPI_TABLES:
            row |= {} if domain == MPI_CALL else {"commHandle": MPI_WORLD}
            self._add(_MPI_TABLES[domain], {**row, "textId": self._string(name)})
        elif domain == OS_CALL and schema.OS_CALLS in self._tables:
            row |= {"eventClass": schema_layouts.OS_CALL_CLASS, "nameId": self._string(name)}
            self._add(schema.OS_CALLS, {**row, "nestingLevel": 0})
        elif domain == PROFILER:
            row |= {"nameId": self._string(name), "overheadType": 3}
            self._add(schema.PROFILER_OVERHEAD, row)
        elif domain == LOADING:
            kind = schema_layouts.LIBRARY_LOADING[name]
            row |= {"nameId": self._string(name), "eventClass": schema.OVERHEAD_CLASS}
            self._add(schema.OVERHEAD, {**row, "overheadType": kind})

    def _write_switches(self, result: Result, thread: Thread, start: int, end: int) -> None:
        if schema.SWITCHES not in self._tables:
            return
        slept = [
            (record.start_ns, record.end_ns)
            for record in result.host
            if record.thread == thread and isinstance(record.action, Sleep)
        ]
        times = [(start, 1), *((t, i) for span in slept for i, t in enumerate(span)), (end, 0)]
        for time, is_in in times:
            self._add(
                schema.SWITCHES,
                {
                    "start": time,
                    "cpu": _core(thread),
                    "isSchedIn": is_in,
                    "globalTid": global_thread(thread),
                },
            )

    def _write_samples(self, result: Result, thread: Thread, start: int, end: int) -> None:
        """Write a sample of a thread for each millisecond in which it ran."""
        if schema.SAMPLES not in self._tables:
            return
        records = [record for record in result.host if record.thread == thread]
        calls = [call for call in result.calls if call.thread == thread]
        records_starts = [record.start_ns for record in records]
        calls_starts = [call.start_ns for call in calls]
        for time in range(start + _SAMPLED_EVERY_NS, end, _SAMPLED_EVERY_NS):
            chain: tuple[tuple[str, str], ...] = self._program
            record = bisect_right(records_starts, time) - 1
            call = bisect_right(calls_starts, time) - 1
            if record >= 0 and time < records[record].end_ns:
                action = records[record].action
                if isinstance(action, Sleep):
                    continue
                assert action.function is not None  # noqa: S101  (only such are recorded)
                chain = (action.function, *chain)
            elif call >= 0 and time < calls[call].end_ns:
                chain = (_DRIVER, *chain)
            self._write_sample(thread, time, chain)

    def _write_sample(self, thread: Thread, time: int, chain: tuple[tuple[str, str], ...]) -> None:
        self._num_samples += 1
        self._add(
            schema.SAMPLES,
            {
                "id": self._num_samples,
                "start": time,
                "cpu": _core(thread),
                "threadState": schema_layouts.RUNNING,
                "globalTid": global_thread(thread),
                "cpuCycles": 1,
            },
        )
        for depth, (function, module) in enumerate(chain):
            self._add(
                schema.CALL_CHAINS,
                {
                    "id": self._num_samples,
                    "symbol": self._string(function),
                    "module": self._string(module),
                    "unresolved": 1 if function.startswith("0x") else None,
                    "unwindMethod": _UNWOUND_BY_FRAMES,
                    "stackDepth": depth,
                },
            )
