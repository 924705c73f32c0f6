"""NVTX events of an Nsight export: ranges, marks, labels, and names of threads and domains."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from traceprof import labels
from traceprof.intervals import Int64, Mask
from traceprof.structs import Record
from traceprof.trace.columns import Column, ColumnBuilder, pack
from traceprof.trace.grouping import distinct_rows, distinct_values, is_in, numbered
from traceprof.trace.model.ranges import (
    BETWEEN_TEXTS,
    LabelRanges,
    Marks,
    NamedRanges,
    RangeTable,
    labelled,
    name_until,
)
from traceprof.trace.model.special_values import MAX_RANK, NULL, OPEN_END, whole_number
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.rows import (
    check_few_processes,
    check_times,
    of_processes,
    portions,
    read_strings,
)
from traceprof.trace.sqlite.database import Database
from traceprof.trace.sqlite.numbering import NONE, NumberedTexts, Text
from traceprof.trace.sqlite.read_columns import expect_rows, read_columns

RANGES = (schema.NVTX_PUSH_POP, schema.NVTX_START_END)

# Other expressions match a text whatever its digits are.
_DEPENDS_ON_DIGITS = re.compile(r"[0-9]|\(\?P=")
_DIGIT = re.compile(r"[0-9]")
_MANY = 0.25  # of the rows: SQLite finds one in the time in which four are read from pages


class EventColumns(Record, frozen=True):
    """NVTX ranges and names, by rowid, which is not a meaningful order.

    Texts are kept with all digits replaced by 0: those of PyTorch's autograd number each call.
    """

    ahead: Column  # n rowids, minus 0, 1, 2, …: rows are mostly numbered without gaps
    starts: Column  # n times in ns, NULL for none
    length_ns: Column  # n differences of end and start, NULL if the range was still open
    threads: Int64  # all threads (Nsight's globalTid), ascending
    began: Column  # n indices into `threads`, of those that began the ranges
    ended: Column  # n indices into `threads`, of those that ended them
    kind: Column  # n types: of `RANGES`, marks, or names of threads and domains
    domain: Column  # n ids, NULL for none
    text: Column  # n indices into `texts`, -1 if the row has no text of its own
    text_id: Column  # n keys of `strings`, -1 for none
    payload: Column  # n integer payloads, NULL for none
    texts: tuple[str, ...]  # with 0 in the place of each digit; none is empty
    binary: Column  # n indices into `payloads`, -1 without
    json: Column  # n indices into `payloads`, -1 without
    json_id: Column  # n ids of strings, NULL for none
    payloads: tuple[Text, ...]  # extended payloads, bytes or their hexadecimal digits or JSON

    def thread(self, rows: Int64) -> Int64:
        """Return the threads that began these ranges."""
        return self.threads[self.began.at(rows)]

    def end_thread(self, rows: Int64) -> Int64:
        """Return the threads that ended these ranges."""
        return self.threads.take(self.ended.at(rows))

    def rowid(self, rows: Int64) -> Int64:
        """Return the rowids of these ranges."""
        return self.ahead.at(rows) + rows


class Events(Record, frozen=True, dict=True):
    """The NVTX ranges and names of an export."""

    database: Database  # the export
    columns: EventColumns  # the kept data; texts with digits are read again, a few at a time
    capture_end_ns: int | None  # the end of the capture; None if unknown

    @cached_property
    def is_range(self) -> Mask:
        """A mask of the ranges, bool[n]: the others are marks, or names of threads and domains."""
        return self.columns.kind.isin(RANGES) & (self.columns.starts.values != NULL)

    @cached_property
    def is_named(self) -> Mask:
        """A mask of the ranges with a name, bool[n]."""
        has_name: Mask = self.columns.text_id.isin(self.strings)
        has_name |= self.columns.text.values != NONE
        return self.is_range & has_name

    def of_process(self, process: int, chosen: Mask) -> Int64:
        """Return which of the chosen rows, bool[n], a process began, ascending int64[m]."""
        is_of_process = schema.process_of_thread(self.columns.threads) == process
        return np.flatnonzero(is_of_process.take(self.columns.began.kept) & chosen)

    @cached_property
    def strings(self) -> Mapping[int, str]:
        """Names by StringIds.id, for ids in the rows that the export has."""
        return read_strings(self.database, self.columns.text_id.distinct.tolist())

    def ends(self, chosen: Int64) -> Int64:
        """Return the ends of these ranges, `OPEN_END` for open ones."""
        length = self.columns.length_ns.at(chosen)
        return np.where(length == NULL, OPEN_END, self.columns.starts.at(chosen) + length)

    def known_ends(self, chosen: Int64) -> Int64:
        """Return the ends, `OPEN_END` also for ranges that were open at the capture's end.

        Nsight ends these with the capture, or, on a busy machine, up to 0.2 s later.
        """
        start, end = self.columns.starts.at(chosen), self.ends(chosen)
        if self.capture_end_ns is not None:
            end[(start <= self.capture_end_ns) & (end >= self.capture_end_ns)] = OPEN_END
        return end

    def nested(
        self, rows: Int64, is_wanted: Callable[[int, int], bool]
    ) -> tuple[Int64, Int64, Int64, Int64]:
        """Ranges of some domains by thread, start and nesting; with start, end and thread.

        `is_wanted`: tests the globalPid of a process and the id of a domain.
        """
        columns = self.columns
        process = schema.process_of_thread(columns.thread(rows))
        which, pairs = distinct_rows(process, columns.domain.at(rows))
        wanted = np.array([is_wanted(*pair) for pair in pairs], np.bool_)
        rows = rows[wanted[which]]
        start, end, thread = columns.starts.at(rows), self.ends(rows), columns.thread(rows)
        order = np.lexsort((-end, start, thread))  # stable: equal rows keep their order
        return rows[order], start[order], end[order], thread[order]

    def matching(
        self,
        matching: re.Pattern[str],
        process: int | None = None,
        until: re.Pattern[str] | None = None,
    ) -> tuple[Int64, Int64, list[str]]:
        """Ranges with a match in their names, int64[m], and their names as of `numbered_names`.

        `process`: the globalPid whose ranges are searched; None for all. `until`: as there.
        """
        chosen = (
            np.flatnonzero(self.is_range)
            if process is None
            else self.of_process(process, self.is_named)
        )
        minds = _DEPENDS_ON_DIGITS.search(matching.pattern) is not None
        rows = self.named(
            lambda text: (
                bool(matching.search(name_until(text, until)))
                or (minds and _has_digit(name_until(text, until)))
            ),
            lambda name: (
                bool(matching.search(f"{name}0")) or minds
                if labels.takes_number(name)
                else bool(matching.search(name))
            ),
            chosen,
        )
        number, names = self.numbered_names(rows, until)
        is_match = np.array([matching.search(name) is not None for name in names], np.bool_)[number]
        return rows[is_match], number[is_match], names

    def named(
        self, of_text: Callable[[str], bool], of_string: Callable[[str], bool], chosen: Int64
    ) -> Int64:
        """Rows with matching names among the chosen ascending ones, int64[m].

        `of_text`: tests a text with 0 in the place of each digit. `of_string`: tests a name in
        `strings`.
        """
        ids = [key for key, name in self.strings.items() if of_string(name)]
        is_like = np.array([*map(of_text, self.columns.texts), False], np.bool_)
        if not ids and not is_like.any():
            return chosen[:0]
        like = self.columns.text_id.taken(chosen).isin(ids)
        if self.columns.texts:
            text = self.columns.text.at(chosen)
            like = np.where(text == NONE, like, is_like.take(text))
        return chosen.compress(like)

    def names(self, rows: Int64) -> list[str]:
        """Return the names of rows, empty for those without."""
        number, names = self.numbered_names(rows)
        return np.array([*names, ""], object)[number].tolist()

    def numbered_names(
        self, rows: Int64, until: re.Pattern[str] | None = None
    ) -> tuple[Int64, list[str]]:
        """Names of rows as numbers, int64[m]: millions of rows have few names.

        The second result has the names by number; a name may occur twice. Names end where `until`
        begins: digits behind it need not be read.
        """
        columns, known = self.columns, [*self.columns.texts]
        text, text_id = columns.text.at(rows), columns.text_id.taken(rows)
        ids = text_id.distinct
        number = np.where(text == NONE, len(known) + text_id.places_in(ids), text)
        known += [self.strings.get(key, "") for key in ids.tolist()]
        has_digit = np.array(
            [_has_digit(name_until(name, until)) for name in columns.texts], np.bool_
        )
        of_text = np.flatnonzero(text != NONE)
        differ = of_text[has_digit[text[of_text]]]
        own, texts = self._own_texts(columns.rowid(rows[differ]))
        number[differ] = len(known) + own
        known += texts
        takes_number = np.array([*map(labels.takes_number, known)], np.bool_)
        if takes_number.any():
            # Labels whose running number is the payload of their range.
            payload, most = columns.payload.at(rows), 1 << _NUMBER_BITS
            is_label = takes_number[number] & (payload >= 0) & (payload < most)
            keys = number[is_label] << _NUMBER_BITS | payload[is_label]
            distinct, place = np.unique(keys, return_inverse=True)
            number[is_label] = len(known) + place
            known += [f"{known[key >> _NUMBER_BITS]}{key % most}" for key in distinct.tolist()]
        return number, [name_until(name, until) for name in known]

    def _own_texts(self, rowids: Int64) -> tuple[Int64, list[str]]:
        """Texts of rows, with their digits, as numbers, int64[m], and the texts by number."""
        database, table, texts = self.database, schema.NVTX.name, NumberedTexts()
        if not len(rowids):
            return rowids, []
        rowid = database.rowid(table)
        if len(rowids) > _MANY * len(self.columns.text):  # to read the table takes less time
            expect_rows(database, [table])
            chunks = read_columns(database, table, [rowid], {"text": texts})
            parts = [(chunk[rowid], chunk["text"]) for chunk in chunks]
            ids, number = (np.concatenate(column) for column in zip(*parts, strict=True))
            used, number = numbered(number[np.searchsorted(ids, rowids)])
            known = texts.known
            return number, [_decoded(known[place]) for place in used.tolist()]
        text_of_row: dict[int, str] = {}
        for some in portions(rowids.tolist()):
            query = (
                f"SELECT {rowid} AS row, text FROM {table}"  # noqa: S608
                f" WHERE {rowid} IN ({', '.join(map(str, some))})"
            )
            for values in database.query(query, table, {"row": int, "text": str}):
                text_of_row[values["row"]] = values["text"] or ""
        number = texts.of(text_of_row.get(row, "") for row in rowids.tolist())
        return number, [_decoded(text) for text in texts.known]


def _decoded(text: Text) -> str:
    return text if isinstance(text, str) else text.decode("utf-8", "replace")


def read_events(database: Database) -> EventColumns:
    """Read the NVTX ranges and names of an export."""
    table = schema.NVTX.name
    if table not in database.columns:
        return _NO_EVENTS
    database.require(table, schema.NVTX.required)
    rowid, texts = database.rowid(table), NumberedTexts(digits_alike=True)
    columns = [rowid, *schema.NVTX.required]
    columns += [name for name in _NUMBERS if database.has(table, name)]
    payloads = NumberedTexts()
    of_texts = {"text": texts, "binaryData": payloads, "jsonText": payloads}
    of_texts = {name: numbers for name, numbers in of_texts.items() if database.has(table, name)}
    expect_rows(database, [table])
    builders, length = dict[str, ColumnBuilder](), 0
    for chunk in read_columns(database, table, columns, of_texts):
        kind, start, end = chunk["eventType"], chunk["start"], chunk.pop("end")
        chunk["length"] = np.where(end == NULL, NULL, end - start)
        chunk["length"][kind > _LAST_RANGE] = chunk["length"][kind < _FIRST_RANGE] = 0
        if "textId" in chunk:
            chunk["textId"][chunk["textId"] == NULL] = NONE  # closer to the others
        is_kept = is_in(kind, _KINDS) & (chunk["globalTid"] != NULL)
        # The omitted rows would need wider columns.
        kept = chunk if is_kept.all() else {name: values[is_kept] for name, values in chunk.items()}
        if _END_THREAD in kept:  # a missing one is the thread that began the range
            began, ended = kept["globalTid"], kept[_END_THREAD]
            kept[_END_THREAD] = np.where((ended != NULL) & (ended != 0), ended, began)
        kept[rowid] = kept[rowid] - np.arange(length, length + len(kept[rowid]))
        length += len(kept[rowid])
        for name, values in kept.items():
            builders.setdefault(name, ColumnBuilder()).append(values)
    every = dict.fromkeys((*columns, "length"), _NOTHING)
    every |= {name: column.finish() for name, column in builders.items()}
    text = every.get("text") or pack(np.full(length, NONE))
    known = texts.known
    if "" in known:  # no name of its own
        empty = known.index("")
        text = pack(np.where(text.values == empty, NONE, text.values))
    began, ended = every["globalTid"], every.get(_END_THREAD) or every["globalTid"]
    threads = distinct_values(np.append(began.distinct, ended.distinct))
    return EventColumns(
        ahead=every[rowid],
        starts=every["start"],
        length_ns=every["length"],
        threads=threads,
        began=pack(began.places_in(threads)),
        ended=pack(ended.places_in(threads)),
        kind=every["eventType"],
        domain=every.get("domainId") or pack(np.full(length, NULL)),
        text=text,
        text_id=every.get("textId") or pack(np.full(length, NONE)),
        payload=every.get(schema.NVTX_INTEGER) or pack(np.full(length, NULL)),
        texts=tuple(map(_decoded, known)),
        binary=every.get("binaryData") or pack(np.full(length, NONE)),
        json=every.get("jsonText") or pack(np.full(length, NONE)),
        json_id=every.get("jsonTextId") or pack(np.full(length, NULL)),
        payloads=tuple(payloads.known),
    )


_NUMBER_BITS = 40
"""Of a label's running number; the number of its text is above them."""


_FIRST_RANGE, _LAST_RANGE = RANGES
_KINDS = np.array([*RANGES, schema.NVTX_MARK, schema.NVTX_THREAD_NAME, schema.NVTX_DOMAIN])
_END_THREAD = "endGlobalTid"
_NUMBERS = ("domainId", "textId", "jsonTextId", _END_THREAD, schema.NVTX_INTEGER)
_NOTHING = pack(np.empty(0, np.int64))
_NO_EVENTS = EventColumns(
    *(_NOTHING,) * 3, np.empty(0, np.int64), *(_NOTHING,) * 7, (), *(_NOTHING,) * 3, ()
)


def _has_digit(text: str) -> bool:
    return _DIGIT.search(text) is not None


def read_label_ranges(
    events: Events, domains: Mapping[tuple[int, int], str]
) -> dict[int, LabelRanges]:
    """Ranges of the domain `traceprof` by process (globalPid)."""
    ours = sorted({number for (_, number), name in domains.items() if name == labels.DOMAIN})
    if not ours:
        return {}
    columns, database = events.columns, events.database
    rows = np.flatnonzero(events.is_range & columns.domain.isin(ours))
    rows, start, end, thread = events.nested(
        rows, lambda process, domain: domains.get((process, domain)) == labels.DOMAIN
    )
    names = events.names(rows)
    # A text with characters after its end is damaged; an empty one is useless.
    named = [index for index, name in enumerate(names) if name and BETWEEN_TEXTS not in name]
    rows, start, end, thread = rows[named], start[named], end[named], thread[named]
    is_open, end = events.known_ends(rows) == OPEN_END, np.maximum(start, end)
    check_times(database, schema.NVTX.name, start, np.where(is_open, start, end))
    end, nests = np.where(is_open, OPEN_END, end), columns.kind.at(rows) == schema.NVTX_PUSH_POP
    process = schema.process_of_thread(thread)
    processes = distinct_values(process).tolist()
    check_few_processes(database, schema.NVTX.name, len(processes))
    texts = np.array(names, object)[named]
    return {
        number: labelled(start[own], end[own], thread[own], nests[own], texts[own].tolist())
        for number in processes
        for own in (process == number,)
    }


_LONGEST = 1000  # characters of a name
_UNNAMED = "(unnamed)"


def range_table(events: Events, process: int) -> RangeTable:
    """Return all ranges of a process (globalPid), also unnamed ones."""
    rows, columns = events.of_process(process, events.is_range), events.columns
    start, end = columns.starts.at(rows), events.ends(rows)
    is_open, end = end == OPEN_END, np.maximum(start, end)
    check_times(events.database, schema.NVTX.name, start, np.where(is_open, start, end))
    order = np.lexsort((-end, start))
    rows = rows[order]
    name, names = _numbered_names(events, rows)
    nests = columns.kind.at(rows) == schema.NVTX_PUSH_POP
    return RangeTable(start[order], end[order], name, columns.thread(rows), nests, names)


def marks_of(events: Events, process: int) -> Marks:
    """Return the marks of a process (globalPid)."""
    columns = events.columns
    is_mark = columns.kind.isin([schema.NVTX_MARK]) & (columns.starts.values != NULL)
    rows = events.of_process(process, is_mark)
    rows = rows[np.argsort(columns.starts.at(rows), kind="stable")]
    time = columns.starts.at(rows)
    check_times(events.database, schema.NVTX.name, time, time)
    name, names = _numbered_names(events, rows)
    return Marks(time, name, columns.thread(rows), names)


def _numbered_names(events: Events, rows: Int64) -> tuple[Int64, Sequence[str]]:
    """Names of rows as numbers, int64[m]; a text ends at the end of the C string."""
    number, names = events.numbered_names(rows)
    return number, [name.partition("\0")[0][:_LONGEST] or _UNNAMED for name in names]


# Libraries create these when they are loaded, used or not.
_OF_LIBRARIES = {
    "NCCL",
    "MPI",
    "cuBLAS",
    "cuBLASLt",
    "cuDNN",
    "cuFFT",
    "cuSOLVER",
    "cuSPARSE",
    "CCCL",
    "STDPAR",
    "DALI",
    "TensorRT",
    "UCX",
    "NVSHMEM",
}
_MPI_RANK = re.compile(r"MPI Rank (\d{1,9})")


def ranges_named(
    events: Events,
    matching: re.Pattern[str],
    process: int | None = None,
    until: re.Pattern[str] | None = None,
) -> dict[int, NamedRanges]:
    """Push/pop and start/end ranges by process (globalPid) with a match in their names.

    Names end where `until` begins.
    """
    rows, number, names = events.matching(matching, process, until)
    columns = events.columns
    start, end, thread = columns.starts.at(rows), events.known_ends(rows), columns.thread(rows)
    end_thread = columns.end_thread(rows)
    used, place = numbered(number)
    in_order = sorted({names[key] for key in used.tolist()})
    rank = {name: number for number, name in enumerate(in_order)}
    name = np.array([rank[names[key]] for key in used.tolist()], np.int64)[place]
    order = np.lexsort((thread, name, end, start))
    found = NamedRanges(start, end, name, thread, end_thread, in_order).chosen(order)
    return of_processes(found, found.thread)


def range_ends(events: Events, process: int) -> tuple[Int64, Int64]:
    """Ends of named ranges of a process, in no order, and the thread that ended each.

    Ranges that never ended are left out.
    """
    columns = events.columns
    rows = events.of_process(process, events.is_named)
    end = events.known_ends(rows)
    is_over = end != OPEN_END
    rows, end = rows[is_over], end[is_over]
    return np.maximum(end, columns.starts.at(rows)), columns.end_thread(rows)


def thread_names(events: Events) -> list[tuple[int, str]]:
    """Return (globalTid, name) of each thread that NVTX named."""
    rows = np.flatnonzero(events.columns.kind.isin([schema.NVTX_THREAD_NAME]))
    return list(zip(events.columns.thread(rows).tolist(), events.names(rows), strict=True))


def mpi_ranks(thread_names: Iterable[tuple[int, str]]) -> dict[int, set[int]]:
    """MPI ranks by process, from names of threads (globalTid)."""
    ranks: dict[int, set[int]] = defaultdict(set)
    for thread, name in thread_names:
        match = _MPI_RANK.fullmatch(name)
        rank = whole_number(match[1]) if match else None
        if rank is not None and rank <= MAX_RANK:
            ranks[schema.process_of_thread(thread)].add(rank)
    return ranks


def domain_names(events: Events) -> dict[tuple[int, int], str]:
    """Return the names of NVTX domains by process and id."""
    columns = events.columns
    rows = np.flatnonzero(columns.kind.isin([schema.NVTX_DOMAIN]))
    process = schema.process_of_thread(columns.thread(rows)).tolist()
    domain = columns.domain.at(rows).tolist()
    return {
        (number, id_): name
        for number, id_, name in zip(process, domain, events.names(rows), strict=True)
        if id_ != NULL
    }


def silent_domains(events: Events, domains: Mapping[tuple[int, int], str]) -> list[str]:
    """Names of domains without any event in any process, except those of libraries."""
    by_program = {
        key: name
        for key, name in domains.items()
        if name not in _OF_LIBRARIES and name != labels.DOMAIN
    }
    if not by_program:
        return []
    columns = events.columns
    of_program = columns.domain.isin(number for _, number in by_program)
    rows = np.flatnonzero(of_program & columns.kind.isin([*RANGES, schema.NVTX_MARK]))
    process = schema.process_of_thread(columns.thread(rows))
    domain = columns.domain.at(rows)
    _, used = distinct_rows(process, domain)
    heard = {name for key, name in by_program.items() if key in used}
    return sorted({*by_program.values()} - heard)


def silence_note(name: str) -> str:
    """Return a note on a domain without records, with the likely reason and a remedy."""
    return (
        f"nothing was recorded of the NVTX domain {name!r}. If the program opens ranges in it with"
        " Python's package nvtx: from 0.2.12 on it writes none unless the profiler reports that it"
        " records the domain, which Nsight Systems 2023.4 does not; install nvtx==0.2.11, or record"
        " with a newer Nsight Systems"
    )
