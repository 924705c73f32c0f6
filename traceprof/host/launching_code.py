"""The code around the launch of each kernel: operator, module, line of Python."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from traceprof import intervals, labels
from traceprof.host.host_code import Nested, is_own_line, line_text, nested
from traceprof.intervals import Int32, Int64, Mask
from traceprof.run.rank import Rank
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values
from traceprof.trace.model.ranges import OF_CALL, name_until
from traceprof.trace.model.special_values import NULL

_MODULE = "nn.Module: "
# `torch.autograd.profiler.emit_nvtx` adds ", seq = 7, sizes = [...]"; ranges of `instrument` with
# the path of a module are `module PATH`.
_OF_NVTX = re.compile(rf"\A(?:\w+::[\w:.]+|{labels.MODULE} )")
_OF_MODULES = re.compile(rf"\A{labels.MODULE} ")
_OPERATOR, _MODULES, _LINES = range(3)


class LaunchingCode(Record, frozen=True):
    """The code around the launches of n kernels."""

    # int32[n], index into `operators`, of the innermost one; -1 if none is known. Of a replayed
    # graph's kernels that of their capture, where it is in the recording
    operator: Int32
    module: Int32  # int32[n], index into `modules`; of the backward, that of the forward
    line: Int32  # int32[n], index into `lines`, of the innermost that is not a framework's
    # int32[n], index into `flops` of the innermost operator with a formula; -1 for none
    counted: Int32
    innermost: Int32  # int32[n], index into `moved` of the innermost operator; -1 for none
    is_backward: Mask  # bool[n], whether module and line are those of the forward's operator
    flops: Int64  # int64[m], multiplications and additions of operators
    moved: Int64  # int64[m], bytes that operators move at least; negative where that is unknown
    read: Int64  # int64[m], the part of these that they read
    operators: Sequence[str]  # names
    modules: Sequence[str]  # paths: names from the outermost to the innermost module, with dots
    lines: Sequence[str]  # files with line numbers and functions


class _Spans(NamedTuple):
    start_ns: Int64  # int64[m]
    end_ns: Int64  # int64[m]
    thread: Int64  # int64[m]
    kind: Int64  # int64[m]
    text: Int64  # int64[m], index into the texts of its kind
    sequence: Int64  # int64[m], the number that joins forward and backward, else NULL
    flops: Int64  # int64[m], multiplications and additions, NULL if unknown
    moved: Int64  # int64[m], bytes, negative where unknown
    read: Int64  # int64[m], the part of them that is read


_Texts = tuple[dict[str, int], ...]  # numbers of the texts of each kind


def launching_code(rank: Rank, kernels: Int64) -> LaunchingCode | None:
    """Code around the launches of kernels (indices); None if nothing is known of it."""
    texts: _Texts = ({}, {}, {})
    spans = _spans(rank, texts)
    if spans is None or rank.calls is None or not len(rank.calls):
        return None
    call = rank.launched_by[0].take(kernels)
    around = np.full((5, len(call)), -1, np.int32)
    joining: list[tuple[Int64, Int64]] = []
    forward: list[tuple[Int64, Int64, Int64, Int64]] = []
    paths = _Paths([*texts[_MODULES]], are_whole=rank.trace.operators(rank.process) is None)
    for number in distinct_values(spans.thread).tolist():
        rows = np.flatnonzero(spans.thread == number)
        start = spans.start_ns.take(rows)
        if (start[1:] <= start[:-1]).any():
            rows = rows[np.lexsort((spans.kind[rows], -spans.end_ns[rows], start))]
        nest = nested(spans.start_ns.take(rows), spans.end_ns.take(rows))
        begin, stop, span = nest.innermost()
        kind, text = spans.kind.take(rows), spans.text.take(rows)
        own = [np.where(kind == of, text, -1) for of in (_OPERATOR, _MODULES, _LINES)]
        own[_MODULES] = paths.of(nest, own[_MODULES])
        own.append(np.where(spans.flops[rows] >= 0, rows, -1))
        own.append(np.where(kind == _OPERATOR, rows, -1))
        inherited = [nest.inherited(values) for values in own]
        numbers = np.where(kind == _OPERATOR, spans.sequence[rows], NULL)
        joins = nest.inherited(np.where(numbers >= 0, numbers, -1))
        if has_joins := joins.max(initial=-1) >= 0:
            forward.append((numbers, nest.start_ns, inherited[_MODULES], inherited[_LINES]))
        of_thread = rank.calls.packed_thread.isin([number])
        here = np.flatnonzero(of_thread.take(call) & (call >= 0))
        place = intervals.holder(begin, stop, rank.calls.start_ns.take(call.take(here)))
        here, inner = here.compress(place >= 0), span.take(place.compress(place >= 0))
        around[:, here] = [values.take(inner) for values in inherited]
        if has_joins:
            joining.append((here, joins.take(inner)))
    is_backward = _join(around, joining, forward)
    operator, module, line, counted, inner_operator = around
    return LaunchingCode(
        operator,
        module,
        line,
        counted,
        inner_operator,
        is_backward,
        spans.flops,
        spans.moved,
        spans.read,
        [*texts[_OPERATOR]],
        paths.names,
        [*texts[_LINES]],
    )


def _join(
    around: Int32,
    joining: list[tuple[Int64, Int64]],
    forward: list[tuple[Int64, Int64, Int64, Int64]],
) -> Mask:
    """Set module and line of backward kernels to those of the forward operator, in place.

    If several operators have one sequence number, the last one made the gradient's node.
    """
    is_backward: Mask = np.zeros(around.shape[1], np.bool_)
    if not forward:
        return is_backward
    number, start, module, line = (
        np.concatenate(columns) for columns in zip(*forward, strict=True)
    )
    known = np.flatnonzero((number >= 0) & ((module >= 0) | (line >= 0)))
    known = known[np.lexsort((start[known], number[known]))]
    if len(known) == 0:
        return is_backward
    sequence = np.full(around.shape[1], NULL, np.int64)
    for here, joins in joining:
        sequence[here] = joins
    place = np.searchsorted(number[known], sequence, side="right") - 1
    joined = known[np.maximum(place, 0)]
    is_joined = (place >= 0) & (number[joined] == sequence) & (around[_MODULES] < 0)
    is_joined &= sequence >= 0
    is_backward = is_joined & (module[joined] >= 0)
    around[_MODULES] = np.where(is_joined, module[joined], around[_MODULES])
    around[_LINES] = np.where(is_joined & (line[joined] >= 0), line[joined], around[_LINES])
    return is_backward


class _Paths:
    def __init__(self, modules: Sequence[str], *, are_whole: bool) -> None:
        self._modules, self._are_whole = modules, are_whole
        self._known: dict[tuple[int, int], int] = {}
        self.names: list[str] = []

    def of(self, nest: Nested, module: Int64) -> Int64:
        """Number of the path of each span that is a module, else -1.

        `module`: int64[m], the name's number of those that are modules, else -1.
        """
        rows = np.flatnonzero(module >= 0)
        path = np.full(len(module), -1, np.int64)
        inside = nested(nest.start_ns[rows], nest.end_ns[rows])
        of_module = np.full(len(rows), -1, np.int64)
        for depth in range(int(inside.depth.max(initial=-1)) + 1):  # few
            level = np.flatnonzero(inside.depth == depth)
            parent = inside.parent[level]
            above = np.where(parent >= 0, of_module[parent], -1)
            width = len(self._modules)
            keys = (above + 1) * width + module[rows[level]]
            pairs, which = np.unique(keys, return_inverse=True)
            numbers = [self._number(pair // width - 1, pair % width) for pair in pairs.tolist()]
            of_module[level] = np.array(numbers, np.int64)[which]
        path[rows] = of_module
        return path

    def _number(self, above: int, name: int) -> int:
        key = -1 if self._are_whole else above, name
        if key not in self._known:
            self._known[key] = len(self.names)
            outer = f"{self.names[key[0]]}." if key[0] >= 0 else ""
            self.names.append(f"{outer}{self._modules[name]}")
        return self._known[key]


def _spans(rank: Rank, texts: _Texts) -> _Spans | None:
    parts = [*_of_profiler(rank, texts)] or [*_of_nvtx(rank, texts)]
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else _Spans(*map(np.concatenate, zip(*parts, strict=True)))


def _of_profiler(rank: Rank, texts: _Texts) -> list[_Spans]:
    parts = []
    tables = (rank.trace.operators(rank.process), rank.trace.python_functions(rank.process))
    for code, is_operator in zip(tables, (True, False), strict=True):
        if code is None:
            continue
        names = code.packed_name.distinct
        known = [
            (_OPERATOR, name) if is_operator else _of_python(name)
            for name in (code.names[key] for key in names.tolist())
        ]
        of_name = [(kind, _number(texts[kind], text) if kind >= 0 else -1) for kind, text in known]
        place = code.packed_name.places_in(names)
        kinds, numbers = np.array(of_name, np.int64).reshape(-1, 2)[place].T
        rows = np.flatnonzero(kinds >= 0)
        sequence = np.full(len(rows), NULL) if code.sequence is None else code.sequence.at(rows)
        parts.append(
            _Spans(
                code.start_ns[rows],
                code.ends(rows),
                code.packed_thread.at(rows),
                kinds[rows],
                numbers[rows],
                sequence,
                *code.work_of(rows),
            )
        )
    return parts


def _number(texts: dict[str, int], text: str) -> int:
    return texts.setdefault(text, len(texts))


def _of_python(name: str) -> tuple[int, str]:
    if name.startswith(_MODULE):
        return _MODULES, name.removeprefix(_MODULE)
    return (_LINES, line_text(name)) if is_own_line(name) else (-1, "")


def _of_nvtx(rank: Rank, texts: _Texts) -> list[_Spans]:
    module = f"{labels.MODULE} "
    # Without modules no call's number is needed: nothing of the forward is known to the backward.
    has_modules = rank.process in rank.trace.ranges(_OF_MODULES, rank.process)
    until = None if has_modules else OF_CALL
    ranges = rank.trace.ranges(_OF_NVTX, rank.process, until).get(rank.process)
    if ranges is None:
        return []
    read = np.empty((3, len(ranges.names)), np.int64)
    for place in dict.fromkeys(ranges.name.tolist()):
        name = ranges.names[place]
        kind, text = _OPERATOR, name_until(name, OF_CALL)
        if name.startswith(module):
            kind, text = _MODULES, name.removeprefix(module)
        match = _SEQUENCE.search(name)
        read[:, place] = kind, _number(texts[kind], text), int(match[1]) if match else NULL
    kinds, numbers, sequence = read[:, ranges.name]
    unknown = np.full(len(ranges), NULL)
    return [
        _Spans(
            ranges.start_ns,
            ranges.end_ns,
            ranges.thread,
            kinds,
            numbers,
            sequence,
            unknown,
            unknown,
            unknown,
        )
    ]


_SEQUENCE = re.compile(r", seq = (\d{1,15})(?!\d)")
