"""The ranges of `instrument`: all in the NVTX domain `traceprof`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import labels
from traceprof.trace.grouping import distinct_values, is_in
from traceprof.trace.model.ranges import BETWEEN_TEXTS, labelled
from traceprof.trace.model.special_values import OPEN_END
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.rows import check_few_processes, check_times

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.trace.model.ranges import LabelRanges
    from traceprof.trace.nsight.nvtx.events import Events


def read_label_ranges(
    events: Events, domains: Mapping[tuple[int, int], str]
) -> dict[int, LabelRanges]:
    """Return the ranges of the domain `traceprof` by process (globalPid).

    Args:
        events: of the export.
        domains: names of NVTX domains by process and id.

    Raises:
        TraceFormatError: the file is damaged.
    """
    ours = sorted({number for (_, number), name in domains.items() if name == labels.DOMAIN})
    if not ours:
        return {}
    columns, database = events.columns, events.database
    rows = np.flatnonzero(events.is_range & columns.domain.isin(ours))
    start, end, thread = columns.starts.at(rows), events.ends(rows), columns.thread(rows)
    order = np.lexsort((-end, start, thread))  # stable: equal rows keep their order
    rows, start, end, thread = rows[order], start[order], end[order], thread[order]
    names = events.names(rows)
    # A text with characters after its end is damaged; an empty one is useless.
    named = [index for index, name in enumerate(names) if name and BETWEEN_TEXTS not in name]
    names = [names[index] for index in named]
    rows, start, end, thread = rows[named], start[named], end[named], thread[named]
    domain, event = columns.domain.at(rows), columns.kind.at(rows)
    end = np.maximum(start, end)
    end = np.where(events.known_ends(rows) == OPEN_END, OPEN_END, end)
    is_open = end == OPEN_END
    check_times(database, schema.NVTX.name, start, np.where(is_open, start, end))
    process = schema.process_of_thread(thread)
    by_process = {}
    for number in distinct_values(process).tolist():
        ids = [
            domain_id
            for (owner, domain_id), name in domains.items()
            if owner == number and name == labels.DOMAIN
        ]
        chosen = np.flatnonzero((process == number) & is_in(domain, np.array(ids, np.int64)))
        if len(chosen):
            by_process[number] = labelled(
                start[chosen],
                end[chosen],
                thread[chosen],
                event[chosen] == schema.NVTX_PUSH_POP,
                [names[index] for index in chosen.tolist()],
            )
    check_few_processes(database, schema.NVTX.name, len(by_process))
    return by_process
