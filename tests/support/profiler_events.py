"""Small traces of torch.profiler, event by event: times in microseconds, as their text."""

import gzip
import json
from pathlib import Path
from typing import Any

PID = 4242


def event(
    category: str, name: str, start_us: float, length_us: float, place: tuple[Any, Any], **args: Any
) -> dict[str, Any]:
    """Return a complete event; the place is process and thread, or device and stream."""
    return {
        "ph": "X", "cat": category, "name": name, "pid": place[0], "tid": place[1],
        "ts": start_us, "dur": length_us, "args": args,
    }  # fmt: skip


def kernel(
    start_us: float, end_us: float, *, name: str = "k", number: int = 1, device: int = 0,
    stream: int = 7, **args: Any,
) -> dict[str, Any]:  # fmt: skip
    return event(
        "kernel", name, start_us, end_us - start_us, (device, stream), device=device, stream=stream,
        correlation=number, grid=[1, 2, 3], block=[32, 1, 1], **args,
    )  # fmt: skip


def call(
    start_us: float, end_us: float, *, name: str = "cudaLaunchKernel", number: int = 1,
    thread: int = 1,
) -> dict[str, Any]:  # fmt: skip
    place = PID, thread
    return event("cuda_runtime", name, start_us, end_us - start_us, place, correlation=number)


def annotation(
    name: str, start_us: float, end_us: float, *, thread: int = 1, **args: Any
) -> dict[str, Any]:
    return event("user_annotation", name, start_us, end_us - start_us, (PID, thread), **args)


def instant(
    name: str, time_us: float | None, *, place: tuple[Any, Any] = (PID, 1), **how: Any
) -> dict[str, Any]:
    return {
        "ph": "i", "s": "t", "name": name, "pid": place[0], "tid": place[1], "ts": time_us, **how,
    }  # fmt: skip


def text(events: list[dict[str, Any]], **facts: Any) -> str:
    return json.dumps({"schemaVersion": 1, **facts, "traceEvents": events}, indent=1)


def write(path: Path, events: list[dict[str, Any]], **facts: Any) -> Path:
    data = text(events, **facts).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
