"""Columns of a table, decoded from the pages of an SQLite file many rows at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from traceprof.intervals import Int64, Mask
from traceprof.structs import Record
from traceprof.trace.model.special_values import NULL
from traceprof.trace.sqlite.numbering import NumberedTexts
from traceprof.trace.sqlite.pages import (
    Bytes,
    Leaves,
    PageFile,
    Unsupported,
    Words,
    factors,
    gathered,
    stored_varints,
    varints,
)

_CREATE = "CREATE TABLE "  # SQLite's stored form, whatever its author wrote
_ROWIDS = ("_rowid_", "rowid", "oid")
_COLUMNS = "SELECT name, type, dflt_value, pk, hidden FROM pragma_table_xinfo(?) ORDER BY cid"


class Layout(Record, frozen=True):
    """A table's place in the file, and the columns wanted of it."""

    root: int  # the topmost page
    # by name, the position among the stored columns; None is the rowid itself
    wanted: dict[str, int | None]
    texts: dict[str, int]  # by name, the position of columns that hold texts or blobs
    defaults: frozenset[int]  # positions whose value in rows older than the column is not NULL


def layout_of(
    connection: sqlite3.Connection,
    table: str,
    columns: Sequence[str] = (),
    texts: Sequence[str] = (),
) -> Layout:
    """Positions of a table's stored columns, all names in the spelling of the schema.

    `columns`: of integers, or the rowid. `texts`: of texts or blobs.

    Raises Unsupported: a column is not an integer or not stored, or the schema is damaged.
    """
    try:
        return _layout(connection, table, columns, texts)
    except (sqlite3.Error, UnicodeError, MemoryError, OverflowError) as error:
        raise Unsupported(str(error)) from error


def _layout(
    connection: sqlite3.Connection, table: str, columns: Sequence[str], texts: Sequence[str]
) -> Layout:
    stored = connection.execute(_COLUMNS, [table]).fetchall()
    if any(hidden for *_, hidden in stored):
        raise Unsupported("generated columns")
    positions = {name: position for position, (name, *_) in enumerate(stored)}
    names = {name.lower() for name in positions}
    rowids = {name for name in _ROWIDS if name not in names}
    # Only integers in a REAL column are read as other values than the stored ones.
    is_integer = tuple("INT" in str(declared).upper() for _, declared, *_ in stored)
    if not all(
        name in rowids or (name in positions and is_integer[positions[name]]) for name in columns
    ):
        raise Unsupported("a column that is not declared as integer")
    if not all(name in positions and not is_integer[positions[name]] for name in texts):
        raise Unsupported("a column of text that is declared as integer")
    rowid = _rowid_position(connection, table, stored)
    places = ((name, rowid if name in rowids else positions[name]) for name in columns)
    return Layout(
        _root(connection, table),
        {name: None if position == rowid else position for name, position in places},
        {name: positions[name] for name in texts},
        frozenset(place for place, row in enumerate(stored) if row[2] is not None),
    )


def _root(connection: sqlite3.Connection, table: str) -> int:
    rows = connection.execute(
        "SELECT type, name, tbl_name, rootpage, sql FROM sqlite_master WHERE lower(name) = ?",
        [table.lower()],
    ).fetchall()
    if len(rows) != 1:
        raise Unsupported("a table that is there twice")
    kind, *names, root, sql = rows[0]
    if kind != "table" or names != [table, table] or not isinstance(root, int):
        raise Unsupported("not a table")
    # SQLite uses the statement, not the names beside it.
    if not isinstance(sql, str) or not sql.startswith(_CREATE) or not _begins_with(sql, table):
        raise Unsupported("a table of another name")
    return root


def _begins_with(sql: str, table: str) -> bool:
    rest = sql.removeprefix(_CREATE)
    quoted = (f'"{table}"', f"[{table}]", f"`{table}`", f"'{table}'")
    after = rest[len(table) : len(table) + 1]
    return rest.startswith(quoted) or (rest.startswith(table) and after in {"(", " ", "\n", "\t"})


def _rowid_position(
    connection: sqlite3.Connection, table: str, stored: Sequence[tuple[object, ...]]
) -> int | None:
    """Position of a column that is an alias of the rowid; None without one."""
    keys = [position for position, row in enumerate(stored) if row[3]]
    if len(keys) != 1 or str(stored[keys[0]][1]).upper() != "INTEGER":
        return None
    # INTEGER PRIMARY KEY DESC is no alias: it has an index.
    query = "SELECT count(*) FROM pragma_index_list(?) WHERE origin = 'pk'"
    (indexes,) = connection.execute(query, [table]).fetchone()
    return None if indexes else keys[0]


# Serial types: the stored form of a column.
_WIDTHS = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)  # bytes of the value
_NULL_TYPE = 0
_REAL_TYPE = 7
_LAST_INTEGER = 9
_RESERVED_TYPES = (10, 11)
_FIRST_TEXT = 12
_CONSTANTS = {_NULL_TYPE: NULL, 8: 0, 9: 1}  # values that the type implies, which are not stored

_MAX_HEADER = 127  # its length is one byte
_MAX_NUMBER_BYTES = 8  # of a type: 56 bits
_NO_TEXT = -1
_FAR = 1 << 40  # beyond any payload

_MAX_FORMATS = 4096
_FEW_FORMATS = 64  # most tables have fewer
_MAX_NEW_FORMATS = 1024  # at once
_SLOT_BITS = 16
_SLOT_SHIFT = np.uint64(64 - _SLOT_BITS)
_WIDEST_GATHER = 128

# What a row of each array holds for a format that is not known or cannot be decoded.
_EMPTY = {
    "_hash_of_number": 0,
    "end": _FAR,
    "payload": 0,
    "_starts": 0,
    "_shifts": 0,
    "_is_stored": 0,
    "_constants": 0,
    "_text_starts": 0,
    "_lengths": _NO_TEXT,
    "_is_blob": 0,
}

# For each length of a header, a mask of its own bytes among 128.
_INSIDE = np.where(np.arange(128) < np.arange(256)[:, None], 255, 0).astype(np.uint8)


class RecordFormats:
    """The formats of the records so far, with the positions of the wanted columns.

    Arrays have a row for each format and a column for each wanted one, in the order of the table.
    Format 0 is that of records that cannot be decoded because their headers are empty.

    Attributes:
        end: int64[formats], the end of the wanted columns in the payload in bytes; _FAR if they
            cannot be decoded.
        payload: int64[formats], the size of all columns in bytes, including unwanted ones.
    """

    def __init__(self, layout: Layout, places: list[int], text_places: list[int]) -> None:
        """Begin without formats; places of integers and of texts in the table ascend."""
        self._places, self._text_places = places, text_places
        self._most = max((*places, *text_places), default=-1) + 1
        self._defaults = layout.defaults & {*places, *text_places}
        self._words = 1  # the compared words of a header: all of them
        self._clear()

    def _clear(self) -> None:
        self._factors = factors(self._words)
        self._numbers: dict[bytes, int] = {}
        self._slots = np.zeros(1 << _SLOT_BITS, np.int64)
        size = (0, len(self._places))
        self._hash_of_number = np.zeros(0, np.uint64)
        self.end, self.payload = np.zeros((2, 0), np.int64)
        self._starts, self._shifts, self._constants = np.zeros((3, *size), np.int64)
        self._is_stored = np.zeros(size, bool)
        size = (0, len(self._text_places))
        self._text_starts, self._lengths = np.zeros((2, *size), np.int64)
        self._is_blob = np.zeros(size, bool)
        self._make_room(_FEW_FORMATS)

    def _make_room(self, more: int) -> None:
        for name, empty in _EMPTY.items():
            held = getattr(self, name)
            room = np.full((more, *held.shape[1:]), empty, held.dtype)
            setattr(self, name, np.concatenate((held, room)))

    def of(self, data: Bytes, headers: Int64) -> Int64 | None:
        """Number of each row's format; None if there are too many of them."""
        lengths = data.take(headers)  # of at least one row: a leaf without any is no leaf here
        longest = min(int(lengths.max()), _MAX_HEADER)
        if longest > 8 * self._words or len(self._numbers) > _MAX_FORMATS - _MAX_NEW_FORMATS - 1:
            self._words = max(self._words, -(-longest // 8))
            self._clear()
        words = gathered(data, headers, 8 * self._words).view(np.uint64)
        words = words.reshape(-1, self._words)
        inside = _INSIDE[:, : 8 * self._words].view(np.uint64)
        if lengths.min() == longest:
            words[:, longest // 8 :] &= inside[longest, longest // 8 :]
        else:
            words &= inside.take(lengths, axis=0)
        hashes: Words = words @ self._factors
        formats = self._slots.take((hashes >> _SLOT_SHIFT).view(np.int64))
        # Another format's number if this one is new, or two share a slot. Two headers with equal
        # hashes of 64 bits are not expected; those that differ in one word never have them.
        rows = np.flatnonzero(self._hash_of_number.take(formats) != hashes)
        if len(rows):
            numbers = self._learn(words.take(rows, axis=0), hashes[rows])
            if numbers is None:
                return None
            formats[rows] = numbers
        return formats

    def _learn(self, words: Words, hashes: Words) -> Int64 | None:
        distinct, firsts, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        if len(distinct) > _MAX_NEW_FORMATS or (words != words.take(firsts[inverse], axis=0)).any():
            return None
        missing = len(self._numbers) + len(distinct) + 1 - len(self.end)
        if missing > 0:
            self._make_room(missing + len(self.end))
        numbers = np.array([self._number(words[first]) for first in firsts])
        self._hash_of_number[numbers] = distinct
        self._slots[(distinct >> _SLOT_SHIFT).view(np.int64)] = numbers
        return numbers[inverse]

    def _number(self, words: Words) -> int:
        header = words.tobytes()
        if header not in self._numbers:
            number = self._numbers[header] = len(self._numbers) + 1
            self._decode_header(number, header)
        return self._numbers[header]

    def _decode_header(self, number: int, header: bytes) -> None:
        fields = _fields(header)
        if fields is None or any(place >= len(fields) for place in self._defaults):
            return
        serial, start = fields[-1] if fields else (_NULL_TYPE, header[0])
        self.payload[number] = start + _width(serial)
        length = end = fields[: self._most][-1][1] if fields else header[0]
        for order, place in enumerate(self._places):
            serial, start = fields[place] if place < len(fields) else (_NULL_TYPE, end)
            if serial > _LAST_INTEGER or serial == _REAL_TYPE:
                return
            self._starts[number, order] = start
            self._shifts[number, order] = 64 - 8 * _WIDTHS[serial] if _WIDTHS[serial] else 0
            self._is_stored[number, order] = _WIDTHS[serial] > 0
            self._constants[number, order] = _CONSTANTS.get(serial, 0)
            end = start + _WIDTHS[serial]
        for order, place in enumerate(self._text_places):
            serial, start = fields[place] if place < len(fields) else (_NULL_TYPE, 0)
            if _NULL_TYPE < serial < _FIRST_TEXT:
                return
            if serial:
                size = (serial - _FIRST_TEXT) // 2
                self._text_starts[number, order] = start
                self._lengths[number, order] = size
                self._is_blob[number, order] = serial % 2 == 0
                end = max(end, start + size)
        self.end[number] = max(end, length)

    def texts(self, order: int, headers: Int64, formats: Int64) -> tuple[Int64, Int64, Mask]:
        """Beginnings of a column's texts, their sizes (-1: NULL), and which are blobs.

        `order`: of the column among those of texts. `headers`: the beginnings of the rows.
        """
        begin = headers + self._text_starts[:, order].take(formats)
        return begin, self._lengths[:, order].take(formats), self._is_blob[:, order].take(formats)

    def values(self, data: Bytes, headers: Int64, formats: Int64) -> list[Int64]:
        """Wanted integer columns of records, int64[n] each.

        `headers`: the beginnings of the records in the pages.
        """
        if not self._places:
            return []
        used = np.flatnonzero(np.bincount(formats))
        is_stored = self._is_stored[used].any(axis=0)
        columns: dict[int, Int64] = {}
        for order in np.flatnonzero(~is_stored).tolist():
            constants = _property(self._constants[:, order], used, formats)
            columns[order] = np.broadcast_to(constants, len(headers)).copy()
        orders = np.flatnonzero(is_stored)
        starts = self._starts[np.ix_(used, orders)]
        for group in _groups(starts) if len(orders) else ():
            begins = headers + _property(self._starts[:, orders[group.start]], used, formats)
            offsets = starts[0, group] - starts[0, group.start]
            width = int(offsets[-1]) + 8
            block = gathered(data, begins, width)
            for order, offset in zip(orders[group].tolist(), offsets.tolist(), strict=True):
                words = np.ndarray((len(headers),), ">i8", block, offset, (width,))
                columns[order] = self._column(words.astype(np.int64), order, used, formats)
        return [columns[order] for order in range(len(self._places))]

    def _column(self, words: Int64, order: int, used: Int64, formats: Int64) -> Int64:
        """Column whose values are the first bytes of these words, if stored."""
        words >>= _property(self._shifts[:, order], used, formats)
        if not self._is_stored[used, order].all():
            is_stored = _property(self._is_stored[:, order], used, formats)
            constants = _property(self._constants[:, order], used, formats)
            np.copyto(words, constants, where=~is_stored)
        return words


def _width(serial: int) -> int:
    return (serial - _FIRST_TEXT) // 2 if serial >= _FIRST_TEXT else _WIDTHS[serial]


def _property(of_format: npt.NDArray[Any], used: Int64, formats: Int64) -> npt.NDArray[Any]:
    """Property of each record's format, as one number if it is equal for all."""
    values = of_format[used]
    return values[:1] if (values == values[0]).all() else of_format.take(formats)


def _groups(starts: Int64) -> Iterator[slice]:
    """Column runs: columns side by side, at the same distances in all formats.

    `starts`: int64[formats, columns], the beginning of each.
    """
    distances = np.diff(starts, axis=1)
    is_same = (distances == distances[0]).all(axis=0)
    first = 0
    for order in range(1, starts.shape[1]):
        if not is_same[order - 1] or starts[0, order] - starts[0, first] > _WIDEST_GATHER:
            yield slice(first, order)
            first = order
    yield slice(first, starts.shape[1])


def _fields(header: bytes) -> list[tuple[int, int]] | None:
    """Serial type and place in the payload of each column of a row.

    None if the header is incomplete, or not in SQLite's form.
    """
    length = header[0]
    if not 1 <= length <= _MAX_HEADER:
        return None
    fields: list[tuple[int, int]] = []
    at, start = 1, length
    while at < length:
        serial, first = 0, at
        while True:
            # SQLite's numbers end after nine bytes; none of a column's type is as long.
            if at >= min(length, len(header)) or at - first == _MAX_NUMBER_BYTES:
                return None
            serial = serial << 7 | header[at] & 0x7F
            at += 1
            if header[at - 1] < 0x80:
                break
        fields.append((serial, start))
        if serial in _RESERVED_TYPES or start > _FAR:
            return None
        start += _width(serial)
    return fields


# Large enough to make the cost per call small, small enough to stay in the cache.
_WINDOW_BYTES = 2 << 20

_MAX_PAYLOAD = 1 << 28
_NO_ROWIDS = np.empty(0, np.int64)  # if they are not requested


class Chunk(Record, frozen=True):
    """Consecutive rows of a table."""

    first: int  # the rowid of the first one
    last: int  # the rowid of the last one
    count: int  # the number of rows
    # int64[count] for each, `NULL` for NULL, and for texts their numbers; None if SQLite has to
    # read these rows: one has a value of another type than integer or text, or has it on an
    # overflow page
    columns: dict[str, Int64] | None


def decode_columns(
    descriptor: int,
    layout: Layout,
    texts: Mapping[str, NumberedTexts],
    *,
    window_bytes: int | None = None,
) -> Iterator[Chunk]:
    """A table's rows in order of rowid.

    `descriptor`: of the file. `texts`: by column, the object that numbers its texts.
    `window_bytes`: of the pages that are decoded at once; None for the usual number.

    Raises Unsupported: the rows from here on cannot be read.
    """
    pages = PageFile(descriptor)
    leaves = pages.leaves(layout.root)
    at_once = max((window_bytes or _WINDOW_BYTES) // pages.page_size, 1)
    decoder = _Decoder(pages, layout, texts, min(at_once, len(leaves.numbers)))
    for first in range(0, len(leaves.numbers), at_once):
        chunk = decoder.decode(leaves, first, first + at_once)
        if chunk is not None:
            yield chunk


class _Decoder:
    def __init__(
        self, file: PageFile, layout: Layout, texts: Mapping[str, NumberedTexts], at_once: int
    ) -> None:
        self._file = file
        self._text_places, self._texts = layout.texts, texts
        places = sorted({place for place in layout.wanted.values() if place is not None})
        text_places = sorted(layout.texts.values())
        order = {place: order for order, place in enumerate(places)}
        self._order = {
            name: None if place is None else order[place] for name, place in layout.wanted.items()
        }
        self._has_stored = bool(places or text_places)
        self._formats = RecordFormats(layout, places, text_places)
        self._text_order = {place: order for order, place in enumerate(text_places)}
        self._data = file.empty(at_once)
        # The part of a large payload that stays on the page.
        self._most_local = file.usable - 35
        self._least_local = (file.usable - 12) * 32 // 255 - 23

    def decode(self, leaves: Leaves, first: int, end: int) -> Chunk | None:
        """Rows of some leaves; None if there are none."""
        numbers = leaves.numbers[first:end]
        self._file.read(numbers, self._data)
        cells, counts = self._file.leaf_cells(self._data, len(numbers))
        if not counts.all():
            if len(leaves.numbers) == 1:
                return None
            raise Unsupported("a page without cells")
        payloads, payload_bytes = varints(self._data, cells)
        keys = cells + payload_bytes
        rowid_bytes, limits = self._check_order(keys, counts, leaves.highest, first)
        headers = keys + rowid_bytes
        local = self._local(payloads)
        if (self._file.left_on_page(cells) < headers - cells + local).any():
            raise Unsupported("a cell that leaves its page")
        columns = self._columns(keys, headers, payloads, local)
        return Chunk(*limits, len(keys), columns)

    def _check_order(
        self, keys: Int64, counts: Int64, highest: Int64, first: int
    ) -> tuple[Int64, tuple[int, int]]:
        """Check that rowids ascend, and that SQLite would find each on its page.

        `keys`: the position of each rowid. `counts`: the number of rowids on each page. `highest`:
        of all pages, the greatest possible rowid on each. `first`: the index of the first of these
        pages among all.

        Returns the size of each rowid in bytes, int64[n] or [1]; the first one and the last.
        """
        stored, lengths = stored_varints(self._data, keys)
        descends = (stored[1:] <= stored[:-1]).any()
        if len(lengths) > 1:
            rowids, lengths = varints(self._data, keys)
            descends = (rowids[1:] <= rowids[:-1]).any()
        ends = counts.cumsum()
        firsts, _ = varints(self._data, keys[ends - counts])
        lasts, _ = varints(self._data, keys[ends - 1])
        above = highest[max(first - 1, 0) : first + len(counts) - 1]
        begins, upto = firsts[first == 0 :], highest[first : first + len(counts)]
        if descends or (begins <= above).any() or (lasts > upto).any():
            raise Unsupported("rows out of order")
        return lengths, (int(firsts[0]), int(lasts[-1]))

    def _local(self, payloads: Int64) -> Int64:
        """Number of bytes of each payload that are on the row's page."""
        if ((payloads < 0) | (payloads >= _MAX_PAYLOAD)).any():
            raise Unsupported("a row too large")
        if (payloads <= self._most_local).all():
            return payloads
        least = self._least_local
        kept = least + (payloads - least) % (self._file.usable - 4)
        kept[kept > self._most_local] = least
        return np.where(payloads <= self._most_local, payloads, kept)

    def _columns(
        self, keys: Int64, headers: Int64, payloads: Int64, local: Int64
    ) -> dict[str, Int64] | None:
        """Wanted columns of some rows; None if SQLite has to read them.

        Of each row, `keys`: the position of its rowid. `headers`: the beginning of its record.
        `payloads`: the size of the record in bytes. `local`: the part of it on the row's page.
        """
        rowids = varints(self._data, keys)[0] if None in self._order.values() else _NO_ROWIDS
        if not self._has_stored:
            return dict.fromkeys(self._order, rowids)
        formats = self._formats.of(self._data, headers)
        if formats is None or (self._formats.end.take(formats) > local).any():
            return None
        if (self._formats.payload.take(formats) != payloads).any():
            return None  # SQLite calls them malformed
        stored = self._formats.values(self._data, headers, formats)
        columns = {
            name: rowids if order is None else stored[order] for name, order in self._order.items()
        }
        for name, place in self._text_places.items():
            where = self._formats.texts(self._text_order[place], headers, formats)
            numbers = self._texts[name].of_stored(self._data, *where)
            if numbers is None:
                return None
            columns[name] = numbers
        return columns
