"""Inputs of a comparison: reports, a folder, a saved JSON analysis, a run of a store."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from traceprof.analyses.verdict.run_result import RunResult
from traceprof.analysis import Analysis, analyze_captures
from traceprof.comparison.between import MIN_RUNS
from traceprof.comparison.comparable import is_same
from traceprof.documents.analysis.model import Document
from traceprof.documents.analysis.records import MAX_DOCUMENT_BYTES, document, read_document
from traceprof.errors import UsageError
from traceprof.execution.options import Options
from traceprof.store import is_store, load_json, stored_runs
from traceprof.trace.open import reports_in
from traceprof.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from traceprof.progress import Progress

    Source = str | os.PathLike[str] | Analysis | RunResult | Document

_SCHEMA = re.compile(rb'"schema"\s*:\s*"traceprof\.')
_HEAD = 4096  # bytes in which a saved analysis names its schema


@dataclass(frozen=True)
class LoadedSide:
    """One side of a comparison."""

    name: str  # what it is called
    captures: tuple[Document, ...]  # the analysis of each recording, at least one
    # analyses the same reports with other options; None if some were analysed before
    again: Callable[[Options], LoadedSide] | None = field(default=None, repr=False, compare=False)
    options: Options | None = None  # with which they were analysed, where they can be again

    def without_periods(self) -> LoadedSide:
        """Return the side without periods as steps; itself if that is not possible."""
        if self.again is None or self.options is None or not self.options.period:
            return self
        return self.again(replace(self.options, period=False))


def loaded(
    sources: Sequence[Source],
    options: Options | None = None,
    *,
    listener: Progress | None = None,
    jobs: int | None = None,
) -> LoadedSide:
    """Read or analyse the sources of one side; a `TraceprofError` if one cannot be read.

    Reports and folders are analysed together as one recording; each saved analysis, run
    (`runs.db#NAME`) and result is a recording of its own.
    """
    paths: list[Path] = []
    captures: list[Document] = []
    for source in sources:
        if isinstance(source, (Analysis, RunResult, Document)):
            of_run = source.result if isinstance(source, Analysis) else source
            captures.append(of_run if isinstance(of_run, Document) else document(of_run))
            continue
        text = os.fspath(source)
        run = run_of_store(text)
        if run is not None:
            captures.append(stored(*run))
        elif os.path.isdir(text):  # noqa: PTH112  (Path raises where it may not look)
            paths += reports_in(Path(text))
        elif (saved := _saved(Path(text))) is not None:
            captures.append(saved)
        else:
            paths.append(Path(text))
    again = None if captures else partial(loaded, sources, listener=listener, jobs=jobs)
    if paths:
        results = analyze_captures(paths, options, jobs=jobs, listener=listener)
        captures = [*map(document, results), *captures]
    return LoadedSide(_name(sources), tuple(captures), again, options or Options())


def stored(path: str | os.PathLike[str], name: str) -> Document:
    """Return the analysis of a run of a store.

    A `TraceprofError` if there is no such run, or another version wrote it.
    """
    return read_document(load_json(path, name), f"{os.fspath(path)}#{name}")


def stored_with(path: str | os.PathLike[str], labels: Mapping[str, str]) -> list[Document]:
    """Return the analyses of all runs of a store that have some labels, each recording once.

    A `TraceprofError` if there is no such store or run, or another version wrote one.
    """
    chosen: list[Document] = []
    for run in stored_runs(path):
        if labels.items() <= run.labels.items():
            found = stored(path, run.name)
            if not any(is_same(found, other) for other in chosen):
                chosen.append(found)
    if len(chosen) < MIN_RUNS:
        raise UsageError(
            f"cannot take from {os.fspath(path)} how much runs differ",
            f"it has {counted(len(chosen), 'recording')} with these labels; {MIN_RUNS} are needed",
            "save more runs of the unchanged program: traceprof analyze --save",
        )
    return chosen


def files_of(sources: Sequence[str]) -> list[Path]:
    """Return the files that sources name, including stores."""
    stores = ((source, run_of_store(source)) for source in sources)
    return [Path(source if run is None else run[0]) for source, run in stores]


def run_of_store(text: str) -> tuple[str, str] | None:
    """Return the store and name in `runs.db#NAME`; None if it is something else."""
    store, mark, name = text.rpartition("#")
    if not mark or os.path.lexists(text):
        return None
    return store, name


def _saved(path: Path) -> Document | None:
    """Return the analysis that a file holds; None if it is something else."""
    if not path.is_file():  # a pipe would wait for its writer
        return None
    if is_store(path):
        names = [run.name for run in stored_runs(path)]
        remedy = f"say which run: {path}#{names[0]}" if names else "save a run first"
        raise UsageError(f"cannot compare {path}", "it is a store of runs", remedy)
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
            if not head.lstrip().startswith(b"{") or not _SCHEMA.search(head):
                return None
            content = head + file.read(MAX_DOCUMENT_BYTES)
    except OSError:
        return None  # whoever opens it as a report says what is wrong
    return read_document(content, str(path))


def _name(sources: Sequence[Source]) -> str:
    names = [
        source.reports[0].path
        if isinstance(source, Document)
        else str(source.run.reports[0].path)
        if isinstance(source, (Analysis, RunResult))
        else os.fspath(source)
        for source in sources
    ]
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{others}"
