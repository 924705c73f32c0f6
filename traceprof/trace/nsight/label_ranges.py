"""The ranges that `instrument` made: everything in the NVTX domain `traceprof`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceprof import labels
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.call_labels import number_of
from traceprof.trace.nsight.nvtx_events import OPEN_END, events_of
from traceprof.trace.nsight.rows import check_few_processes, check_times

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from traceprof.intervals import Int64
    from traceprof.labels import Label
    from traceprof.trace.sqlite.database import Database

# All calls and steps differ in their running number; without it they are of few kinds.
_RUNNING_NUMBER = re.compile(r" seq=(\d+)(?![^ \0])")
_STEP = re.compile(rf"(?<![^\0]){labels.STEP} \d+(?![^\0])")
_BETWEEN = "\0"  # which ends NVTX's texts: they are strings of C


@dataclass(frozen=True, slots=True)
class LabelRanges:
    """The NVTX ranges that `instrument` made in one process, ordered by thread, start, nesting.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n]; the largest int64 where the range was still open at the capture's end.
        thread: int64[n], the thread that opened it (Nsight's globalTid).
        nests: bool[n], whether it was pushed and popped, so that it nests with others of its
            thread; else it was started and ended, perhaps by another thread.
        text: int64[n], indices into `texts`.
        texts: the distinct texts.
        kind: int64[n], indices into `kinds`.
        kinds: the distinct labels, without running numbers (`seq`), steps with the number 0.
    """

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    nests: npt.NDArray[np.bool_]
    text: Int64
    texts: Sequence[str]
    kind: Int64
    kinds: Sequence[Label]

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def sequence(self) -> Int64:
        """The running number of each of `texts`, -1 where it tells none: int64[texts]."""
        found = map(_RUNNING_NUMBER.search, self.texts)
        numbers = (number_of(each and each[1]) for each in found)
        return np.fromiter(numbers, np.int64, len(self.texts))


def read_label_ranges(
    database: Database, domains: Mapping[tuple[int, int], str], capture_end_ns: int | None
) -> dict[int, LabelRanges]:
    """Return the ranges of the domain `traceprof` by process (globalPid).

    Args:
        database: the export.
        domains: names of NVTX domains by process and id.
        capture_end_ns: when the capture ended; Nsight lets ranges that are open then end with it,
            or, on a busy machine, up to 0.2 s later, with the program.

    Raises:
        TraceFormatError: the file is damaged.
    """
    ours = sorted({number for (_, number), name in domains.items() if name == labels.DOMAIN})
    events = events_of(database) if ours else None
    if events is None:
        return {}
    rows = np.flatnonzero(events.is_range & events.domain.isin(ours))
    start, end, thread = events.start_ns[rows], events.ends(rows), events.thread.at(rows)
    order = np.lexsort((-end, start, thread))  # which keeps the order of rows that are alike
    rows, start, end, thread = rows[order], start[order], end[order], thread[order]
    names = events.names(rows)
    # A text that goes on behind its end is damaged; an empty one says nothing.
    said = [index for index, name in enumerate(names) if name and _BETWEEN not in name]
    names = [names[index] for index in said]
    rows, start, end, thread = rows[said], start[said], end[said], thread[said]
    domain, event = events.domain.at(rows), events.kind.at(rows)
    end = np.maximum(start, end)
    if capture_end_ns is not None:
        end[(start <= capture_end_ns) & (end >= capture_end_ns)] = OPEN_END
    is_open = end == OPEN_END
    check_times(database, schema.NVTX.name, start, np.where(is_open, start, end))
    process = schema.process_of_thread(thread)
    found = {}
    for each in np.unique(process).tolist():
        own = [
            number for (of, number), name in domains.items() if of == each and name == labels.DOMAIN
        ]
        chosen = np.flatnonzero((process == each) & np.isin(domain, np.array(own, np.int64)))
        if len(chosen):
            text, texts = _numbered([names[index] for index in chosen.tolist()])
            kind_of_text, kinds = _kinds(texts)
            found[each] = LabelRanges(
                start_ns=start[chosen],
                end_ns=end[chosen],
                thread=thread[chosen],
                nests=event[chosen] == schema.NVTX_PUSH_POP,
                text=text,
                texts=texts,
                kind=kind_of_text[text],
                kinds=[labels.parse(kind) for kind in kinds],
            )
    check_few_processes(database, schema.NVTX.name, len(found))
    return found


def _kinds(texts: Sequence[str]) -> tuple[Int64, list[str]]:
    """Return the number of each text's kind, int64[n], and the kinds."""
    without = _RUNNING_NUMBER.sub("", _BETWEEN.join(texts))
    return _numbered(_STEP.sub(labels.step(0), without).split(_BETWEEN))


def _numbered(texts: Sequence[str]) -> tuple[Int64, list[str]]:
    """Return for each text the number of the first that is equal, and the distinct texts."""
    numbers: dict[str, int] = {}
    found = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)
    return found, list(numbers)
