"""GPU operations of ranks with their event records and stream waits, for references only.

* producer of a wait: the last record of its event in that process that began before the wait did.
* host order: API calls by (start, end, correlation id). An operation, a record and a wait all
  stand in the order of their calls; so does a stream's work.
"""

from dataclasses import dataclass, field
from pathlib import Path

from tests.reference.nsight_export import LOW_24_BITS, Operation, StreamEvent, export_of
from tests.reference.spans import Span, union


@dataclass
class Rank:
    """What one process did on one device; lists in order of start (operations) and of call."""

    process: int
    device: int
    operations: list[Operation] = field(default_factory=list)
    records: list[StreamEvent] = field(default_factory=list)
    waits: list[StreamEvent] = field(default_factory=list)

    @property
    def window(self) -> Span:
        return (min(op.start for op in self.operations), max(op.end for op in self.operations))

    def of_kind(self, *kinds: str) -> list[Operation]:
        return [op for op in self.operations if op.kind in kinds]


def spans_of(operations: list[Operation]) -> list[Span]:
    return union([(op.start, op.end) for op in operations])


def owned(operations: list[Operation], start: int, end: int) -> list[tuple[Operation, list[Span]]]:
    """What each of some operations owns of [start, end): where none that began earlier runs."""
    order = sorted(operations, key=lambda op: (op.start, op.end, op.table, op.copy_kind or 0))
    reached, result = start, []
    for op in order:
        low, high = max(op.start, reached), min(op.end, end)
        result.append((op, [(low, high)] if low < high else []))
        reached = max(reached, op.end)
    return result


def read(path: Path) -> list[Rank]:
    """The ranks of an export, ordered by (pid, device)."""
    export = export_of(path)
    order = sorted(export.ranks, key=lambda key: ((key[0] >> 24) & LOW_24_BITS, key[1], key[0]))
    return [
        Rank(*key, sorted(export.ranks[key], key=lambda op: op[:2]), *export.events[key])
        for key in order
    ]
