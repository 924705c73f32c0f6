"""Operators and functions of Python that threads of a process ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.host import evidence_names as names
from traceprof.host.nesting import nested
from traceprof.host.sleep import Sleep
from traceprof.patterns import lazy
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Mapping

    from traceprof.intervals import Int64, Intervals
    from traceprof.trace.model.host_code import HostCode
    from traceprof.trace.model.trace import Trace

_ADDRESS = lazy(r" at 0x[0-9a-fA-F]+")
_LINE = lazy(r"(?:.*/)?([^/]+/[^/]+\(\d+\): .*)")
_OF_FRAMEWORK = lazy(r"(?:.*/)?(?:torch|torch_\w+|functorch)/|nn\.Module: |<|\[")
_AUTOGRAD = "autograd::engine::evaluate_function: "


class CodeEvidence(Record, frozen=True):
    """What the operators and functions of a thread say about it.

    Attributes:
        sleep: when it waited in a function of Python, and when it was in any other code.
        loading: when it waited for the next item of a data loader.
        setup: when it created communicators or compiled.
    """

    sleep: Sleep
    loading: Intervals
    setup: Intervals


def code_evidence(trace: Trace, process: int, thread: int) -> CodeEvidence:
    """Return the evidence from the operators and functions of a thread."""
    functions = trace.python_functions(process)
    inside = [
        _union(code, np.flatnonzero(code.packed_thread.isin([thread])))
        for code in (trace.operators(process), functions)
        if code is not None
    ]
    asleep = _named(functions, thread, names.PYTHON_SLEEP)
    awake = intervals.subtract(intervals.merge(*inside), asleep)
    loading, setup = (
        _named(functions, thread, matching)
        for matching in (names.PYTHON_LOADING, names.PYTHON_SETUP)
    )
    return CodeEvidence(Sleep(asleep, awake), loading, setup)


def code_within(
    trace: Trace, process: int, threads: Iterable[int], idle: Intervals
) -> Mapping[str, int]:
    """Return the code that threads ran during some time, in ns by name.

    Each nanosecond counts for the outermost operator there, with the line of Python that called it:
    the nearest that is not the framework's.

    Args:
        trace: the report.
        process: the process.
        threads: of the process.
        idle: the time.
    """
    spent: dict[str, int] = {}
    tables = (trace.operators(process), trace.python_functions(process))
    kinds = [(code, code is tables[0]) for code in tables if code is not None]
    for thread in threads:
        parts = [(code, is_op, _rows_within(code, thread, idle)) for code, is_op in kinds]
        if any(len(rows) for *_, rows in parts):
            for name, ns in _of_thread(parts, idle).items():
                spent[name] = spent.get(name, 0) + ns
    return spent


def _of_thread(parts: list[tuple[HostCode, bool, Int64]], idle: Intervals) -> dict[str, int]:
    start = np.concatenate([code.start_ns[rows] for code, _, rows in parts])
    end = np.concatenate([code.ends(rows) for code, _, rows in parts])
    name = np.concatenate([code.packed_name.at(rows) for code, _, rows in parts])
    is_operator = np.concatenate([np.full(len(rows), is_op) for _, is_op, rows in parts])
    order = np.lexsort((is_operator, -end, start))
    name, is_operator = name[order], is_operator[order]
    spans = nested(start[order], end[order])
    texts = parts[0][0].names
    is_line = {key: is_own_line(texts[key]) for key in distinct_values(name).tolist()}
    own_line = np.array([is_line[key] for key in name.tolist()], np.bool_) & ~is_operator
    index = np.arange(len(name))
    function = spans.inherited(np.where(is_operator, -1, index))
    line = spans.inherited(np.where(own_line, index, -1))
    line = np.where(line >= 0, line, function)
    nearest = spans.inherited(np.where(is_operator, index, -1))
    # An operator counts where no operator is around it.
    around = np.where(spans.parent >= 0, nearest[spans.parent], -1)
    operator = spans.inherited(np.where(is_operator & (around < 0), index, -1))
    begin, stop, inner = spans.innermost()
    covered = intervals.covered_within(idle, begin, stop)
    width = len(texts) + 1
    names_of = [np.where(of >= 0, name[of], -1)[inner] + 1 for of in (operator, line)]
    keys, which = np.unique(names_of[0] * width + names_of[1], return_inverse=True)
    total = np.zeros(len(keys), np.int64)
    np.add.at(total, which.reshape(-1), covered)
    spent: dict[str, int] = {}
    for key, ns in zip(keys.tolist(), total.tolist(), strict=True):
        if ns:
            text = _text(*(texts[part - 1] if part else "" for part in divmod(key, width)))
            spent[text] = spent.get(text, 0) + ns
    return spent


def is_own_line(name: str) -> bool:
    """Return whether a function of Python is not the framework's."""
    return not _OF_FRAMEWORK.match(name)


def line_text(name: str) -> str:
    """Return file, line and name of a function of Python as readers see it: `a/b.py(7): f`."""
    match = _LINE.fullmatch(name)
    return _ADDRESS.sub("", match[1] if match else name)


def _text(operator: str, line: str) -> str:
    """Return the name of an operator with the line of Python that called it, where known."""
    line = line_text(line)
    operator = operator.removeprefix(_AUTOGRAD)
    return f"{operator} in {line}" if operator and line else operator or line


def _rows_within(code: HostCode, thread: int, idle: Intervals) -> Int64:
    rows = np.flatnonzero(code.packed_thread.isin([thread]))
    return rows[intervals.covered_within(idle, code.start_ns[rows], code.ends(rows)) > 0]


def functions_named(trace: Trace, process: int, matching: re.Pattern[str]) -> Intervals:
    """Return when any thread of a process was in a function of Python whose name matches."""
    functions = trace.python_functions(process)
    if functions is None:
        return intervals.empty()
    return _union(
        functions, np.flatnonzero(functions.packed_name.isin(_matching(functions, matching)))
    )


def _matching(code: HostCode, matching: re.Pattern[str]) -> list[int]:
    numbers = code.packed_name.distinct.tolist()
    return [number for number in numbers if matching.search(code.names[number])]


def _named(code: HostCode | None, thread: int, matching: re.Pattern[str]) -> Intervals:
    """Return when a thread was in functions whose name matches."""
    if code is None:
        return intervals.empty()
    return _union(code, rows_named(code, [thread], matching))


def rows_named(code: HostCode, threads: Iterable[int], matching: re.Pattern[str]) -> Int64:
    """Return the functions of threads whose name matches, int64[k], ascending."""
    chosen = _matching(code, matching)
    if not chosen:
        return np.empty(0, np.int64)
    return np.flatnonzero(code.packed_name.isin(chosen) & code.packed_thread.isin(threads))


def _union(code: HostCode, rows: Int64) -> Intervals:
    return intervals.union(code.start_ns[rows], code.ends(rows))
