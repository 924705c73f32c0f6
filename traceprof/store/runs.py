"""Runs in a store: saved, listed, loaded."""

from __future__ import annotations

import json
import os
import zlib
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from traceprof.documents.analysis.records import document
from traceprof.errors import UsageError, one_line
from traceprof.store.files import (
    connected,
    errors,
    has_tables,
    read,
    refused,
    version_of,
    written,
)
from traceprof.store.tables import LISTS, cell, columns, rows, with_numbers, written_table

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping

    from traceprof.analyses.verdict.run_result import RunResult
    from traceprof.documents.analysis.model import Document

    AnyPath = str | os.PathLike[str]

# Set by programs for continuous integration.
_COMMIT_VARIABLES = ("GIT_COMMIT", "GITHUB_SHA", "CI_COMMIT_SHA", "BUILDKITE_COMMIT", "CIRCLE_SHA1")


@dataclass(frozen=True)
class StoredRun:
    """A run in a store.

    Attributes:
        name: unique in the store.
        labels: what the user wrote to it.
        git_commit: of the program that ran; None if unknown.
        recorded_utc: when the first report was recorded, ISO 8601; None if unknown.
        saved_utc: when the run was saved.
        hosts: the machines.
        num_ranks: how many ranks it has.
        step_ns: what a step takes, the mean of the steady ones of the rank where it is longest;
            without steps all that is judged is one. None without a rank.
        median_step_ns: the median of the same; None without steps.
    """

    name: str
    labels: Mapping[str, str]
    git_commit: str | None
    recorded_utc: str | None
    saved_utc: str
    hosts: tuple[str, ...]
    num_ranks: int
    step_ns: int | None
    median_step_ns: int | None


def check(path: AnyPath, name: str | None = None) -> None:
    """Refuse early what `save` would refuse.

    Raises:
        UsageError: the file is something else, cannot be written, or has a run of this name.
    """
    target = Path(path)
    _check_name(path, name)
    if not target.exists():
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
        path: the store, which is made where there is none.
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
    with read(path) as connection:
        row = connection.execute(
            "SELECT json_zlib FROM documents JOIN runs ON runs.id = run WHERE name = ?", [name]
        ).fetchone()
    if row is None:
        names = [run.name for run in stored_runs(path)]
        there = f"choose one of {', '.join(names)}" if names else "save one first"
        raise UsageError(f"cannot read {name!r} of {path}", "there is no run of this name", there)
    loaded: dict[str, Any] = json.loads(zlib.decompress(row[0]))
    return loaded


def stored_runs(path: AnyPath) -> list[StoredRun]:
    """Return the runs of a store in the order in which they were saved.

    Raises:
        TraceprofError: there is no such store.
    """
    with read(path) as connection:
        stored = connection.execute(
            "SELECT name, labels, git_commit, recorded_utc, saved_utc, hosts, num_ranks,"
            " step_ns, median_step_ns FROM runs ORDER BY id"
        ).fetchall()
    return [
        StoredRun(
            name=row[0],
            labels=json.loads(row[1]),
            git_commit=row[2],
            recorded_utc=row[3],
            saved_utc=row[4],
            hosts=tuple(json.loads(row[5])),
            num_ranks=row[6],
            step_ns=row[7],
            median_step_ns=row[8],
        )
        for row in stored
    ]


def _json(run_document: Document) -> bytes:
    try:
        return msgspec.json.encode(run_document)
    except UnicodeEncodeError:  # a path that is no UTF-8
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
    taken = {name for (name,) in connection.execute("SELECT name FROM runs")}
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}-{number}"
    return name
