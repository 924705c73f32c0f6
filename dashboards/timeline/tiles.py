"""Several rows as JSON of limited size, reduced to the columns of a screen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from dashboards.timeline import rows
from dashboards.timeline.events import COMMUNICATION, COMPUTE, MARKS, OPERATION, label
from dashboards.timeline.rows import Viewport
from dashboards.timeline.tracks import RankTimeline, Track
from traceprof.communication.messages import messages
from traceprof.intervals import Int64, even_limits

MAX_BYTES = 290_000
"""Of a reply: below 300 kB, with room for HTTP's own headers."""

_LABELLED_COLUMNS = 24  # an event narrower than this has no room for its name
_SYMBOL_COLUMNS = 10  # that a mark is wide
_MAX_ALONE = 20_000
_SAMPLED = 16  # events of a block

# What a block and an event take at most, and a row by itself: to guess what fits.
_BLOCK_BYTES, _EVENT_BYTES, _ROW_BYTES = 16, 50, 160


def tiles(
    rows: Mapping[str, tuple[RankTimeline, Track]], start_ns: int, end_ns: int, columns: int
) -> str:
    """Return a view as JSON, in as many columns of the screen as the reply's size permits.

    `{"start": "…", "end": "…", "rows": {KEY: …}}`; of each row, `TileReply` in types.d.ts:

    * `columns`: how many it was cut into, fewer than asked for where it had to be;
    * `column`, `share`, `count`: the blocks: how far each is from the one before, how much of
      it is covered (0 to 1000), how many events it stands for;
    * `begin`, `length`, `name`, `event`: events shown one by one: ns from the view's start and
      ns, both within the view, the number of the name, the index of the event;
    * `names`: names by number, of events that have room for it;
    * `labels`: by event, of those with room that say more: `AllReduce 67 MB`;
    * `categories`: of compute kernels, each once, `category`: the index there of each event's, and
      `main`: of that which takes most of each block.
    """
    allowed = dict.fromkeys(rows, columns)
    views = {key: _view(row, start_ns, end_ns, columns) for key, row in rows.items()}
    needs = {key: _guess(view) for key, view in views.items()}
    budget = MAX_BYTES - 100
    while True:
        # The row that needs most gets fewer columns: what others do not need is for it.
        while sum(needs.values()) > budget:
            key = max(needs, key=lambda key: (allowed[key] > 1, needs[key]))
            if allowed[key] == 1:
                break
            allowed[key] = -(-allowed[key] // 2)
            views[key] = _view(rows[key], start_ns, end_ns, allowed[key])
            needs[key] = _guess(views[key])
        parts = [
            f"{json.dumps(key)}:{_row(*rows[key], view, (start_ns, end_ns), columns)}"
            for key, view in views.items()
        ]
        text = f'{{"start":"{start_ns}","end":"{end_ns}","rows":{{{",".join(parts)}}}}}'  # exact
        if len(text) <= MAX_BYTES or max(allowed.values(), default=1) == 1:
            return text
        budget //= 2


def _view(row: tuple[RankTimeline, Track], start_ns: int, end_ns: int, columns: int) -> Viewport:
    if row[1].samples is not None:
        return row[1].samples.view(start_ns, end_ns, columns)
    if row[1].kind == MARKS:
        return rows.moments(row[1].row, start_ns, end_ns, -(-columns // _SYMBOL_COLUMNS))
    # Where events overlap, more of them may be long than there are columns.
    return rows.view(row[1].row, start_ns, end_ns, columns, min(2 * columns + 2, _MAX_ALONE))


def _guess(view: Viewport) -> int:
    return _ROW_BYTES + _BLOCK_BYTES * len(view.column) + _EVENT_BYTES * len(view.event)


def _row(
    timeline: RankTimeline, track: Track, view: Viewport, span: tuple[int, int], columns: int
) -> str:
    start_ns, end_ns = span
    written: dict[str, Any] = {
        "columns": view.columns,
        "column": np.diff(view.column, prepend=0).tolist(),
        "share": view.share.tolist(),
        "count": view.count.tolist(),
        **{part: [] for part in ("begin", "length", "name", "event")},
        **{part: {} for part in ("names", "labels")},
    }
    if track.samples is not None:
        return json.dumps(written, separators=(",", ":"))
    row, events = track.row, timeline.events[track.source]
    begin = np.maximum(row.start_ns[view.event], start_ns)
    length = np.minimum(row.end_ns[view.event], end_ns) - begin
    index = track.index[view.event].astype(np.int64)
    name = events.numbers(index)
    # Of the screen's columns: a row can be cut into fewer, and into none narrower than 1 ns.
    room = _gaps(view, begin, end_ns) if track.kind == MARKS else length
    roomy = room >= -(-_LABELLED_COLUMNS * (end_ns - start_ns) // columns)
    written |= {
        "labels": _messages(timeline, track, index[roomy]),
        "begin": (begin - start_ns).tolist(),
        "length": length.tolist(),
        "name": name.tolist(),
        "event": index.tolist(),
        **_categories(timeline, track, view, name),
        "names": {
            str(number): events.names.label(number) for number in np.unique(name[roomy]).tolist()
        },
    }
    return json.dumps(written, separators=(",", ":"))


def _categories(
    timeline: RankTimeline, track: Track, view: Viewport, name: Int64
) -> dict[str, Any]:
    if track.kind != COMPUTE:
        return {}
    events = timeline.events[track.source]
    started = track.row.started_before(view.edges_ns)
    first, stop = started[view.column], started[view.column + 1]
    first = np.minimum(first, np.maximum(stop - 1, 0))  # in some, one merely goes on
    # Of many events in a block these are enough to see which category takes most of it.
    sampled = first[:, None] + (stop - first)[:, None] * np.arange(_SAMPLED) // _SAMPLED
    of_sampled = events.numbers(track.index[sampled.ravel()].astype(np.int64))
    numbers, which = np.unique(np.concatenate((name, of_sampled)), return_inverse=True)
    named = [events.names.category(number) or track.kind for number in numbers.tolist()]
    categories = sorted(set(named))
    category = np.array([categories.index(of) for of in named], np.int64)[which]
    time = np.zeros((len(sampled), len(categories)), np.int64)
    block = np.arange(len(sampled))[:, None]
    np.add.at(
        time, (block, category[len(name) :].reshape(sampled.shape)), track.row.length(sampled)
    )
    return {
        "categories": categories,
        "category": category[: len(name)].tolist(),
        "main": time.argmax(axis=1).tolist() if categories else [],
    }


def _gaps(view: Viewport, begin: Int64, end_ns: int) -> Int64:
    """Return the distance from each event to what is shown next: its name stands there."""
    places = np.sort(np.concatenate((begin, view.edges_ns[view.column], [end_ns])))
    gaps: Int64 = places[np.searchsorted(places, begin, side="right")] - begin
    return gaps


def _messages(timeline: RankTimeline, track: Track, index: Int64) -> dict[str, str]:
    if track.kind != COMMUNICATION or track.source != OPERATION or len(index) == 0:
        return {}
    records = messages(timeline.rank)
    place = np.searchsorted(records.kernel, index)
    return {
        str(event): written
        for at, event in zip(place.tolist(), index.tolist(), strict=True)
        if at < len(records) and records.kernel[at] == event
        if (written := label(records, at)) is not None
    }


def strip(timeline: RankTimeline, start_ns: int, end_ns: int, columns: int) -> dict[str, Any]:
    """Return the share of each column that a rank spent on each kind of work, in thousandths."""
    borders = even_limits(start_ns, end_ns, columns)
    shares = {}
    for kind, row in timeline.kind_rows.items():
        covered = np.diff(row.covered_before(borders, row.started_before(borders)))
        shares[kind] = (1000 * covered // np.diff(borders)).tolist()
    return shares
