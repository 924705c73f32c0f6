"""The tables of a store: the lists of the JSON document, each with the column `run`."""

from __future__ import annotations

import json
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import msgspec

from traceprof.documents.analysis.records import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlite_utils import Database

    from traceprof.documents.analysis.model import Document

    Row = tuple[str | int | float | bytes | None, ...]

LISTS = (
    "reports",
    "ranks",
    "breakdown",
    "training",
    "steps",
    "collectives",
    "links",
    "kernels",
    "findings",
)
"""The lists that are tables; the document as a whole is kept, too."""
_PLAIN = frozenset({NoneType, bool, int, float})
_KERNELS = "rank_kernels"
_HOST_COLUMNS: Mapping[str, type] = {"host": str, "gpu_id": str}  # of ranks, from elsewhere
_RUNS: Mapping[str, type] = {
    "id": int,
    "name": str,
    "labels": str,
    "git_commit": str,
    "recorded_utc": str,
    "saved_utc": str,
    "hosts": str,
    "num_ranks": int,
    "step_ns": int,
    "median_step_ns": int,
    "traceprof_version": str,
}


def rows(document: Document, table: str) -> list[Row]:
    """Return the rows of a table, without the column of the run."""
    cells = [
        tuple(cell(value) for value in msgspec.structs.astuple(record))
        for record in getattr(document, table)
    ]
    if table != "ranks":
        return cells
    hosts = {rank.rank: (cell(rank.host), cell(rank.gpu_id)) for rank in document.run.ranks}
    return [(*row, *hosts[rank.rank]) for row, rank in zip(cells, document.ranks, strict=True)]


def cell(value: Any) -> Any:  # noqa: ANN401
    """Return a value as SQLite can hold it: lists and dicts as JSON."""
    if value.__class__ in _PLAIN:
        return value
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    return json.dumps(value, default=msgspec.structs.asdict)


def columns(table: str) -> dict[str, type]:
    """Return the columns of a table but `run`, by the fields of the document."""
    if table == "runs":
        return dict(_RUNS)
    if table == _KERNELS:
        kernels = columns("kernels").items()
        return {"name_id" if name == "name" else name: kind for name, kind in kernels} | {
            "name_id": int
        }
    types: dict[str, type] = {}
    for field, kind in get_type_hints(TABLES[table].record).items():
        kinds = {*(get_args(kind) or (kind,))} - {NoneType}
        is_number = kinds <= {int, bool, float}
        types[field] = (float if float in kinds else int) if is_number else str
    return {**types, **(_HOST_COLUMNS if table == "ranks" else {})}


def _create(store: Database) -> None:
    """Make the tables of the first version."""
    from sqlite_utils.db import ForeignKey  # noqa: PLC0415

    store.table("kernel_names").create({"id": int, "name": str}, pk="id", not_null={"name"})
    store.table("kernel_names").create_index(["name"], unique=True)
    runs = store.table("runs").create(
        {**_RUNS}, pk="id", not_null={"name", "labels", "saved_utc", "hosts", "num_ranks"}
    )
    runs.create_index(["name"], unique=True)
    for table in ("documents", *map(written_table, LISTS)):
        keys = [ForeignKey(table, "run", "runs", "id", on_delete="CASCADE")]
        if table == _KERNELS:
            keys.append(ForeignKey(table, "name_id", "kernel_names", "id"))
        types = {"json_zlib": bytes} if table == "documents" else columns(table)
        is_one = table == "documents"
        created = store.table(table).create(
            {"run": int, **types}, pk="run" if is_one else None, foreign_keys=keys
        )
        if not is_one:
            created.create_index(["run"])


# Each makes of a store of one version that of the next. Columns that only came are not among them.
MIGRATIONS: Sequence[Callable[[Database], None]] = (_create,)


def migrate(store: Database, version: int) -> None:
    """Bring a store of some version, 0 if it is empty, to the form that is written today."""
    for migration in MIGRATIONS[version:]:
        migration(store)
    for table in ("runs", *map(written_table, LISTS)):
        there = store.table(table).columns_dict
        for column, kind in columns(table).items():
            if column not in there:
                store.table(table).add_column(column, kind)
    selected = (
        "kernel_names.name" if column == "name" else f'{_KERNELS}."{column}"'
        for column in ("run", *columns("kernels"))
    )
    store.create_view(
        "kernels",
        f"SELECT {', '.join(selected)} FROM {_KERNELS} JOIN kernel_names"  # noqa: S608  (ours)
        f" ON kernel_names.id = {_KERNELS}.name_id",
        replace=True,
    )


def written_table(name: str) -> str:
    """Return the table that is written for a list: of kernels, one that names them by number.

    Names of kernels have a thousand characters and more, and are the same on all ranks.
    """
    return _KERNELS if name == "kernels" else name


def with_numbers(store: Database, kernels: Sequence[Row]) -> list[Row]:
    """Return rows of kernels with the numbers of their names, which the store then has."""
    place = [*columns("kernels")].index("name")
    names = sorted({str(row[place]) for row in kernels})
    store.table("kernel_names").insert_all(({"name": name} for name in names), ignore=True)
    number = {
        name: store.execute("SELECT id FROM kernel_names WHERE name = ?", [name]).fetchone()[0]
        for name in names
    }
    return [(*row[:place], number[str(row[place])], *row[place + 1 :]) for row in kernels]
