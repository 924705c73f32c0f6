"""The communication call that a process was in when the capture ended, and may hang in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.guard import optional
from traceprof.structs import Record
from traceprof.trace.model.communication_calls import OPERATIONS
from traceprof.trace.model.special_values import OPEN_END
from traceprof.units import duration, size_text

if TYPE_CHECKING:
    from traceprof.trace.model.communication_calls import CommunicationCalls
    from traceprof.trace.model.trace import Trace


class OpenCall(Record, frozen=True):
    """A communication call that had not returned when the capture ended.

    Attributes:
        text: the call in prose, such as `AllReduce (26.2 MB, group 0)`.
        start_ns: when it was called, in the report's own time.
        length_ns: from its start to the end of the capture, None if unknown.
    """

    text: str
    start_ns: int
    length_ns: int | None

    def sentence(self, ranks: str) -> str:
        """Return a sentence that says so of some ranks.

        Args:
            ranks: in prose, such as `rank 3`.
        """
        since = f"{self.start_ns // 10**9}.{self.start_ns % 10**9 // 1000:06d} s"
        length = "" if self.length_ns is None else f", for {duration(self.length_ns)}"
        return (
            f"{ranks}: the last open call is {self.text}, since {since}{length}: it had not"
            " returned when the capture ended. Where other ranks went on, this one hangs in it"
        )


@optional("open-calls", otherwise=lambda *_: None)
def last_open_call(trace: Trace, process: int) -> OpenCall | None:
    """Return the last communication call that a process entered and had not left at the end.

    Returns:
        None if all calls returned.

    Raises:
        TraceFormatError: the report is damaged.
    """
    calls = trace.communication_calls(process)
    sources = (calls.labelled, calls.nccl)
    end_ns = trace.session.end_ns
    if end_ns is not None and any((source.start_ns >= end_ns).any() for source in sources):
        end_ns = None  # the capture went on after the end that the report gives
    candidates = [
        (*last, source)
        for source in sources
        if (last := _last_open(source, OPEN_END if end_ns is None else end_ns)) is not None
    ]
    if not candidates:
        return None
    start_ns, call, source = max(candidates, key=lambda candidate: candidate[0])
    length_ns = None if end_ns is None else max(end_ns - start_ns, 0)
    return OpenCall(_text(source, call), start_ns, length_ns)


def _last_open(calls: CommunicationCalls, end_ns: int) -> tuple[int, int] | None:
    """Return the start of the last range that was open at a time, and the index of its call.

    Nsight ends ranges that are open when the capture ends at that time, or later.
    """
    unfinished = np.flatnonzero(calls.end_ns >= end_ns)
    # The end of a group launches the calls in it, and waits for the other ranks.
    has_members = calls.first_member[1:] > calls.first_member[:-1]
    launch = np.flatnonzero((calls.launch_end_ns >= end_ns) & has_members)
    start = np.concatenate((calls.start_ns[unfinished], calls.launch_start_ns[launch]))
    call = np.concatenate((unfinished, calls.members[calls.first_member[1:][launch] - 1]))
    if len(start) == 0:
        return None
    last = int(np.argmax(start))
    return int(start[last]), int(call[last])


def _text(calls: CommunicationCalls, call: int) -> str:
    facts = []
    if calls.bytes[call] >= 0:
        facts.append(size_text(int(calls.bytes[call])))
    if calls.communicator[call] >= 0:
        name = calls.communicators[int(calls.communicator[call])]
        facts.append(f"communicator {name}" if name.startswith("0x") else f"group {name}")
    if calls.sequence[call] >= 0:
        facts.append(f"call {calls.sequence[call]} of its group")
    operation = OPERATIONS[int(calls.operation[call])]
    return f"{operation} ({', '.join(facts)})" if facts else operation
