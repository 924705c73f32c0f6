"""Columns of a table, decoded from the pages of an SQLite file many rows at a time."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from traceprof.trace.sqlite.pages import PageFile, Unsupported, varints
from traceprof.trace.sqlite.record_formats import Shapes, Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from traceprof.intervals import Int64
    from traceprof.trace.sqlite.layout import Layout
    from traceprof.trace.sqlite.numbered_rows import NumberedRows
    from traceprof.trace.sqlite.numbered_texts import NumberedTexts
    from traceprof.trace.sqlite.pages import Leaves

# Large enough that the cost per call vanishes, small enough that it stays in the cache.
_WINDOW_BYTES = 2 << 20

_NO_TEXTS: Mapping[str, NumberedTexts] = MappingProxyType({})
_NO_ROWS: Mapping[str, NumberedRows] = MappingProxyType({})
_MAX_PAYLOAD = 1 << 28


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of a table.

    Attributes:
        first: the rowid of the first one.
        last: the rowid of the last one.
        count: how many there are.
        columns: int64[count] for each, `NULL` where the table has NULL, and for texts their
            numbers; None where SQLite has to read these rows: one has something else where an
            integer or a text belongs, or has it on an overflow page.
    """

    first: int
    last: int
    count: int
    columns: dict[str, Int64] | None


def decode_columns(
    path: Path,
    layout: Layout,
    texts: Mapping[str, NumberedTexts] = _NO_TEXTS,
    rows: Mapping[str, NumberedRows] = _NO_ROWS,
    *,
    window_bytes: int = _WINDOW_BYTES,
) -> Iterator[Chunk]:
    """Yield a table's rows in the order of their rowids.

    Args:
        path: the file, no link.
        layout: of the table, with the columns to read.
        texts: by column, where each text is numbered.
        rows: by a name of its own, where combinations of wanted columns are numbered; the chunk
            has the number in their place.
        window_bytes: of the pages that are decoded at once.

    Raises:
        Unsupported: the rows from here on cannot be read.
    """
    with PageFile(path) as file:
        leaves = file.leaves(layout.root)
        at_once = max(window_bytes // file.page_size, 1)
        decoder = _Decoder(file, layout, texts, rows, min(at_once, len(leaves.numbers)))
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
        places = sorted({each for each in layout.wanted.values() if each is not None})
        text_places = sorted(layout.texts.values())
        order = {place: order for order, place in enumerate(places)}
        self._order = {
            name: None if place is None else order[place] for name, place in layout.wanted.items()
        }
        self._numbered = [
            _Numbered(name, each, each.names, _span(each.names, layout.wanted))
            for name, each in rows.items()
        ]
        as_one = {name for each in self._numbered if each.span is not None for name in each.names}
        self._alone = _ascending(each for name, each in self._order.items() if name not in as_one)
        self._every = np.arange(len(places))
        spans = [each.span for each in self._numbered if each.span is not None]
        self._shapes = Shapes(layout, places, text_places, spans)
        self._text_order = {place: order for order, place in enumerate(text_places)}
        self._data = file.empty(at_once)
        # What of a payload stays on the page when it is too large for it.
        self._most_local = file.usable - 35
        self._least_local = (file.usable - 12) * 32 // 255 - 23

    def decode(self, leaves: Leaves, first: int, end: int) -> Chunk | None:
        """Return the rows of some leaves, None where there are none."""
        numbers = leaves.numbers[first:end]
        self._file.read(numbers, self._data)
        cells, counts = self._file.leaf_cells(self._data, len(numbers))
        if not counts.all():
            if len(leaves.numbers) == 1:
                return None
            raise Unsupported("a page without cells")
        payloads, payload_bytes = varints(self._data, cells)
        rowids, rowid_bytes = varints(self._data, cells + payload_bytes)
        _check_order(rowids, counts, leaves.highest[max(first - 1, 0) : end], is_first=first == 0)
        headers = cells + payload_bytes + rowid_bytes
        local = self._local(payloads)
        if (self._file.left_on_page(cells) < headers - cells + local).any():
            raise Unsupported("a cell that leaves its page")
        columns = self._columns(rowids, headers, local)
        return Chunk(int(rowids[0]), int(rowids[-1]), len(rowids), columns)

    def _local(self, payloads: Int64) -> Int64:
        """Return how many bytes of each payload are on the row's page."""
        if ((payloads < 0) | (payloads >= _MAX_PAYLOAD)).any():
            raise Unsupported("a row too large")
        if (payloads <= self._most_local).all():
            return payloads
        least = self._least_local
        kept = least + (payloads - least) % (self._file.usable - 4)
        kept[kept > self._most_local] = least
        return np.where(payloads <= self._most_local, payloads, kept)

    def _columns(self, rowids: Int64, headers: Int64, local: Int64) -> dict[str, Int64] | None:
        if len(self._every) == 0 and not self._text_order:
            columns = dict.fromkeys(self._order, rowids)
            return self._put_numbers(columns, [None for _ in self._numbered])
        shapes = self._shapes.of(self._data, headers)
        if shapes is None or (self._shapes.end.take(shapes) > local).any():
            return None
        numbers = [self._as_one(each, headers, shapes) for each in self._numbered]
        is_every = any(number is None for number in numbers)
        orders = self._every if is_every else self._alone
        found = self._shapes.values(self._data, headers, shapes, orders)
        stored: dict[int | None, Int64] = {None: rowids}
        stored.update(zip(orders.tolist(), found, strict=True))
        columns = {name: stored[order] for name, order in self._order.items() if order in stored}
        self._put_numbers(columns, numbers)
        for name, place in self._text_places.items():
            where = self._shapes.texts(self._text_order[place], headers, shapes)
            texts = self._texts[name].of_stored(self._data, *where)
            if texts is None:
                return None
            columns[name] = texts
        return columns

    def _put_numbers(
        self, columns: dict[str, Int64], numbers: Sequence[Int64 | None]
    ) -> dict[str, Int64]:
        """Put the numbers of combinations in the place of those of their columns that are there."""
        for each, number in zip(self._numbered, numbers, strict=True):
            own = {name: columns.pop(name) for name in each.names if name in columns}
            columns[each.name] = each.rows.of(own) if number is None else number
        return columns

    def _as_one(self, numbered: _Numbered, headers: Int64, shapes: Int64) -> Int64 | None:
        """Return the numbers of combinations; None where their columns have to be decoded."""
        span = numbered.span
        if span is None:
            return None
        kinds = span.kinds.take(shapes)
        if kinds.min() < 0:
            return None
        used = np.flatnonzero(np.bincount(shapes))
        begin = headers + span.begins.take(shapes)
        masks = span.masks(used, shapes)
        found = numbered.rows.of_stored(self._data, begin, kinds, span.words, masks)
        if found is None:
            return None
        numbers, new = found
        if len(new):
            orders = _ascending(self._order[name] for name in numbered.names)
            values = self._shapes.values(self._data, headers[new], shapes[new], orders)
            of_order: dict[int | None, Int64] = dict(zip(orders.tolist(), values, strict=True))
            own = {name: of_order[self._order[name]] for name in numbered.names}
            numbers[new] = numbered.rows.of(own)
            numbered.rows.learn_stored(new, numbers[new])
        return numbers


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A combination of columns to be numbered.

    Attributes:
        name: of the number's column.
        rows: numbers them.
        names: of the columns.
        span: where they stand side by side; None where others stand between them.
    """

    name: str
    rows: NumberedRows
    names: tuple[str, ...]
    span: Span | None


def _ascending(orders: Iterable[int | None]) -> Int64:
    """Return the orders of stored columns, each once, int64[m]."""
    return np.array(sorted({order for order in orders if order is not None}), np.int64)


def _span(names: Sequence[str], wanted: Mapping[str, int | None]) -> Span | None:
    """Return the span of these columns; None where other wanted ones stand between them."""
    places = [place for name in names if (place := wanted[name]) is not None]
    others = [place for name, place in wanted.items() if name not in names and place is not None]
    if len(places) < len(names) or any(min(places) < other < max(places) for other in others):
        return None
    return Span(min(places), max(places))


def _check_order(rowids: Int64, counts: Int64, highest: Int64, *, is_first: bool) -> None:
    """Check that rowids ascend, and that each page has those for which SQLite would look there."""
    lasts = counts.cumsum() - 1
    firsts = lasts - counts + 1
    above, upto = (highest[:-1], highest[1:]) if not is_first else (highest[:-1], highest)
    begins = rowids[firsts[1:] if is_first else firsts]
    descends = (rowids[1:] <= rowids[:-1]).any()
    if descends or (begins <= above).any() or (rowids[lasts] > upto).any():
        raise Unsupported("rows out of order")
