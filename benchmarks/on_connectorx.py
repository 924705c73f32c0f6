"""`traceprof analyze` with connectorx in the place of its own reader of pages, to compare both.

    python benchmarks/on_connectorx.py EXPORT

Needs connectorx and pyarrow, the quickest readers of SQLite files among the libraries.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import connectorx
import numpy as np
import pyarrow as pa

from traceprof.cli.main import main
from traceprof.trace.model.special_values import NULL
from traceprof.trace.sqlite import read_columns as reader
from traceprof.trace.sqlite.database import quote
from traceprof.trace.sqlite.numbering import NONE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from traceprof.intervals import Int64
    from traceprof.trace.sqlite.database import Database
    from traceprof.trace.sqlite.numbering import NumberedRows, NumberedTexts


def chunks(
    database: Database,
    table: str,
    columns: Sequence[str],
    texts: Mapping[str, NumberedTexts],
    rows: Mapping[str, NumberedRows],
    _chunk_rows: int,
) -> Iterator[dict[str, Int64]]:
    """Yield a table as connectorx reads it, in one piece."""
    names = [*columns, *texts]
    read = connectorx.read_sql(
        f"sqlite://{database.file}",
        f"SELECT {', '.join(map(quote, names))} FROM {quote(table)}",  # noqa: S608
        return_type="arrow",
    )
    if read.num_rows == 0:
        return
    chunk: dict[str, Int64] = {}
    for name, column in zip(names, read.columns, strict=True):
        if name in texts:
            codes = column.combine_chunks().dictionary_encode()
            known = texts[name].of(codes.dictionary.to_pylist())
            index = codes.indices.fill_null(len(known)).to_numpy(zero_copy_only=False)
            chunk[name] = np.append(known, NONE)[index]
        else:
            numbers = column.combine_chunks().cast(pa.int64()).fill_null(NULL)
            chunk[name] = numbers.to_numpy(zero_copy_only=False).copy()
    for name, group in rows.items():
        chunk[name] = group.of({column: chunk.pop(column) for column in group.names})
    yield chunk


if __name__ == "__main__":
    reader.__dict__["_chunks"] = chunks
    sys.argv = ["traceprof", "analyze", "--format", "json", *sys.argv[1:]]
    sys.exit(main())
