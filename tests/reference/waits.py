"""The host's waits for the GPU and the run-ahead that they take, for tests only."""

import re
from typing import NamedTuple

from tests.reference.nsight_export import Call, Export

WAIT_CALL = re.compile(
    r"cuda(Device|Thread|Stream|Event)Synchronize\Z|cu(Ctx|Stream|Event)Synchronize\Z"
)
COPY_CALL = re.compile(r"cu(da)?Memcpy")
OVERHEAD_NS = 15_000
MIN_BLOCKING_NS = 20_000


class Debt(NamedTuple):
    start: int
    taken_ns: int
    thread: int
    call: Call


def incurred_debts(export: Export, process: int, device: int) -> list[Debt]:
    """The debts of a process's waits as a device of it sees them, by start."""
    passed = {
        call: call.end - call.start
        for call in export.calls.get(process, [])
        if WAIT_CALL.match(call.name)
    }
    for (owner, place), operations in export.ranks.items():
        for op in operations if owner == process else ():
            call = op.call
            if call is None or op.copy_kind is None or not COPY_CALL.match(call.name):
                continue
            length = call.end - call.start
            if "Async" not in call.name or (op.pageable and length > MIN_BLOCKING_NS):
                until = min(op.start, call.end) if place == device else call.end
                passed[call] = max(passed.get(call, 0), until - call.start)
    return sorted(
        Debt(call.start, ns - OVERHEAD_NS, call.thread, call)
        for call, ns in passed.items()
        if ns > OVERHEAD_NS
    )
