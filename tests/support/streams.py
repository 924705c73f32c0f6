"""Event records and stream waits in tiny exports, for tests."""

from itertools import count

from tests.support.builders import TraceBuilder, global_pid

_CORRELATIONS = count(1_000_000)  # no operation of a test has these


def record(
    builder: TraceBuilder, event: int, stream: int, at: int, *, device: int = 0, pid: int = 1000
) -> TraceBuilder:  # fmt: skip
    """Add the record of an event on a stream, by a call at a time that takes no time."""
    return _call("cudaEventRecord_v3020", "CUDA_EVENT", builder, event, stream, at, device, pid)


def wait(
    builder: TraceBuilder, event: int, stream: int, at: int, *, device: int = 0, pid: int = 1000,
    api: str = "cudaStreamWaitEvent_v3020",
) -> TraceBuilder:  # fmt: skip
    """Add a stream's wait for an event, by a call at a time that takes no time."""
    return _call(api, "SYNCHRONIZATION", builder, event, stream, at, device, pid)


def _call(
    api: str, table: str, builder: TraceBuilder, event: int, stream: int, at: int, device: int,
    pid: int,
) -> TraceBuilder:  # fmt: skip
    correlation = next(_CORRELATIONS)
    builder.api(api, at, at, correlation=correlation, pid=pid)
    times = {} if table == "CUDA_EVENT" else {"start": at, "end": at, "syncType": 3}
    return builder.raw(
        f"CUPTI_ACTIVITY_KIND_{table}", deviceId=device, contextId=1, streamId=stream,
        correlationId=correlation, globalPid=global_pid(pid), eventId=event, **times,
    )  # fmt: skip
