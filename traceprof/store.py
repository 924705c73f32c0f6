"""A store of analyses: one SQLite file with a row for each run, and its numbers as tables."""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import msgspec

from traceprof.analyses.verdict.run_result import RunResult
from traceprof.documents.analysis.model import Document
from traceprof.documents.analysis.records import MAX_DOCUMENT_BYTES, TABLES, document
from traceprof.errors import TraceFileError, UsageError, one_line
from traceprof.findings import Count
from traceprof.structs import Record, given_fields
from traceprof.trace.open import AnyPath

if TYPE_CHECKING:
    from sqlite_utils import Database


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
_HOST_COLUMNS: dict[str, type] = {"host": str, "gpu_id": str}  # of ranks, from elsewhere
_VERSION = 1  # of a store; columns that only came do not change it
_Utc = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]


class StoredRun(Record, frozen=True):
    """A run in a store."""

    name: str  # unique in the store
    labels: dict[str, str]  # what the user wrote to it
    git_commit: str | None  # of the program that ran; None if unknown
    recorded_utc: _Utc | None  # when the first report was recorded, ISO 8601; None if unknown
    saved_utc: _Utc  # when the run was saved
    hosts: tuple[str, ...]  # the machines
    num_ranks: Count  # how many ranks it has
    # what a step takes, the mean of the steady ones of the rank where it is longest; without steps
    # all that is judged is one. None without a rank
    step_ns: Count | None
    median_step_ns: Count | None  # the median of the same; None without steps


def _rows(document: Document, table: str) -> list[Row]:
    cells = [
        tuple(_cell(value) for value in msgspec.structs.astuple(record))
        for record in getattr(document, table)
    ]
    if table != "ranks":
        return cells
    hosts = {rank.rank: (_cell(rank.host), _cell(rank.gpu_id)) for rank in document.run.ranks}
    return [(*row, *hosts[rank.rank]) for row, rank in zip(cells, document.ranks, strict=True)]


def _cell(value: Any) -> Any:  # noqa: ANN401
    if value.__class__ in _PLAIN:
        return value
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    return None if value is msgspec.UNSET else json.dumps(value, default=given_fields)


def columns(table: str) -> dict[str, type]:
    """Return the columns of a table except `run`, by the fields of the document."""
    if table == "runs":
        return {"id": int, **_types(StoredRun), "traceprof_version": str}
    if table == _KERNELS:
        kernels = columns("kernels").items()
        return {"name_id" if name == "name" else name: kind for name, kind in kernels} | {
            "name_id": int
        }
    return _types(TABLES[table].record) | (_HOST_COLUMNS if table == "ranks" else {})


def _types(record: type[msgspec.Struct]) -> dict[str, type]:
    types: dict[str, type] = {}
    for field, kind in get_type_hints(record).items():
        kinds = {*(get_args(kind) or (kind,))} - {NoneType}
        is_number = kinds <= {int, bool, float}
        types[field] = (float if float in kinds else int) if is_number else str
    return types


def _create(store: Database) -> None:
    from sqlite_utils.db import ForeignKey  # noqa: PLC0415

    store.table("kernel_names").create({"id": int, "name": str}, pk="id", not_null={"name"})
    store.table("kernel_names").create_index(["name"], unique=True)
    runs = store.table("runs").create(
        columns("runs"), pk="id", not_null={"name", "labels", "saved_utc", "hosts", "num_ranks"}
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


def _add_columns(store: Database) -> None:
    """Add the columns that came since the store was made."""
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


_APPLICATION = int.from_bytes(b"trpf", "big")  # SQLite keeps it in the file's head
_MARK = slice(68, 72)  # where SQLite keeps it there
_MAX_WAIT_S = 120.0  # for others who write


@contextmanager
def _written(path: AnyPath) -> Iterator[Database]:
    """Yield a store, made or brought up to date, whose changes all happen at the end or never."""
    from sqlite_utils import Database  # noqa: PLC0415  (it takes pandas with it)

    with _removed_if_full(Path(path)), closing(_connected(Path(path), "rwc")) as connection:
        connection.execute("BEGIN IMMEDIATE")  # waits for its turn before it reads anything
        try:
            store = Database(connection, execute_plugins=False, recursive_triggers=False)
            if _version_of(connection, path) == 0:
                _create(store)
                store.execute(f"PRAGMA application_id = {_APPLICATION}")
                store.execute(f"PRAGMA user_version = {_VERSION}")
            _add_columns(store)
            yield store
            connection.execute("COMMIT")
        except BaseException:  # also where it is interrupted
            connection.rollback()
            raise


@contextmanager
def _removed_if_full(path: Path) -> Iterator[None]:
    was_there = path.exists()
    try:
        yield
    except sqlite3.OperationalError as error:
        if not was_there and "full" in str(error) and not path.stat().st_size:
            path.unlink()
        raise


@contextmanager
def _read(path: AnyPath) -> Iterator[sqlite3.Connection]:
    source = Path(path)
    if not source.is_file():
        raise TraceFileError(f"cannot read {path}", "there is no such file", "check the path")
    # What somebody who was interrupted has left must be undone, which takes more than reading.
    mode = "rw" if os.access(source, os.W_OK) else "ro"
    with _errors(path), closing(_connected(source, mode)) as connection:
        if _version_of(connection, path) == 0:
            raise UsageError(f"cannot read {path}", "no run was saved there", "save one first")
        yield connection


def _connected(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", timeout=_MAX_WAIT_S, uri=True)


@contextmanager
def _errors(path: AnyPath) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        remedy = "choose another file, or check the disk and the permissions"
        raise _refused(path, str(error), remedy) from error


def is_store(path: AnyPath) -> bool:
    """Return whether a file is marked as a store, without opening it as a database."""
    try:
        with Path(path).open("rb") as file:
            head = file.read(_MARK.stop)
    except OSError:
        return False
    return head.startswith(b"SQLite format 3\0") and head[_MARK] == _APPLICATION.to_bytes(4, "big")


def _version_of(connection: sqlite3.Connection, path: AnyPath) -> int:
    """Return the version of a store, 0 for an empty file."""
    [application], [version] = (
        connection.execute(f"PRAGMA {name}").fetchone()
        for name in ("application_id", "user_version")
    )
    if not _has_tables(connection) and application in {0, _APPLICATION}:
        return 0
    if application != _APPLICATION:
        raise _refused(path, "it is a database of something else", "choose another file")
    if version > _VERSION:
        why = f"a newer traceprof wrote it (version {version} of the store)"
        raise _refused(path, why, "update traceprof, or choose another file")
    return int(version)


def _has_tables(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None


def _refused(path: AnyPath, why: str, remedy: str) -> UsageError:
    return UsageError(f"cannot use {path} as a store of runs", why, remedy)


# Set by programs for continuous integration.
_COMMIT_VARIABLES = ("GIT_COMMIT", "GITHUB_SHA", "CI_COMMIT_SHA", "BUILDKITE_COMMIT", "CIRCLE_SHA1")


def check(path: AnyPath, name: str | None = None) -> None:
    """Refuse early what `save` would refuse, with the same `UsageError`."""
    target = Path(path)
    _check_name(path, name)
    if not os.fspath(path) or os.fspath(path) == "-" or (target.exists() and not target.is_file()):
        raise _refused(path, "it is not a file", "name a file, such as runs.db")
    if not target.exists():
        if not target.parent.is_dir():
            raise _refused(path, "its folder does not exist", "create it, or choose another place")
        if not os.access(target.parent, os.W_OK):
            raise _refused(path, "its folder cannot be written to", "choose another place")
        return
    if not os.access(target, os.W_OK):
        raise _refused(path, "it cannot be written to", "choose another place")
    with _errors(path), closing(_connected(target, "rw")) as connection:
        _version_of(connection, path)
        if name is not None and _has_tables(connection):
            _check_free(connection, path, name)


def save(
    path: AnyPath,
    result: RunResult,
    name: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> str:
    """Save what was found out about a run, all of it or nothing.

    Several processes may save to one store at the same time.

    Args:
        path: the store, which is created if it does not exist.
        result: of the run.
        name: unique in the store; by default that of the first report, with a number where it is
            taken.
        labels: by name; `commit` is the commit of the program that ran.

    Returns:
        The name that the run has.

    Raises:
        UsageError: the file is something else, cannot be written, or has a run of this name.
    """
    _check_name(path, name)
    run_document = document(result)
    # What takes time is done before others have to wait.
    text = zlib.compress(_json(run_document), 1)
    tables = {table: _rows(run_document, table) for table in LISTS}
    facts = _facts(result, run_document, dict(labels or {}))
    with _errors(path), _written(path) as store:
        if name is None:
            name = _free_name(store.conn, Path(run_document.reports[0].path).stem)
        else:
            _check_free(store.conn, path, name)
        store.table("runs").insert({"name": name, **facts})
        run = store.execute("SELECT id FROM runs WHERE name = ?", [name]).fetchone()[0]
        store.table("documents").insert({"run": run, "json_zlib": text})
        tables["kernels"] = with_numbers(store, tables["kernels"])
        for name_of_list, content in tables.items():
            table = written_table(name_of_list)
            header = ["run", *columns(table)]
            with_run = ((run, *row) for row in content)
            store.table(table).insert_all([header, *with_run] if content else [])
    return name


def load(path: AnyPath, name: str) -> dict[str, Any]:
    """Return the JSON document of a run, as the version that saved it wrote it.

    A `TraceprofError` if there is no such store or run.
    """
    loaded: dict[str, Any] = json.loads(load_json(path, name))
    return loaded


def load_json(path: AnyPath, name: str) -> bytes:
    """Return the text of the JSON document of a run.

    A `TraceprofError` if there is no such store or run, or the document was changed.
    """
    with _read(path) as connection:
        row = connection.execute(
            "SELECT json_zlib FROM documents JOIN runs ON runs.id = run WHERE name = ?", [name]
        ).fetchone()
    if row is None:
        names = [run.name for run in stored_runs(path)]
        there = f"choose one of {', '.join(names)}" if names else "save one first"
        raise UsageError(f"cannot read {name!r} of {path}", "there is no run of this name", there)
    try:
        return _unpacked(row[0])
    except (zlib.error, TypeError) as error:
        raise _changed(path, f"the document of {name!r} cannot be unpacked ({error})") from error


def _unpacked(packed: bytes) -> bytes:
    """Unpack a document of at most the usual size: memory is finite.

    A `zlib.error` if it is not a document.
    """
    unpacker = zlib.decompressobj()
    unpacked = unpacker.decompress(packed, MAX_DOCUMENT_BYTES + 1)
    if len(unpacked) > MAX_DOCUMENT_BYTES:
        raise zlib.error(f"it has over {MAX_DOCUMENT_BYTES >> 20} MiB")
    if not unpacker.eof:
        raise zlib.error("it is cut short")
    return unpacked


def stored_runs(path: AnyPath) -> list[StoredRun]:
    """Return the runs of a store in the order of saving.

    A `TraceprofError` if there is no such store.
    """
    with _read(path) as connection:
        names = ", ".join(StoredRun.__struct_fields__)
        stored = connection.execute(f"SELECT {names} FROM runs ORDER BY id").fetchall()  # noqa: S608
    return [_stored_run(row, path) for row in stored]


def _stored_run(row: Sequence[Any], path: AnyPath) -> StoredRun:
    """Return a row of the table of runs.

    Anybody may have changed it: a `TraceFileError` if it holds other types.
    """
    columns = dict(zip(StoredRun.__struct_fields__, row, strict=True))
    try:
        columns["labels"], columns["hosts"] = (
            msgspec.json.decode(columns[name]) for name in ("labels", "hosts")
        )
        return msgspec.convert(columns, StoredRun)
    except (msgspec.MsgspecError, TypeError, UnicodeDecodeError, RecursionError) as error:
        raise _changed(path, f"a row of its table of runs is damaged ({error})") from error


def _changed(path: AnyPath, why: str) -> TraceFileError:
    return TraceFileError(f"cannot read {path}", why, "save the run again in another store")


def _json(run_document: Document) -> bytes:
    try:
        return msgspec.json.encode(run_document)
    except UnicodeEncodeError:  # a path that is not UTF-8
        return json.dumps(run_document, default=given_fields).encode()


def _facts(result: RunResult, run_document: Document, labels: dict[str, str]) -> dict[str, Any]:
    sessions = [report.session for report in result.run.reports]
    starts_ns = [session.start_utc_ns for session in sessions if session.start_utc_ns is not None]
    commits = [
        session.environment[variable]
        for session in sessions
        for variable in _COMMIT_VARIABLES
        if session.environment.get(variable)
    ]
    return {
        "labels": json.dumps(labels),
        "git_commit": _cell(labels.get("commit") or next(iter(commits), None)),
        "recorded_utc": _utc(min(starts_ns) / 1e9) if starts_ns else None,
        "saved_utc": _utc(datetime.now(timezone.utc).timestamp()),
        "hosts": json.dumps(sorted({rank.host for rank in run_document.run.ranks})),
        "num_ranks": len(run_document.ranks),
        "step_ns": run_document.headline.step_ns,
        "median_step_ns": run_document.headline.median_step_ns,
        "traceprof_version": run_document.traceprof_version,
    }


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _check_name(path: AnyPath, name: str | None) -> None:
    if name is not None and (not name.strip() or "#" in name or name != one_line(name)):
        remedy = "choose a name of printable characters without #, which stands before it"
        raise _refused(path, f"{name!r} cannot be the name of a run", remedy)


def _check_free(connection: sqlite3.Connection, path: AnyPath, name: str) -> None:
    if connection.execute("SELECT 1 FROM runs WHERE name = ?", [name]).fetchone():
        why = f"there is a run named {name!r} already"
        raise _refused(path, why, "choose another --name, or delete that run first")


def _free_name(connection: sqlite3.Connection, stem: str) -> str:
    wanted = one_line(stem).replace("#", "-").strip() or "run"
    names = {name for (name,) in connection.execute("SELECT name FROM runs")}
    name, number = wanted, 1
    while name in names:
        number += 1
        name = f"{wanted}-{number}"
    return name
