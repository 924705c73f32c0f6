"""Programs of the simulator with something changed, and what a step of theirs takes."""

import re
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import copyfile
from typing import Any

import numpy as np

from sample_traces.simulator.event_model.actions import (
    Action,
    Busy,
    Call,
    CommunicationWork,
    CopyWork,
    Entry,
    Event,
    KernelWork,
    MemsetWork,
    Pop,
    Push,
    Record,
    Sleep,
    Stream,
    Wait,
)
from sample_traces.simulator.event_model.answers import Ranks
from sample_traces.simulator.event_model.engine import Capture, Node, Result, seen
from sample_traces.simulator.event_model.program_writer import COMPUTE
from sample_traces.simulator.event_model.records import Records
from sample_traces.simulator.machine import HOST_TABLES, SESSION_START_NS, Machine
from sample_traces.simulator.nsight_writer import PRODUCTS, NsightWriter
from sample_traces.simulator.scenarios.setup import Setup
from tests.support.traces import analysis_of
from traceprof.analyses import pipeline_bubble
from traceprof.analysis import Analysis
from traceprof.intervals import Float64, Int64
from traceprof.run.steady_steps import StepUse, step_uses
from traceprof.trace.sqlite.database import quote

Change = Callable[[Sequence[Action]], list[Action]]

_LOADING = ("data_loading_ns", "dataloader next")
# What lies further apart is work of the host's own, and no part of launching.
_MAX_LAUNCHING_NS = 500_000


def recorded(
    setup: Setup, path: Path, result: Result | None = None, *, has_events: bool = True
) -> Path:
    """Write the export of a run, and return where."""
    tables = HOST_TABLES if has_events else frozenset[str]()
    machine = Machine(
        "traceprof test", setup.board, setup.devices_of_processes, host_tables=tables,
        thread_names=setup.thread_names,
    )  # fmt: skip
    with NsightWriter(path, list(PRODUCTS)[-1]) as writer:
        Records(writer, machine).write(setup.run() if result is None else result)
    return path


def step_ns(result: Result, before: Result | None = None, *, counts_first: bool = False) -> float:
    """Return the mean step of a simulated run, over its ranks, of steps amid others.

    How the first one begins is the recording's beginning: a change may let the host get ahead in
    it, which no later step gains again.

    Args:
        result: what happened.
        before: the run whose steady steps count, where it is another one.
        counts_first: whether the first one counts, too: where a wait for input, which ends a step,
            keeps the host from getting ahead.
    """
    numbers, lengths = _steps(result)
    known, of_before = _steps(before or result)
    uses = step_uses(of_before.astype(np.int64), np.zeros(len(known), np.int64), ends_early=True)
    first = 0 if counts_first else 1
    steady = known[first:][uses[first:] == StepUse.STEADY]
    return float(lengths[np.isin(numbers, steady)].mean())


def middle_step_ns(result: Result) -> float:
    """Return the median step of a simulated run, the mean over its ranks."""
    return float(np.median(_steps(result)[1]))


def _steps(result: Result) -> tuple[Int64, Float64]:
    by_number: dict[int, list[int]] = {}
    for row in Ranks(result).breakdown()["steps"]:
        by_number.setdefault(row["step"], []).append(row["window_ns"])
    return np.array(list(by_number)), np.array([np.mean(ns) for ns in by_number.values()])


def faster_links(setup: Setup, factor: float) -> Result:
    """Run it with communication that takes a share of its time."""

    def of(entry: Entry) -> Entry:
        if isinstance(entry, CommunicationWork):
            return replace(entry, transfer_ns=round(factor * entry.transfer_ns))
        if isinstance(entry, CopyWork) and entry.source is not None:
            return replace(entry, work_ns=round(factor * entry.work_ns))
        return entry

    return setup.run(_on_entries(of))


def faster_kernels(setup: Setup, pattern: str, factor: float) -> Result:
    """Run it with kernels of some names that take a share of their time."""

    def of(entry: Entry) -> Entry:
        if isinstance(entry, KernelWork) and re.search(pattern, entry.kernel.name):
            return replace(entry, work_ns=round(factor * entry.work_ns))
        return entry

    return setup.run(_on_entries(of))


def in_half_precision(setup: Setup) -> Result:
    """Run it under autocast at its best: matrices in a 16th of the time, other kernels in half."""

    def of(entry: Entry) -> Entry:
        if not isinstance(entry, KernelWork) or "Adam" in entry.kernel.name:
            return entry
        factor = 1 / 16 if "sgemm" in entry.kernel.name else 1 / 2
        return replace(entry, work_ns=round(factor * entry.work_ns))

    return setup.run(_on_entries(of))


def without_copies(setup: Setup) -> Result:
    """Run it with copies that take no time."""

    def of(entry: Entry) -> Entry:
        if isinstance(entry, CopyWork | MemsetWork):
            return replace(entry, work_ns=0)
        return entry

    return setup.run(_on_entries(of))


def without_slowdown(setup: Setup) -> Result:
    """Run it with kernels that communication does not slow down."""
    return replace(setup, slowdown=type(setup.slowdown)(1)).run()


def without_loading(setup: Setup) -> Result:
    """Run it with the next batch always there."""

    def change(actions: Sequence[Action]) -> list[Action]:
        kept: list[Action] = []
        inside: list[bool] = []
        for action in actions:
            if isinstance(action, Push):
                inside.append(action.name in _LOADING)
            elif isinstance(action, Pop):
                inside.pop()
            if not (isinstance(action, Busy | Sleep) and any(inside)):
                kept.append(action)
        return kept

    return setup.run(change)


def without_stalls(setup: Setup) -> Result:
    """Run it with calls that were held up as long as others of their name take at the median."""
    taken: dict[str, list[int]] = {}
    for host in setup.hosts:
        for action in host.actions:
            if isinstance(action, Call):
                taken.setdefault(action.api, []).append(action.cost_ns)
    usual = {api: int(np.median(costs)) for api, costs in taken.items()}

    def change(actions: Sequence[Action]) -> list[Action]:
        kept = list(actions)
        for place, action in enumerate(actions):
            if isinstance(action, Push) and action.name == "stalled_ns":
                call = actions[place + 1]
                assert isinstance(call, Call)
                kept[place + 1] = replace(call, cost_ns=usual[call.api])
        return kept

    return setup.run(change)


def without_launching(setup: Setup) -> Result:
    """Run it with a host that launches at once."""

    def change(actions: Sequence[Action]) -> list[Action]:
        kept: list[Action] = []
        for action in actions:
            if isinstance(action, Busy) and action.duration_ns < _MAX_LAUNCHING_NS:
                continue
            if isinstance(action, Call) and _is_launch(action):
                kept.append(replace(action, cost_ns=0))
            else:
                kept.append(action)
        return kept

    return setup.run(change)


def _is_launch(call: Call) -> bool:
    """Say whether a call only launches; one that takes long loads its kernel."""
    waits = call.until is not None or call.blocking
    return not waits and call.cost_ns < _MAX_LAUNCHING_NS and "Memcpy" not in call.api


def each_on_its_own_stream(setup: Setup) -> Result:
    """Run it with a stream for every communicator, and every pair that sends, on NCCL's streams.

    Communication of one communicator stays in order, as NCCL keeps it.
    """
    return setup.run(_Apart)


class _Apart(list["Action"]):
    """The actions of a process, its communication taken apart.

    What was put on a stream of communication waits for what that stream was made to wait for
    before, but not for communication of others before; whoever waits for the stream waits for all
    of it.
    """

    def __init__(self, actions: Iterable[Action]) -> None:
        super().__init__()
        self._waits: dict[Stream, list[Wait]] = {}
        self._done: dict[Stream, list[Event]] = {}
        self._ids: dict[object, int] = {}
        for action in actions:
            if isinstance(action, Call):
                entries = [part for entry in action.entries for part in self._of(*entry)]
                self.append(replace(action, entries=tuple(entries)))
            else:
                self.append(action)

    def _of(self, stream: Stream, entry: Entry) -> list[tuple[Stream, Entry]]:
        if stream.id < COMPUTE + 10:
            return [(stream, entry)]
        waits, done = self._waits.setdefault(stream, []), self._done.setdefault(stream, [])
        if isinstance(entry, Wait):
            waits.append(entry)
            return []
        if isinstance(entry, Record):
            join = replace(stream, id=1000 * stream.id)
            awaited, self._done[stream] = [(join, Wait(event)) for event in done], []
            return [*awaited, (join, entry)]
        assert isinstance(entry, CommunicationWork)
        number = self._ids.setdefault((entry.communicator.id, entry.members), len(self._ids) + 1)
        alone, over = replace(stream, id=1000 * stream.id + number), Event()
        done.append(over)
        return [*((alone, wait) for wait in waits), (alone, entry), (alone, Record(over))]


def _on_entries(change: Callable[[Entry], Entry]) -> Change:
    def on_actions(actions: Sequence[Action]) -> list[Action]:
        return [
            replace(
                action, entries=tuple((stream, change(entry)) for stream, entry in action.entries)
            )
            if isinstance(action, Call)
            else action
            for action in actions
        ]

    return on_actions


_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
_WAITS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
_RECORDS = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
_GPU = [f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")]
_WORK = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")


def damaged(path: Path, copy: Path, damage: str) -> int:
    """Write a copy of an export with one of `DAMAGES`, and return how many rows it lacks."""
    copyfile(path, copy)
    copy.chmod(0o644)
    with closing(sqlite3.connect(copy)) as connection, connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        if _RUNTIME not in tables:
            return 0
        return DAMAGES[damage](connection, tables)


def _without_calls(
    connection: sqlite3.Connection, tables: set[str], patterns: Sequence[str]
) -> int:
    """Delete calls by name, with the waits and the records that they made."""
    like = " OR ".join("value LIKE ?" for _ in patterns)
    chosen = f"SELECT id FROM StringIds WHERE {like}"
    ids = f"SELECT correlationId FROM {_RUNTIME} WHERE nameId IN ({chosen})"
    for table in {_WAITS, _RECORDS} & tables:
        connection.execute(f"DELETE FROM {table} WHERE correlationId IN ({ids})", patterns)
    deleted = f"DELETE FROM {_RUNTIME} WHERE nameId IN ({chosen})"
    return connection.execute(deleted, patterns).rowcount


def _without_records(connection: sqlite3.Connection, tables: set[str], which: str) -> int:
    if _RECORDS not in tables:
        return 0
    return connection.execute(f"DELETE FROM {_RECORDS} WHERE {which}").rowcount


def _launch_calls(connection: sqlite3.Connection, tables: set[str]) -> int:
    """Delete those of the thread that makes the second most launches, or all of the only one."""
    work = " UNION ALL ".join(
        f"SELECT correlationId FROM {name}" for name in _WORK if name in tables
    )
    threads = connection.execute(
        f"SELECT globalTid FROM {_RUNTIME} WHERE correlationId IN ({work})"
        " GROUP BY globalTid ORDER BY count(*) DESC LIMIT 2"
    ).fetchall()
    if not threads:
        return 0
    return connection.execute(
        f"DELETE FROM {_RUNTIME} WHERE globalTid = ? AND correlationId IN ({work})", threads[-1]
    ).rowcount


DAMAGES: dict[str, Callable[[sqlite3.Connection, set[str]], int]] = {
    "synchronize calls": partial(_without_calls, patterns=["%Synchronize%"]),
    "stream waits and event records": partial(
        _without_calls, patterns=["%StreamWaitEvent%", "%EventRecord%"]
    ),
    "event records": partial(_without_records, which="TRUE"),
    "half of the records": partial(_without_records, which="rowid % 2"),
    "launch calls of a thread": _launch_calls,
}


def with_late_gpu(path: Path, copy: Path, late_ns: int, drift: float = 0.0) -> Path:
    """Write a copy of an export whose GPU is late on its host's clock, and later and later."""
    copyfile(path, copy)
    copy.chmod(0o644)
    with closing(sqlite3.connect(copy)) as connection, connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        for name in names & {*_GPU}:
            (first_ns,) = connection.execute(f"SELECT MIN(start) FROM {name}").fetchone()
            for column in ("start", "end"):
                connection.execute(
                    f'UPDATE {name} SET "{column}" = "{column}" + ?'
                    f' + CAST(("{column}" - ?) * ? AS INTEGER)',
                    [late_ns, first_ns or 0, drift],
                )
    return copy


def on_one_clock(path: Path, copy: Path) -> Path:
    """Return an export whose GPU is on its host's clock: itself, or a copy as `analyze` moves it.

    The plain references know nothing of clocks.
    """
    with analysis_of(path) as analysis:
        moved_ns = {rank.moved_ns for rank in analysis.run.ranks} - {0}
    return with_late_gpu(path, copy, *moved_ns) if moved_ns else path


LOW_24_BITS = 0xFFFFFF  # of a thread's id; the rest is its process's


def split_by_process(path: Path, folder: Path) -> list[Path]:
    """Write a report for each process that ran kernels, with its own rows and those of nobody."""
    with closing(sqlite3.connect(path)) as database:
        query = "SELECT DISTINCT globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY 1"
        processes = [process for (process,) in database.execute(query)]
    folder.mkdir()
    return [
        _of_process(path, folder / f"process_{number}.sqlite", process)
        for number, process in enumerate(processes)
    ]


def _of_process(path: Path, part: Path, process: int) -> Path:
    shutil.copyfile(path, part)
    with closing(sqlite3.connect(part)) as database:
        tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
        for (table,) in database.execute(tables).fetchall():
            info = database.execute(f"PRAGMA table_info({quote(table)})")
            columns = [column for _, column, *_ in info]
            for column, owner in (
                ("globalPid", "globalPid"),
                ("globalTid", f"globalTid & ~{LOW_24_BITS}"),
            ):
                if column in columns:
                    database.execute(f"DELETE FROM {quote(table)} WHERE ({owner}) <> ?", (process,))
                    break
        database.commit()
    return part


def recorded_apart(
    setup: Setup, result: Result, folder: Path, nodes: Iterable[Node], rng: np.random.Generator
) -> list[Path]:
    """Write the export of each stage on a machine of its own, and return where."""
    paths = []
    for stage, node in enumerate(nodes):
        capture = Capture(node, (stage,), 200_000_000, 0, 1 << 60)
        start = SESSION_START_NS + node.shown(capture.session_ns)
        machine = Machine(
            "traceprof test", setup.board, setup.devices_of_processes, host_tables=HOST_TABLES,
            processes=(stage,), hostname=node.name, session_start_ns=start,
        )  # fmt: skip
        paths.append(folder / f"rank{stage}.sqlite")
        with NsightWriter(paths[-1], list(PRODUCTS)[-1]) as writer:
            Records(writer, machine).write(seen(result, capture, rng))
    return paths


def bubbles(analysis: Analysis) -> list[dict[str, Any]]:
    """Return the metrics of the stages of the first pipeline, in order; none without one."""
    stages = pipeline_bubble.run(analysis.result.measured)
    return [metrics.by_name() for metrics in stages.metrics[0]] if stages.metrics else []
