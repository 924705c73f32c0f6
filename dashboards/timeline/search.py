"""The search for events: a text in names and labels, and conditions: `AllReduce rank:3 > 1 ms`.

It reads the columns of the analysis, so that no rows need to be made for it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dashboards.timeline import events as ev
from traceprof import intervals
from traceprof.errors import one_line
from traceprof.intervals import BEYOND_NS, Int64
from traceprof.trace.model.special_values import NULL

RankEvents = Mapping[str, ev.Events]

KINDS = {
    "compute": ev.COMPUTE,
    "communication": ev.COMMUNICATION,
    "copy": ev.COPY,
    "copies": ev.COPY,
    "api": ev.HOST,
    "call": ev.HOST,
    "range": ev.NVTX,
    "nvtx": ev.NVTX,
    "mark": ev.MARKS,
    "step": ev.STEPS,
    "operator": ev.OPERATORS,
    "stall": ev.STALLS,
    "place": ev.PLACE,
    "python": ev.PYTHON,
    "sampled": ev.STACK,
}
"""Kinds of rows, by the words that choose them."""

_UNITS_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_LENGTH = re.compile(r"(?:^|(?<=\s))([<>])=?\s*(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s)(?=\s|$)")
_NUMBERS = re.compile(r"(?:^|(?<=\s))(rank|stream):(\d{1,9}(?:,\d{1,9})*)(?=\s|$)")
_KIND = re.compile(rf"(?:^|(?<=\s))kind:({'|'.join(KINDS)})(?=\s|$)")


SQL = "sql:"
"""Before a query in the search field: the events that it selects are searched for."""
_LINE_END = "\N{SYMBOL FOR NEWLINE}"  # the field has one line
_DERIVED = frozenset({ev.PLACE, ev.STALLS, ev.PYTHON, ev.STACK})  # no table has them


@dataclass(frozen=True, slots=True)
class Query:
    """A search; empty conditions always hold."""

    text: str  # in full or short names, or in labels; upper and lower case are equal
    ranks: frozenset[int] = frozenset()  # the event must belong to one of them
    # the event must run on one of them; only GPU operations do
    streams: frozenset[int] = frozenset()
    kinds: frozenset[str] = frozenset()  # the event's row must be of one of them
    longer_ns: float | None = None  # the event must take longer
    shorter_ns: float | None = None  # the event must take less time
    # start and length of what it must be, by rank, int64[k, 2]; -1 for any length; None for all
    intervals: Mapping[int, Int64] | None = None

    @property
    def has_conditions(self) -> bool:
        """True if the text alone does not decide, or is empty."""
        has_length = self.longer_ns is not None or self.shorter_ns is not None
        return bool(self.streams or self.kinds) or has_length or not self.text

    @classmethod
    def of_intervals(cls, of_rank: Mapping[int, Int64]) -> Query:
        """Return the search for the events with these starts and lengths, by rank."""
        return cls("", frozenset(of_rank) or frozenset({-1}), intervals=of_rank)


def in_field(sql: str) -> str:
    """Return the text of the search field for a query."""
    return SQL + sql.strip().replace("\n", _LINE_END)


def in_lines(written: str) -> str:
    """Return the query in the search field."""
    return written.removeprefix(SQL).replace(_LINE_END, "\n").strip()


def parsed(written: str) -> Query:
    """Parse the text of the search field.

    `rank:0,3`, `stream:7`, `kind:copy`, `> 1 ms` and `< 20 us` may stand anywhere.
    """
    numbers: dict[str, set[int]] = {"rank": set(), "stream": set()}
    lengths: dict[str, float | None] = {"<": None, ">": None}
    for what, listed in _NUMBERS.findall(written):
        numbers[what] |= set(map(int, listed.split(",")))
    for sign, number, unit in _LENGTH.findall(written):
        lengths[sign] = float(number) * _UNITS_NS[unit]
    kinds = frozenset(KINDS[word] for word in _KIND.findall(written))
    text = written
    for pattern in (_LENGTH, _NUMBERS, _KIND):
        text = pattern.sub(" ", text)
    # Spaces within names stay as they are.
    text = text if text == written else " ".join(text.split())
    return Query(
        text,
        frozenset(numbers["rank"]),
        frozenset(numbers["stream"]),
        kinds,
        lengths[">"],
        lengths["<"],
    )


_MAX_NAMES = 20
_MAX_COUNTED = 20_000  # PyTorch can number every operation in its range's name


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A place in the order of all events of some ranks: by start, then rank, source, number."""

    start_ns: int  # the start
    rank: int = -1  # the rank's number; -1 for before all that start at that time
    source: int = 0  # index into `SOURCES`
    index: int = 0  # of the event, as its source counts them


_FIRST, _LAST = Place(-BEYOND_NS), Place(BEYOND_NS)


@dataclass(frozen=True)
class _Matches:
    """The events in one part whose names or labels match."""

    rank: int  # the rank's number
    source: int  # index into `SOURCES`
    first: int  # how many events of the source come before the part's
    part: ev.EventPart  # the events
    names: ev.NameTable  # what their names are among
    wanted: Int64  # int64[k], the numbers of the names that match and occur
    count: Int64  # int64[k], how many of the matches have each
    # int64[c], the matches, ascending; None if all events of these names match
    chosen: Int64 | None = None

    @cached_property
    def places(self) -> Int64:
        """The matches, int64[m], ascending."""
        return self.part.places(self.wanted) if self.chosen is None else self.chosen

    @cached_property
    def by_time(self) -> Int64:
        """The matches in order of their starts, int64[m]."""
        if self.part.is_ordered:
            return self.places
        return self.places[np.argsort(self.part.start_ns(self.places), kind="stable")]

    def num_before(self, at: Place) -> int:
        """Return the number of matches before a place."""
        here, there = (self.rank, self.source), (at.rank, at.source)
        within = at.index - self.first if here == there else BEYOND_NS if here < there else 0
        if self.part.is_ordered:  # then only some starts are looked at
            first, stop = map(self.part.started_before, (at.start_ns, at.start_ns + 1))
            return int(np.searchsorted(self.places, min(max(within, first), stop)))
        start = self.part.start_ns(self.places)
        is_before = (start == at.start_ns) & (self.places < within) | (start < at.start_ns)
        return int(np.count_nonzero(is_before))

    def next(self, at: Place, *, backwards: bool) -> Place | None:
        """Return the first match at a place or after it, or the last one before it."""
        number = self.num_before(at) - backwards
        if not 0 <= number < len(self.by_time):
            return None
        index = int(self.by_time[number])
        return Place(self.part.start(index), self.rank, self.source, self.first + index)


def search(
    ranks: Mapping[int, RankEvents], query: Query, at: Place, *, backwards: bool = False
) -> dict[str, Any]:
    """Return the number of matches, and the next one from a place on: `Matches` in types.d.ts.

    After the last match comes the first. Of very many names none is listed.
    """
    parts = list(_matches(ranks, query))
    counts, num_names = _names(parts)
    place = _following(parts, at, backwards=backwards)
    return {
        "count": sum(int(part.count.sum()) for part in parts),
        "num_names": num_names,
        "names": [{"label": label, "count": count} for label, count in counts],
        "next": None
        if place is None
        else {
            "id": f"{place.rank}.{ev.SOURCES[place.source]}.{place.index}",
            "start": str(place.start_ns),
            "number": 1 + sum(part.num_before(place) for part in parts),
        },
    }


def namesake(
    number: int, ranks: Mapping[int, RankEvents], source: str, index: int, *, backwards: bool
) -> str | None:
    """Return the id of the next event of the same name on a rank; after the last comes the first.

    It is the event itself if no other has its name; None if there is no such event.
    """
    here = place_of(ranks, number, source, index)
    if here is None:
        return None
    events, first, parts = ranks[number][source], 0, []
    wanted = events.numbers(np.array([index]))
    for part in events.parts:
        count = np.ones(1, np.int64)
        parts.append(
            _Matches(number, ev.SOURCES.index(source), first, part, events.names, wanted, count)
        )
        first += len(part)
    place = _following(parts, here if backwards else after(here), backwards=backwards)
    return None if place is None else f"{number}.{source}.{place.index}"


def place_of(ranks: Mapping[int, RankEvents], rank: int, source: str, index: int) -> Place | None:
    """Return the place of an event; None if there is no such event."""
    events = ranks.get(rank, {}).get(source)
    first = 0
    for part in events.parts if events is not None else ():
        if index < first + len(part):
            return Place(part.start(index - first), rank, ev.SOURCES.index(source), index)
        first += len(part)
    return None


def after(place: Place) -> Place:
    """Return the place behind an event."""
    return Place(place.start_ns, place.rank, place.source, place.index + 1)


def hits(
    ranks: Mapping[int, RankEvents], query: Query, start_ns: int, end_ns: int, columns: int
) -> list[int]:
    """Return the columns of a view in which some match begins, ascending."""
    borders = intervals.even_limits(start_ns, end_ns, columns)
    is_hit = np.zeros(len(borders) - 1, np.bool_)
    for match in _matches(ranks, query):
        places = match.places
        if match.part.is_ordered:
            limits = [*map(match.part.started_before, (start_ns, end_ns))]
            first, stop = np.searchsorted(places, limits).tolist()
            places = places[first:stop]
        begin = match.part.start_ns(places)
        begin = begin[(begin >= start_ns) & (begin < end_ns)]
        is_hit[np.searchsorted(borders, begin, side="right") - 1] = True
    numbers: list[int] = np.flatnonzero(is_hit).tolist()
    return numbers


MAX_LISTED = 100_000
"""Matches of one list."""
COLUMNS = ("name", "duration", "rank", "step", "bytes", "start", "place")
"""Of a list of matches."""
ORDERS = (*COLUMNS, *(f"-{column}" for column in COLUMNS))
"""By a column; with a minus the largest first."""
_MAX_TEXT = 300  # characters


def listed(
    ranks: Mapping[int, RankEvents], query: Query, steps_at: _StepsAt, order: str, most: int
) -> dict[str, Any]:
    """Return the first matches in an order: `Found` in types.d.ts.

    What has no value in the column of the order comes last. `steps_at` returns the steps of a rank
    at times; an event is of the step in which it begins.
    """
    column = order.removeprefix("-")
    matches = list(_matches(ranks, query))
    columns = [_column(match, steps_at, column, match.places) for match in matches]
    names = {text(key) for keys, text in columns if text for key in np.unique(keys).tolist()}
    place_of = {text: place for place, text in enumerate(sorted(filter(None, names)))}
    chosen = np.empty((4, 0), np.int64)  # key, start, number of the match, and place in its part
    for number, (match, (keys, text)) in enumerate(zip(matches, columns, strict=True)):
        distinct, which = np.unique(keys, return_inverse=True)
        of_text = (place_of.get(text(key) or "", NULL) for key in distinct.tolist() if text)
        values = np.array([*of_text], np.int64) if text else distinct
        values = np.where(values == NULL, BEYOND_NS, values if order == column else -values)[which]
        start = match.part.start_ns(match.places)
        rows = np.stack((values, start, np.full(len(keys), number), match.places))
        chosen = np.concatenate((chosen, rows), axis=1)
        chosen = chosen[:, np.lexsort(chosen[1::-1])[:most]]
    events: list[dict[str, Any]] = [{}] * chosen.shape[1]
    for number in np.unique(chosen[2]).tolist():
        match, at = matches[number], np.flatnonzero(chosen[2] == number)
        index = chosen[3][at]
        written = [_written(*_column(match, steps_at, name, index)) for name in COLUMNS]
        for row, event, *known in zip(at.tolist(), index.tolist(), *written, strict=True):
            key = f"{match.rank}.{ev.SOURCES[match.source]}.{match.first + event}"
            events[row] = {"id": key, **dict(zip(COLUMNS, known, strict=True))}
    for event in events:  # the browser's numbers do not hold all of it
        event["start"] = str(event["start"])
    return {"count": sum(int(match.count.sum()) for match in matches), "events": events}


_Text = Callable[[int], "str | None"]
_StepsAt = Callable[[int, "Int64"], "Int64"]


def _written(keys: Int64, text: _Text | None) -> list[int | str | None]:
    distinct, which = np.unique(keys, return_inverse=True)
    known: list[int | str | None] = [
        (text(key) if text else key) if key != NULL else None for key in distinct.tolist()
    ]
    values = [one_line(name, _MAX_TEXT) if isinstance(name, str) else name for name in known]
    return [values[number] for number in which.tolist()]


def _column(
    match: _Matches, steps_at: _StepsAt, column: str, index: Int64
) -> tuple[Int64, _Text | None]:
    """Return a column of some events, int64[k], `NULL` for no value; and the texts of the keys."""
    part, values = match.part, np.full(len(index), NULL)
    if column == "name":
        return part.name.at(index), match.names.label
    if column == "start":
        values = part.start_ns(index)
    elif column == "rank":
        values = np.full(len(index), match.rank)
    elif column == "bytes" and part.sizes is not None:
        values = part.sizes(index)
    elif column == "place" and part.code is not None:
        place, names = part.code(index)
        return place.astype(np.int64), lambda at: names[at] if at >= 0 else None
    elif column == "duration" and part.kind != ev.MARKS:
        length = part.spans.packed_length.at(index)
        values = np.where(length < BEYOND_NS, length, NULL)  # some were open as the capture ended
    elif column == "step":
        values = steps_at(match.rank, part.start_ns(index))
    return np.where(values < 0, NULL, values) if column == "bytes" else values, None


def _matches(ranks: Mapping[int, RankEvents], query: Query) -> Iterator[_Matches]:
    known: dict[int, Int64] = {}  # by name table: ranks of a report share that of their ranges
    for rank, sources in ranks.items():
        if query.ranks and rank not in query.ranks:
            continue
        for number, source in enumerate(ev.SOURCES):
            events, first = sources.get(source), 0
            if events is None:
                continue
            if id(events.names) not in known:
                known[id(events.names)] = (
                    events.names.matching(query.text)
                    if query.text
                    else np.arange(len(events.names))
                )
            for part in events.parts:
                of_part = _matches_of(part, rank, query, known[id(events.names)])
                if len(of_part[0]):
                    yield _Matches(rank, number, first, part, events.names, *of_part)
                first += len(part)


def _matches_of(
    part: ev.EventPart, rank: int, query: Query, matching: Int64
) -> tuple[Int64, Int64, Int64 | None]:
    numbers, count = part.counted
    named = np.isin(numbers, matching)
    labelled = np.empty(0, np.int64)
    if query.text and part.known_labels is not None:
        labelled = part.known_labels.matching(query.text)
    if not query.has_conditions and len(labelled) == 0:
        return numbers[named], count[named], None
    is_found = np.zeros(len(part), np.bool_)
    is_found[part.places(numbers[named])] = is_found[labelled] = True
    places = _fulfilling(part, query, np.flatnonzero(is_found))
    if query.intervals is not None:
        places = _among(part, query.intervals[rank], places)
    wanted, of_each = np.unique(part.name.at(places), return_counts=True)
    return wanted, of_each, places


def _fulfilling(part: ev.EventPart, query: Query, places: Int64) -> Int64:
    if query.streams:
        of = None if part.streams is None else part.streams.at(places)
        places = places[:0] if of is None else places[np.isin(of, [*query.streams])]
    if query.kinds:
        communicates = False if part.communicates is None else part.communicates()[places]
        kept = np.where(communicates, ev.COMMUNICATION in query.kinds, part.kind in query.kinds)
        places = places[np.broadcast_to(kept, len(places))]
    if query.longer_ns is not None or query.shorter_ns is not None:
        length = part.spans.packed_length.at(places)
        over = -1.0 if query.longer_ns is None else query.longer_ns
        under = np.inf if query.shorter_ns is None else query.shorter_ns
        places = places[(length > over) & (length < under)]
    return places


def _among(part: ev.EventPart, intervals: Int64, places: Int64) -> Int64:
    """Return which events have one of these starts and lengths."""
    if part.kind in _DERIVED:
        return places[:0]
    start = part.start_ns(places)
    is_near = np.isin(start, intervals[:, 0])
    places, start = places[is_near], start[is_near]
    pairs = np.stack((start, part.spans.packed_length.at(places)), axis=1)
    any_length = intervals[intervals[:, 1] < 0, 0]
    return places[np.isin(_pairs(pairs), _pairs(intervals)) | np.isin(start, any_length)]


def _pairs(numbers: Int64) -> npt.NDArray[Any]:
    return np.ascontiguousarray(numbers).view("i8,i8")[:, 0]


def _names(parts: Sequence[_Matches]) -> tuple[list[tuple[str, int]], int]:
    """Return the most frequent names of the matches, with counts; and how many names there are."""
    counts_of: dict[int, tuple[ev.NameTable, Int64]] = {}  # by name table
    for part in parts:
        nothing = np.zeros(len(part.names), np.int64)
        counts_of.setdefault(id(part.names), (part.names, nothing))[1][part.wanted] += part.count
    num_names = sum(int(np.count_nonzero(of_names)) for _, of_names in counts_of.values())
    if num_names > _MAX_COUNTED:
        return [], num_names
    counts: Counter[str] = Counter()
    for names, of_names in counts_of.values():
        for number in np.flatnonzero(of_names).tolist():
            counts[names.label(number)] += int(of_names[number])
    return counts.most_common(_MAX_NAMES), len(counts)


def _following(parts: Sequence[_Matches], at: Place, *, backwards: bool) -> Place | None:
    for start in (at, _LAST if backwards else _FIRST):
        candidates = [part.next(start, backwards=backwards) for part in parts]
        places = [place for place in candidates if place is not None]
        if places:
            return max(places) if backwards else min(places)
    return None
