"""Labels of communication kernels: operation, group or peer, and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceprof.communication.messages import messages
from traceprof.units import size_text

if TYPE_CHECKING:
    from traceprof.communication.messages import Messages
    from traceprof.intervals import Int64
    from traceprof.run.rank import Rank

_UNKNOWN = "Unknown"  # the kind of a kernel whose name does not show it


def label(records: Messages, place: int) -> str | None:
    """Return the label of a kernel: `AllReduce 67 MB`; None if it is unknown.

    Args:
        records: of its rank.
        place: of its message.
    """
    operation = records.operations[int(records.operation[place])]
    if operation == _UNKNOWN:
        return None
    size = f" {size_text(int(records.bytes[place]))}" if records.bytes[place] >= 0 else ""
    return f"{operation}{records.peer_text(place)}{size}"


@dataclass(frozen=True, eq=False)
class MessageLabels:
    """The communication kernels of a rank with the texts by which they can be searched.

    Attributes:
        kernel: int64[n], indices into the rank's kernels, ascending.
        alike: int64[n], the number of the text of each.
        texts: in lower case: the label, the group, the bytes.
    """

    kernel: Int64
    alike: Int64
    texts: tuple[str, ...]

    def matching(self, text: str) -> Int64:
        """Return the kernels whose text contains this one, int64[k], ascending."""
        wanted = text.lower()
        hits = [number for number, known in enumerate(self.texts) if wanted in known]
        return self.kernel[np.isin(self.alike, hits)]


def message_labels(rank: Rank) -> MessageLabels:
    """Return the texts by which a rank's communication kernels can be searched."""
    records = messages(rank)
    order = np.argsort(records.kernel, kind="stable")
    columns = [records.operation, records.bytes, records.communicator, records.group, records.peer,
               records.peer_in_communicator, records.root, records.direction]  # fmt: skip
    alike = np.zeros(len(records), np.int64)
    for column in columns:
        _, value = np.unique(column, return_inverse=True)
        _, alike = np.unique(alike * (len(records) + 1) + value, return_inverse=True)
    _, first = np.unique(alike, return_index=True)
    texts = tuple(_searched(records, place) for place in first.tolist())
    return MessageLabels(records.kernel[order], alike[order], texts)


def _searched(records: Messages, place: int) -> str:
    size = int(records.bytes[place])
    parts = [
        label(records, place),
        records.communicator_name(place),
        records.description(place),
        f"group={records.groups[int(records.group[place])]}" if records.group[place] >= 0 else None,
        f"bytes={size} {size:,} bytes" if size >= 0 else None,
    ]
    return " · ".join(filter(None, parts)).lower()
