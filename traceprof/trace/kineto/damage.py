"""Traces that are no JSON, or another tool's: repairs, names and remedies.

Versions of PyTorch before 2.1 write backslashes in names and call stacks as they are, and most
versions write quotes in names as they are. Such an event is repaired, but only after it was found
to be no JSON, only in its texts, and only where there is one way to read it: numbers never change.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from traceprof.trace.kineto.file import COPY_AGAIN

if TYPE_CHECKING:
    from traceprof.errors import TraceFormatError
    from traceprof.trace.kineto.file import TraceFile

RECORD_AGAIN = "record again with torch.profiler"
RECORD_ESCAPED = (
    "record again with with_stack=False, or with a newer PyTorch: 2.1 and later escape backslashes"
)
MAX_REPAIR_BYTES = 1 << 20
"""The longest event that is repaired."""

_MAX_ENDS = 32  # places at which a damaged event may end
_SAMPLE_BYTES = 1 << 20
_BLANK = r"[ \t\r\n]*"
_END = re.compile(rf"\}}(?={_BLANK}(?:,{_BLANK}\{{|\]))")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')
# The members that writers put before the name and the one after it, all of simple values.
_UP_TO_NAME = re.compile(
    rf'\{{{_BLANK}(?:"\w+"{_BLANK}:{_BLANK}(?:"[^"\\]*"|[\d.]+){_BLANK},{_BLANK})*'
    rf'"name"{_BLANK}:{_BLANK}(?=")'
)
_NAME = re.compile(rf'"name"{_BLANK}:{_BLANK}"')
_AFTER_NAME = re.compile(rf'"(?={_BLANK},{_BLANK}"(?:ph|pid)"{_BLANK}:)')
_PROFILE_AGAIN = "record the program with `traceprof record`, or with torch.profiler"
_COUNTERS = "cuda_profiler_range"
_COUNTERS_ONLY = (
    "it holds the counters of CUPTI's range profiler, which runs kernels one by one: no timeline",
    "record again without profiler_metrics",
)
# Texts that only one tool writes into its traces.
_TOOLS = {
    "the profiler of TensorFlow or JAX": rb'"/(?:device:|host:|job:)',
    "VizTracer": rb'"viztracer_metadata"|"cat": ?"(?:fee|FEE)"',
    "speedscope": rb"speedscope\.app/file-format-schema",
    "Chrome's DevTools": rb"devtools\.timeline",
    "the Ascend profiler": rb"Ascend Hardware",
    "rocprofv3": rb"rocprofiler-sdk",
    "rocprof": rb'"BeginNs" ?:',
    "Horovod": rb'"NEGOTIATE_',
    "PyTorch's profiler before 1.8.1": rb'"pid": ?"(?:CPU|CUDA) functions"',
    "`nsys export --type=json`": rb'"(?:TraceProcessEvent|CudaEvent|NvtxEvent)"',
}


def has_end(text: str, start: int) -> bool:
    """Return whether an event may end anywhere after a place of the text."""
    return _END.search(text, start) is not None


def repaired(text: str, start: int) -> tuple[str, int] | None:
    """Repair the texts of an event that is no JSON.

    Args:
        text: of the document, a character for each byte.
        start: the place at which the event begins.

    Returns:
        The event as JSON, and the place at which it ends in `text`; None if it cannot be repaired.
    """
    ends = _END.finditer(text, start, start + MAX_REPAIR_BYTES)
    for _, found in zip(range(_MAX_ENDS), ends, strict=False):
        event = _STRING.sub(_escaped, _with_escaped_name(text[start : found.end()]))
        try:
            value = json.loads(event, strict=False, object_pairs_hook=_unique)
        except (ValueError, RecursionError):
            continue
        return (event, found.end()) if isinstance(value, dict) else None
    return None


def escaped_at(text: str, place: int) -> str | None:
    """Return the text with escaped backslashes in the string around a place; None without one."""
    for found in _STRING.finditer(text):
        if place < found.end():
            escaped = _escaped(found)
            is_new = found.start() < place and escaped != found[0]
            return text[: found.start()] + escaped + text[found.end() :] if is_new else None
    return None


def _unique(members: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object's members; a name that holds quotes would show as members twice.

    Raises ValueError: two members of one name.
    """
    unique = dict(members)
    if len(unique) < len(members):
        raise ValueError(members)
    return unique


def _escaped(string: re.Match[str]) -> str:
    """Escape backslashes of a string in which one escapes nothing; those before quotes stay."""
    written = string[0]
    if "\\" not in written or all(found[1] for found in _ESCAPE.finditer(written)):
        return written
    return '"' + re.sub(r'\\(?!")', r"\\\\", written[1:-1]) + '"'


def _with_escaped_name(event: str) -> str:
    """Escape the name of an event where it is no JSON and can end at one place only."""
    begin = _UP_TO_NAME.match(event)
    if begin is None:
        return event
    ends = [found.start() for found in _AFTER_NAME.finditer(event, begin.end() + 1)]
    if len(ends) != 1:
        return event
    name = event[begin.end() + 1 : ends[0]]
    if has_end(name, 0) or _NAME.search(name):  # the name of another event, whose begin is lost
        return event
    try:
        json.loads(f'"{name}"', strict=False)
    except json.JSONDecodeError:
        return event[: begin.end()] + json.dumps(name, ensure_ascii=False) + event[ends[0] + 1 :]
    return event


def without_events(file: TraceFile, *, is_cut: bool, unread: frozenset[str]) -> TraceFormatError:
    """Return the error of a trace without one complete event that is read.

    Args:
        file: of the trace.
        is_cut: whether its document ends in the middle.
        unread: categories of events that are not read.
    """
    if is_cut:
        return file.damaged("it is cut short before its first event is complete", COPY_AGAIN)
    if _COUNTERS in unread:
        return file.damaged(*_COUNTERS_ONLY)
    sample = b""
    for piece in file.pieces():
        sample += piece
        if len(sample) >= _SAMPLE_BYTES:
            break
    for tool, mark in _TOOLS.items():
        if re.search(mark, sample):
            return file.damaged(f"it was written by {tool}, not by torch.profiler", _PROFILE_AGAIN)
    return file.damaged("JSON that holds no complete event of torch.profiler's", RECORD_AGAIN)
