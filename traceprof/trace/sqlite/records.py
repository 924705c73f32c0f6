"""Columns of a table, decoded from the pages of an SQLite file many rows at a time."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from traceprof.structs import Record
from traceprof.trace.sqlite.pages import PageFile, Unsupported, stored_varints, varints
from traceprof.trace.sqlite.record_formats import RecordFormats

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from traceprof.intervals import Int64
    from traceprof.trace.sqlite.layout import Layout
    from traceprof.trace.sqlite.numbered_rows import NumberedRows
    from traceprof.trace.sqlite.numbered_texts import NumberedTexts
    from traceprof.trace.sqlite.pages import Leaves

# Large enough to make the cost per call small, small enough to stay in the cache.
_WINDOW_BYTES = 2 << 20

_NO_TEXTS: Mapping[str, NumberedTexts] = MappingProxyType({})
_NO_ROWS: Mapping[str, NumberedRows] = MappingProxyType({})
_MAX_PAYLOAD = 1 << 28
_NO_ROWIDS = np.empty(0, np.int64)  # if they are not requested


class Chunk(Record, frozen=True):
    """Consecutive rows of a table.

    Attributes:
        first: the rowid of the first one.
        last: the rowid of the last one.
        count: the number of rows.
        columns: int64[count] for each, `NULL` for NULL, and for texts their numbers; None if
            SQLite has to read these rows: one has a value of another type than integer or text,
            or has it on an overflow page.
    """

    first: int
    last: int
    count: int
    columns: dict[str, Int64] | None


def decode_columns(
    file: Path | int,
    layout: Layout,
    texts: Mapping[str, NumberedTexts] = _NO_TEXTS,
    rows: Mapping[str, NumberedRows] = _NO_ROWS,
    *,
    window_bytes: int | None = None,
) -> Iterator[Chunk]:
    """Yield a table's rows in order of rowid.

    Args:
        file: its path, no link, or its descriptor.
        layout: of the table, with the columns to read.
        texts: by column, the object that numbers its texts.
        rows: by a new name, the object that numbers combinations of wanted columns; the chunk has
            the number in their place.
        window_bytes: of the pages that are decoded at once; None for the usual number.

    Raises:
        Unsupported: the rows from here on cannot be read.
    """
    with PageFile(file) as pages:
        leaves = pages.leaves(layout.root)
        at_once = max((window_bytes or _WINDOW_BYTES) // pages.page_size, 1)
        decoder = _Decoder(pages, layout, texts, rows, min(at_once, len(leaves.numbers)))
        for first in range(0, len(leaves.numbers), at_once):
            chunk = decoder.decode(leaves, first, first + at_once)
            if chunk is not None:
                yield chunk


class _Decoder:
    def __init__(
        self,
        file: PageFile,
        layout: Layout,
        texts: Mapping[str, NumberedTexts],
        rows: Mapping[str, NumberedRows],
        at_once: int,
    ) -> None:
        self._file = file
        self._text_places, self._texts = layout.texts, texts
        places = sorted({place for place in layout.wanted.values() if place is not None})
        text_places = sorted(layout.texts.values())
        order = {place: order for order, place in enumerate(places)}
        self._order = {
            name: None if place is None else order[place] for name, place in layout.wanted.items()
        }
        self._rows = rows
        self._has_stored = bool(places or text_places)
        self._formats = RecordFormats(layout, places, text_places)
        self._text_order = {place: order for order, place in enumerate(text_places)}
        self._data = file.empty(at_once)
        # The part of a large payload that stays on the page.
        self._most_local = file.usable - 35
        self._least_local = (file.usable - 12) * 32 // 255 - 23

    def decode(self, leaves: Leaves, first: int, end: int) -> Chunk | None:
        """Return the rows of some leaves; None if there are none."""
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

        Args:
            keys: int64[n], the position of each rowid.
            counts: int64[pages], the number of rowids on each page.
            highest: of all pages, the greatest possible rowid on each.
            first: the index of the first of these pages among all.

        Returns:
            The size of each rowid in bytes, int64[n] or [1]; the first one and the last.
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
        """Return the number of bytes of each payload that are on the row's page."""
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
        """Return the wanted columns of some rows; None if SQLite has to read them.

        Args:
            keys: int64[n], the position of each row's rowid.
            headers: int64[n], the beginning of each row's record.
            payloads: int64[n], the size of each record in bytes.
            local: int64[n], the part of each size that is on the row's page.
        """
        rowids = varints(self._data, keys)[0] if None in self._order.values() else _NO_ROWIDS
        if not self._has_stored:
            return self._combined(dict.fromkeys(self._order, rowids))
        formats = self._formats.of(self._data, headers)
        if formats is None or (self._formats.end.take(formats) > local).any():
            return None
        if (self._formats.payload.take(formats) != payloads).any():
            return None  # SQLite calls them malformed
        stored = self._formats.values(self._data, headers, formats)
        columns = {
            name: rowids if order is None else stored[order] for name, order in self._order.items()
        }
        self._combined(columns)
        for name, place in self._text_places.items():
            where = self._formats.texts(self._text_order[place], headers, formats)
            numbers = self._texts[name].of_stored(self._data, *where)
            if numbers is None:
                return None
            columns[name] = numbers
        return columns

    def _combined(self, columns: dict[str, Int64]) -> dict[str, Int64]:
        """Put the numbers of combinations in the place of their columns."""
        for name, numbered in self._rows.items():
            columns[name] = numbered.of({part: columns.pop(part) for part in numbered.names})
        return columns
