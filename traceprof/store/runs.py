"""Runs in a store: saved, listed, loaded."""

from __future__ import annotations

import json
import os
import zlib
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from traceprof.documents.analysis.reading import MAX_DOCUMENT_BYTES
from traceprof.documents.analysis.records import document
from traceprof.errors import TraceFileError, UsageError, one_line
from traceprof.findings import Count  # noqa: TC001  (msgspec converts to it)
from traceprof.store.files import connected, errors, has_tables, read, refused, version_of, written
from traceprof.store.tables import LISTS, cell, columns, rows, with_numbers, written_table
from traceprof.structs import Record

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

    from traceprof.analyses.verdict.run_result import RunResult
    from traceprof.documents.analysis.model import Document
    from traceprof.trace.folder import AnyPath


# Set by programs for continuous integration.
_COMMIT_VARIABLES = ("GIT_COMMIT", "GITHUB_SHA", "CI_COMMIT_SHA", "BUILDKITE_COMMIT", "CIRCLE_SHA1")

_Utc = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]

_PIECE_BYTES = 1 << 20


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


_RUN_COLUMNS = StoredRun.__struct_fields__


def check(path: AnyPath, name: str | None = None) -> None:
    """Refuse early what `save` would refuse.

    Raises:
        UsageError: the file is something else, cannot be written, or has a run of this name.
    """
    target = Path(path)
    _check_name(path, name)
    if not os.fspath(path) or os.fspath(path) == "-" or (target.exists() and not target.is_file()):
        raise refused(path, "it is not a file", "name a file, such as runs.db")
    if not target.exists():
        if not target.parent.is_dir():
            raise refused(path, "its folder does not exist", "create it, or choose another place")
        if not os.access(target.parent, os.W_OK):
            raise refused(path, "its folder cannot be written to", "choose another place")
        return
    if not os.access(target, os.W_OK):
        raise refused(path, "it cannot be written to", "choose another place")
    with errors(path), closing(connected(target, "rw")) as connection:
        version_of(connection, path)
        if name is not None and has_tables(connection):
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
    tables = {table: rows(run_document, table) for table in LISTS}
    facts = _facts(result, run_document, dict(labels or {}))
    with errors(path), written(path) as store:
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

    Raises:
        TraceprofError: there is no such store, or no such run in it.
    """
    loaded: dict[str, Any] = json.loads(load_json(path, name))
    return loaded


def load_json(path: AnyPath, name: str) -> bytes:
    """Return the text of the JSON document of a run.

    Raises:
        TraceprofError: there is no such store, or no such run in it, or it was changed.
    """
    with read(path) as connection:
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
    """Unpack a document, if it is as large as documents are: memory is finite.

    Raises:
        zlib.error: it is not a document.
    """
    unpacker, size, rest = zlib.decompressobj(), 0, packed
    while rest and not unpacker.eof:
        size += len(unpacker.decompress(rest, _PIECE_BYTES))
        if size > MAX_DOCUMENT_BYTES:
            raise zlib.error(f"it has over {MAX_DOCUMENT_BYTES >> 20} MiB")
        rest = unpacker.unconsumed_tail
    return zlib.decompress(packed)


def stored_runs(path: AnyPath) -> list[StoredRun]:
    """Return the runs of a store in the order in which they were saved.

    Raises:
        TraceprofError: there is no such store.
    """
    with read(path) as connection:
        names = ", ".join(_RUN_COLUMNS)
        stored = connection.execute(f"SELECT {names} FROM runs ORDER BY id").fetchall()  # noqa: S608
    return [_stored_run(row, path) for row in stored]


def _stored_run(row: Sequence[Any], path: AnyPath) -> StoredRun:
    """Return a row of the table of runs, which anybody may have changed.

    Raises:
        TraceFileError: it holds other types.
    """
    columns = dict(zip(_RUN_COLUMNS, row, strict=True))
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
        return json.dumps(run_document, default=msgspec.structs.asdict).encode()


def _facts(result: RunResult, run_document: Document, labels: dict[str, str]) -> dict[str, Any]:
    """Return the columns of a run."""
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
        "git_commit": cell(labels.get("commit") or next(iter(commits), None)),
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
        raise refused(path, f"{name!r} cannot be the name of a run", remedy)


def _check_free(connection: sqlite3.Connection, path: AnyPath, name: str) -> None:
    if connection.execute("SELECT 1 FROM runs WHERE name = ?", [name]).fetchone():
        why = f"there is a run named {name!r} already"
        raise refused(path, why, "choose another --name, or delete that run first")


def _free_name(connection: sqlite3.Connection, stem: str) -> str:
    wanted = one_line(stem).replace("#", "-").strip() or "run"
    names = {name for (name,) in connection.execute("SELECT name FROM runs")}
    name, number = wanted, 1
    while name in names:
        number += 1
        name = f"{wanted}-{number}"
    return name
