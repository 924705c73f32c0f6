"""Sums over rows within a time span: by name, busy and idle; and the events one by one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from dashboards.timeline.detail import event_id
from dashboards.timeline.events import MARK, SOURCES
from dashboards.timeline.tracks import RankTimeline, Track

Rows = Mapping[str, tuple[RankTimeline, Track]]

MAX_NAMES = 100
MAX_LISTED = 200


def statistics(rows: Rows, start_ns: int, end_ns: int) -> dict[str, Any]:
    """Return the time of each name in [start, end), and the busy and idle time of each row.

    Only the part of an event inside the area counts. Rows are given by key. Shares are of the
    time of all events of a source. Marks take no time: their rows are neither busy nor idle.
    """
    # Of each source and name: how many, and their total and longest times in ns.
    by_name: defaultdict[tuple[str, str], tuple[int, int, int]] = defaultdict(lambda: (0, 0, 0))
    of_rows = []
    for key, (timeline, track) in rows.items():
        inside = track.row.within(start_ns, end_ns)
        begin = np.maximum(track.row.start_ns[inside], start_ns)
        length = np.minimum(track.row.end_ns[inside], end_ns) - begin
        limits = np.array([start_ns, end_ns])
        covered = track.row.covered_before(limits, track.row.started_before(limits))
        busy = int(covered[1] - covered[0])
        if track.source != MARK:
            of_rows.append(
                {
                    "row": key,
                    "count": len(inside),
                    "busy": str(busy),
                    "idle": str(end_ns - start_ns - busy),
                }
            )
        events = timeline.events[track.source]
        numbers, *columns = events.by_name(track.index[inside].astype(np.int64), length)
        for number, count, total, longest in zip(
            numbers.tolist(), *(column.tolist() for column in columns), strict=True
        ):
            name = track.source, events.names.label(number)
            known = by_name[name]
            by_name[name] = known[0] + count, known[1] + total, max(known[2], longest)
    whole: Counter[str] = Counter()
    for (source, _), (_, total, _) in by_name.items():
        whole[source] += total
    ordered = sorted(
        by_name.items(), key=lambda item: (SOURCES.index(item[0][0]), -item[1][1], item[0][1])
    )
    return {
        "count": sum(count for count, *_ in by_name.values()),
        "num_names": len(by_name),
        "names": [
            {
                "source": source,
                "name": name,
                "count": count,
                "total": str(total),
                "longest": str(longest),
                "share": total / whole[source] if whole[source] else 0.0,
            }
            for (source, name), (count, total, longest) in ordered[:MAX_NAMES]
        ],
        "rows": of_rows,
    }


def listed(rows: Rows, start_ns: int, end_ns: int) -> dict[str, Any]:
    """Return the first events of [start, end) one by one, by their start."""
    count, entries = 0, []
    for key, (timeline, track) in rows.items():
        running, starting = track.row.in_view(start_ns, end_ns)
        stop = min(starting.stop, starting.start + MAX_LISTED)
        first = np.concatenate((running[:MAX_LISTED], np.arange(starting.start, stop)))
        count += len(running) + starting.stop - starting.start
        starts = track.row.start_ns[first]
        entries += [
            (int(start), key, timeline, track, int(place))
            for start, place in zip(starts.tolist(), first.tolist(), strict=True)
        ]
    entries.sort(key=lambda entry: entry[:2])
    return {
        "count": count,
        "events": [
            {
                "id": event_id(timeline, track.source, int(track.index[place])),
                "row": key,
                "label": timeline.events[track.source].label_of(int(track.index[place])),
                "start": str(start),
                "duration": str(int(track.row.length(place))),
            }
            for start, key, timeline, track, place in entries[:MAX_LISTED]
        ],
    }
