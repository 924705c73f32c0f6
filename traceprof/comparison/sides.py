"""The sides of a comparison: reports, saved analyses, runs of a store; whether they compare."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import get_args

from traceprof.analyses.registry import FINDING_IDS
from traceprof.analyses.verdict.run_result import RunResult
from traceprof.analysis import Analysis, analyze_captures
from traceprof.comparison.between import MIN_RUNS
from traceprof.comparison.findings import costs, may_hide
from traceprof.comparison.gates import FINDING, METRICS
from traceprof.comparison.series import Captures, series, why_unlike
from traceprof.documents.analysis.model import Document
from traceprof.documents.analysis.records import MAX_DOCUMENT_BYTES, document, read_document
from traceprof.documents.comparison import Comparable, Difference, Kind
from traceprof.errors import TraceFileError, UsageError
from traceprof.execution.options import Options
from traceprof.progress import Progress
from traceprof.run.completeness import is_doubtful
from traceprof.run.session_clocks import UNNAMED_MACHINES
from traceprof.store import is_store, load_json, stored_runs
from traceprof.structs import Record
from traceprof.trace.open import reports_in
from traceprof.units import counted, duration

Source = str | os.PathLike[str] | Analysis | RunResult | Document

_SCHEMA = re.compile(rb'"schema"\s*:\s*"traceprof\.')
_HEAD = 4096  # bytes in which a saved analysis names its schema
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Of differences that make sides incomparable."""
_UNKNOWN = "unknown"
_MAX_CLOCK_RATIO = 10
_MIN_SHARED = 0.5  # of the steps: so many in two recordings at the same nanoseconds are the same


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
    names = [
        source.reports[0].path
        if isinstance(source, Document)
        else str(source.run.reports[0].path)
        if isinstance(source, (Analysis, RunResult))
        else os.fspath(source)
        for source in sources
    ]
    name = f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]
    return LoadedSide(name, tuple(captures), again, options or Options())


def stored(path: str | os.PathLike[str], name: str) -> Document:
    """Return a run of a store; a `TraceprofError` if it is not there or of another version."""
    return read_document(load_json(path, name), f"{os.fspath(path)}#{name}")


def stored_with(path: str | os.PathLike[str], labels: Mapping[str, str]) -> list[Document]:
    """Return all runs of a store with some labels, each recording once, or a `TraceprofError`."""
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


def check_allowed(names: Collection[str]) -> None:
    """Refuse unknown kinds of differences with a `UsageError`."""
    for name in names:
        if name not in KINDS:
            why = f"{name!r} is not a difference that makes sides incomparable"
            remedy = f"choose one of {', '.join(KINDS)}"
            raise UsageError("cannot allow that to differ", why, remedy)


def comparable(before: Captures, after: Captures, allowed: Collection[str] = ()) -> Comparable:
    """Check whether the sides are comparable, and why not; `allowed`: kinds that do not matter."""
    recorded = [
        {part for capture in side for report in capture.reports for part in report.recorded}
        for side in (before, after)
    ]
    facts = {what: (say(before), say(after)) for what, say in _FACTS.items()}
    if _UNKNOWN in facts[_WORKERS]:  # only some recorders see them
        del facts[_WORKERS]
    facts["recorded on one side only"] = (
        ", ".join(sorted(recorded[0] - recorded[1])) or "nothing",
        ", ".join(sorted(recorded[1] - recorded[0])) or "nothing",
    )
    differences = [
        *_command_lines(before, after),
        *_environment(before, after),
        *(Difference(what, *values) for what, values in facts.items() if values[0] != values[1]),
    ]
    reasons: list[tuple[Kind, str]] = []
    if any(is_same(one, other) for one in before for other in after):
        reasons.append(("recording", "the same recording stands on both sides"))
    for what, (kind, reason) in _REASONS.items():
        first, second = facts[what]
        if first != second and _UNKNOWN not in {first, second}:
            reasons.append((kind, f"{reason}: {first} before, {second} after"))
    unlike = why_unlike(before, after)
    if unlike is not None and not any(kind == "steps" for kind, _ in reasons):
        reasons.append(("steps", unlike))
    unequal = _clock_reason(before, after)
    if unequal is not None:
        reasons.append(("clocks", unequal))
    kept = [(kind, why) for kind, why in reasons if kind not in allowed]
    return Comparable(
        is_comparable=not kept,
        reasons=[why for _, why in kept],
        kinds=[kind for kind, _ in kept],
        allowed=[why for kind, why in reasons if kind in allowed],
        differences=differences,
    )


def why_incomplete(before: Captures, after: Captures) -> Iterator[str]:
    """Yield which side lacks so many operations that the parts of its steps are unknown."""
    for side, documents in (("before", before), ("after", after)):
        losses = [lacking for document in documents for lacking in document.completeness]
        doubtful = [
            lacking for lacking in losses if is_doubtful(lacking.num_lost, lacking.num_launches)
        ]
        if doubtful:
            worst = max(doubtful, key=lambda lacking: lacking.num_lost / lacking.num_launches)
            yield (
                f"the recording {side} is incomplete:"
                f" {worst.num_lost} of {counted(worst.num_launches, 'launch')} on rank"
                f" {worst.rank} have no operation in it"
            )


def is_same(one: Document, other: Document) -> bool:
    """Say whether two analyses are of the same recording, whatever its file is called."""
    if one.steps and other.steps:
        steps = [
            {(step.rank, step.start_ns, step.end_ns, step.num_kernels) for step in document.steps}
            for document in (one, other)
        ]
        return len(steps[0] & steps[1]) >= _MIN_SHARED * min(map(len, steps))
    parts = [
        sorted(
            (rank.rank, rank.window_start_ns, rank.window_ns, rank.compute_ns, rank.idle_ns)
            for rank in document.breakdown
        )
        for document in (one, other)
    ]
    return bool(parts[0]) and parts[0] == parts[1]


def _listed(values: Iterable[str | None]) -> str:
    known = sorted({value or _UNKNOWN for value in values})
    return ", ".join(known) or _UNKNOWN


def _gpus(captures: Captures) -> str:
    """Return the GPUs by their models: drivers before 470 name them without the maker."""
    ranks = [rank for capture in captures for rank in capture.ranks if rank.device is not None]
    return (
        _listed({(rank.gpu or "").removeprefix("NVIDIA ") for rank in ranks}) if ranks else "none"
    )


def _ranks(captures: Captures) -> str:
    return _listed(str(len(capture.ranks)) for capture in captures)


def _steps(captures: Captures) -> str:
    return _listed(
        capture.headline.steps_source.value if capture.steps else "not known"
        for capture in captures
    )


def _clocks(captures: Captures) -> str:
    uncertain = [_uncertainty(capture) for capture in captures]
    known = [value for value in uncertain if value is not None]
    return f"within {duration(max(known))}" if len(known) == len(uncertain) else _UNKNOWN


def _uncertainty(capture: Document) -> int | None:
    values = [clock.uncertainty_ns for clock in capture.run.clocks]
    if len(values) == 1:
        return 0
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None


def _clock_reason(before: Captures, after: Captures) -> str | None:
    values = [[_uncertainty(capture) for capture in side] for side in (before, after)]
    is_known = [all(value is not None for value in side) for side in values]
    if is_known[0] != is_known[1]:
        side = "before" if is_known[1] else "after"
        return f"the clocks of the ranks cannot be compared {side}: waiting is in the durations"
    if not all(is_known):
        return None
    low, high = sorted(max(value or 0 for value in side) for side in values)
    if low and high > _MAX_CLOCK_RATIO * low:
        return f"clocks are {high // low} times as uncertain on one side as on the other"
    return None


def _profilers(captures: Captures) -> str:
    return _listed(
        f"{report.format} {report.product_version or _UNKNOWN}"
        for capture in captures
        for report in capture.reports
    )


def _hosts(captures: Captures) -> str:
    hosts = {rank.host for capture in captures for rank in capture.run.ranks}
    return _listed(None if host.startswith(UNNAMED_MACHINES) else host for host in hosts)


def _command_lines(before: Captures, after: Captures) -> list[Difference]:
    lines = [
        [word for report in side[0].reports[:1] for word in report.command_line]
        for side in (before, after)
    ]
    if not all(lines) or lines[0] == lines[1]:
        return []
    gone = [word for word in lines[0] if word not in lines[1]]
    new = [word for word in lines[1] if word not in lines[0]]
    return [Difference("command line", " ".join(gone), " ".join(new))]


def _environment(before: Captures, after: Captures) -> Iterator[Difference]:
    first, second = (
        side[0].reports[0].environment if side[0].reports else {} for side in (before, after)
    )
    if not first or not second:
        return
    for name in sorted({*first, *second}):
        if first.get(name) != second.get(name) and not _OF_PLACE.search(name):
            yield Difference(name, first.get(name, ""), second.get(name, ""))


def _precisions(captures: Captures) -> str:
    of_matmul: Counter[str] = Counter()
    for capture in captures:
        for row in capture.kernels:
            if row.category in _PRODUCTS and row.precision is not None:
                of_matmul[row.precision] += row.total_ns
    total = of_matmul.total()
    return (
        ", ".join(sorted(name for name, ns in of_matmul.items() if ns >= _MIN_USED * total))
        or _UNKNOWN
    )


def _compiled(captures: Captures) -> str:
    rows = [row for capture in captures for row in capture.kernels]
    compiled_ns = sum(row.total_ns for row in rows if row.name.startswith("triton_"))
    is_used = compiled_ns > 0 and compiled_ns >= _MIN_USED * sum(row.total_ns for row in rows)
    return "used" if is_used else "not used"


def _graphs(captures: Captures) -> str:
    num = sum(lacking.num_graphs for capture in captures for lacking in capture.completeness)
    return "used" if num else "not used"


def _workers(captures: Captures) -> str:
    numbers = [rank.num_workers for capture in captures for rank in capture.ranks]
    known = [number for number in numbers if number is not None]
    return _listed(map(str, known)) if known and len(known) == len(numbers) else _UNKNOWN


_MIN_USED = 0.05  # of the time of kernels
_PRODUCTS = ("matmul", "attention", "convolution")
_OF_PLACE = re.compile(r"VISIBLE_DEVICES|_(HOME|PATH|ROOT|DIR)\b|HOST|PORT")
_WORKERS = "loader workers seen of a rank"
_FACTS: Mapping[str, Callable[[Captures], str]] = {
    "precision of products": _precisions,
    "kernels of torch.compile": _compiled,
    "CUDA graphs": _graphs,
    _WORKERS: _workers,
    "GPU": _gpus,
    "ranks": _ranks,
    "steps": _steps,
    "clocks": _clocks,
    "profiler": _profilers,
    "machines": _hosts,
}
"""What a recording says of the program, and of the machine and the recorder."""
_REASONS: Mapping[str, tuple[Kind, str]] = {
    "GPU": ("gpu", "other GPUs"),
    "ranks": ("world-size", "different numbers of ranks"),
    "steps": ("steps", "steps were found in different ways"),
}
"""Facts in which comparable sides do not differ."""


class StoredSeries(Record, frozen=True):
    """Numbers of stored runs."""

    columns: tuple[str, ...]  # a name for each cell of a row
    rows: tuple[tuple[str | int, ...], ...]  # time (ISO 8601), name, commit, numbers in ns
    left_out: tuple[str, ...]  # why other runs are not among them


def stored_series(path: str | os.PathLike[str], metrics: Sequence[str] = ()) -> StoredSeries:
    """Return numbers of the runs of a store, oldest first.

    `metrics`: what gates can be about: `step`, a part of it, `finding:ID` (its cost per step, 0 if
    absent); the step and its parts by default. A `TraceprofError` if there is no such store or
    metric.
    """
    chosen = list(metrics) or [*METRICS]
    choices = [*METRICS, *(f"{FINDING}:{finding}" for finding in FINDING_IDS)]
    for metric in chosen:
        if metric not in choices:
            remedy = f"choose one of {', '.join(choices)}"
            raise UsageError(f"cannot list {metric!r}", "there is no such metric", remedy)
    rows: list[tuple[str | int, ...]] = []
    left_out: list[str] = []
    for run in stored_runs(path):
        try:
            document = stored(path, run.name)
        except TraceFileError as error:
            left_out.append(f"{run.name}: {error.why}")
            continue
        steps, of_findings = series([document]), costs([document])
        known = {"step": round(steps.step_ns)}
        known |= {part: steps.means[column] for part, column in METRICS.items() if part != "step"}
        for id_ in FINDING_IDS:
            if id_ in of_findings or not may_hide(document, id_):
                known[f"{FINDING}:{id_}"] = round(of_findings.get(id_, 0))
        if unknown := [metric for metric in chosen if metric not in known]:
            left_out.append(f"{run.name}: {', '.join(unknown)} could not be judged")
            continue
        time = run.recorded_utc or run.saved_utc
        rows.append((time, run.name, run.git_commit or "", *(known[metric] for metric in chosen)))
    rows.sort(key=lambda row: str(row[0]))
    numbers = [metric.removeprefix(f"{FINDING}:").replace("-", "_") for metric in chosen]
    columns = ("time", "run", "commit", *(f"{name}_ns" for name in numbers))
    return StoredSeries(columns, tuple(rows), tuple(left_out))
