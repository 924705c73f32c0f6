"""Hand-made gaps between operations of a GPU, and the causes that are measured for them."""

from pathlib import Path

from tests.reference.host_evidence import Evidence
from tests.reference.idle_causes import RankIdle
from tests.reference.nsight_export import Export
from tests.support.builders import TraceBuilder, global_tid
from tests.support.opened import ranks_of
from traceprof.host.idle_causes import idle_causes
from traceprof.run.opening import Window

US, MS = 1_000, 1_000_000
# Every export begins with a kernel that was launched before it began and ends at 10 ms.
END = 10 * MS


def begun() -> TraceBuilder:
    return TraceBuilder().kernel(9 * MS, END, launch=(9 * MS - 20 * US, 9 * MS - 10 * US))


def switched(trace: TraceBuilder, *rows: tuple[int, int], tid: int | None = None) -> TraceBuilder:
    """Have a thread go off the CPU (0) and come back (1) at times."""
    for time, is_in in rows:
        thread = global_tid(tid=tid)
        trace.raw("SCHED_EVENTS", start=time, cpu=0, isSchedIn=is_in, globalTid=thread)
    return trace


def os_call(trace: TraceBuilder, name: str, start: int, end: int) -> TraceBuilder:
    trace.raw("StringIds", id=90_000, value=name)
    return trace.raw("OSRT_API", start=start, end=end, globalTid=global_tid(), nameId=90_000)


def found(
    trace: TraceBuilder, folder: Path, window: tuple[int, int] | None = None
) -> dict[str, float]:
    """The causes that have time, in us where they are whole ones, without `_ns`.

    The reference must say the same.
    """
    path = trace.write(folder)
    export = Export(path)
    result = RankIdle(export, Evidence(export), *min(export.ranks)).answer(window)
    assert sum(result.causes.values()) == result.idle_ns
    for piece, after in zip(result.pieces, result.pieces[1:], strict=False):
        assert piece.start < piece.end <= after.start
    with ranks_of(path) as (rank, *_):
        causes = idle_causes(rank).within(Window(*window) if window else rank.window)
    assert {f"{cause.value}_ns": ns for cause, ns in causes.items()} == result.causes
    return {name.removesuffix("_ns"): ns / US for name, ns in result.causes.items() if ns}


def late(trace: TraceBuilder, gap: int, call: int = 10 * US, **how: object) -> TraceBuilder:
    """End the gap with a kernel whose launch call returns as it starts."""
    start = END + gap
    return trace.kernel(start, start + MS, launch=(start - call, start), **how)  # type: ignore[arg-type]
