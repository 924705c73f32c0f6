"""Named ranges on the host: some of them, all of a process, and those of `instrument`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from traceprof import labels
from traceprof.intervals import NO_NUMBERS, Int64
from traceprof.labels import Label
from traceprof.trace.columns import Rows
from traceprof.trace.grouping import is_in
from traceprof.trace.model.communication_calls import (
    BARRIER,
    OPERATIONS,
    CommunicationCalls,
    Fields,
    number_of,
    read_call,
)
from traceprof.trace.model.special_values import NULL, UNKNOWN

RUNNING_NUMBER = re.compile(r" seq=(\d+)(?![^ \0])")
"""The number of a call in its process group, in a label."""

# All calls and steps differ in their numbers; without them there are few kinds.
_STEP = re.compile(rf"(?<![^\0]){labels.STEP} \d+(?![^\0])")
BETWEEN_TEXTS = "\0"
"""A character that no text holds: it ends C strings, as NVTX has them."""


class NamedRanges(Rows, frozen=True):
    """NVTX ranges of one process, ordered by start, then end."""

    start_ns: Int64  # int64[n]
    end_ns: Int64  # int64[n]; the largest int64 if the range was still open at the capture's end
    name: Int64  # int64[n], indices into `names`
    thread: Int64  # int64[n], the thread that opened it
    end_thread: Int64  # int64[n], the thread that closed it, or would have closed it
    names: Sequence[str]  # by number

    @property
    def texts(self) -> list[str]:
        """The name of each."""
        return [self.names[number] for number in self.name.tolist()]

    def named(self, is_wanted: Callable[[str], object]) -> NamedRanges:
        """Return the ranges whose name a function accepts."""
        accepts = np.array([bool(is_wanted(name)) for name in self.names], np.bool_)
        return self.chosen(accepts[self.name])


class RangeTable(Rows, frozen=True):
    """All NVTX ranges of one process, ordered by start, longer ones first."""

    start_ns: Int64  # int64[n]
    end_ns: Int64  # int64[n]; the largest int64 if the range was still open at the capture's end
    name: Int64  # int64[n], indices into `names`
    thread: Int64  # int64[n], the thread that opened it
    # bool[n], whether it was pushed and popped, so that it nests with others of its thread; if
    # not, it was started and ended, perhaps by another thread
    nests: npt.NDArray[np.bool_]
    names: Sequence[str]  # by number


class LabelRanges(Rows, frozen=True):
    """The NVTX ranges that `instrument` made in one process, ordered by thread, start, nesting."""

    start_ns: Int64  # int64[n]
    end_ns: Int64  # int64[n]; the largest int64 if the range was still open at the capture's end
    thread: Int64  # int64[n], the thread that opened it
    # bool[n], whether it was pushed and popped, so that it nests with others of its thread; if
    # not, it was started and ended, perhaps by another thread
    nests: npt.NDArray[np.bool_]
    text: Int64  # int64[n], indices into `texts`
    texts: Sequence[str]  # the distinct texts
    kind: Int64  # int64[n], indices into `kinds`
    # the distinct labels, without sequence numbers (`seq`), steps with the number 0
    kinds: Sequence[Label]

    @property
    def sequence(self) -> Int64:
        """The sequence number of each of `texts`, -1 for none: int64[texts]."""
        matches = map(RUNNING_NUMBER.search, self.texts)
        numbers = (number_of(match and match[1]) for match in matches)
        return np.fromiter(numbers, np.int64, len(self.texts))


OF_CALL = re.compile(r", (?:(?:stashed )?seq|op_id|sizes|input_op_ids) = ")
"""What PyTorch's `emit_nvtx` adds behind the name of an operator begins so."""


def name_until(name: str, until: re.Pattern[str] | None) -> str:
    """Return a name up to the first match of `until`; all of it without one."""
    return name if until is None else until.split(name, 1)[0]


def labelled(
    start_ns: Int64,
    end_ns: Int64,
    thread: Int64,
    nests: npt.NDArray[np.bool_],
    names: Sequence[str],
) -> LabelRanges:
    """Ranges of `instrument`, by thread, start, nesting, with the contents of their texts."""
    text, texts = _numbered(names)
    without = RUNNING_NUMBER.sub("", BETWEEN_TEXTS.join(texts))
    kind_of_text, kinds = _numbered(_STEP.sub(labels.step(0), without).split(BETWEEN_TEXTS))
    return LabelRanges(
        start_ns=start_ns,
        end_ns=end_ns,
        thread=thread,
        nests=nests,
        text=text,
        texts=texts,
        kind=kind_of_text[text],
        kinds=[labels.parse(kind) for kind in kinds],
    )


def _numbered(texts: Sequence[str]) -> tuple[Int64, list[str]]:
    numbers: dict[str, int] = {}
    indices = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)
    return indices, list(numbers)


def longest_names(number: Int64, length_ns: Int64, names: Sequence[str], limit: int) -> list[str]:
    """Names of the longest ranges, longest first; `number`: int64[n], indices into `names`."""
    longest = np.full(len(names), NULL)
    np.maximum.at(longest, number, length_ns)
    in_order = np.argsort(~longest, kind="stable")
    known = (names[place] for place in in_order.tolist() if longest[place] > NULL)
    return [*dict.fromkeys(filter(None, known))][:limit]


class Marks(Rows, frozen=True):
    """All marks of one process, ordered by time."""

    time_ns: Int64  # int64[n]
    name: Int64  # int64[n], indices into `names`
    thread: Int64  # int64[n], the thread of the mark
    names: Sequence[str]  # by number


NO_RANGES = RangeTable(*(NO_NUMBERS,) * 4, np.empty(0, np.bool_), ())
NO_MARKS = Marks(*(NO_NUMBERS,) * 3, ())


class CallRange(NamedTuple):
    """A call that communicates."""

    start: int  # in ns
    end: int  # in ns; the largest int64 if still open at the capture's end
    thread: int  # of the call
    operation: str  # one of `OPERATIONS`, or `Barrier`
    fields: Fields  # known facts


def labelled_calls(ranges: LabelRanges) -> list[CallRange]:
    """Return the pushed ranges that are labels of communication calls, in their order."""
    calls = {
        number: call
        for number, text in enumerate(ranges.texts)
        if (call := read_call(labels.parse(text))) is not None
    }
    found = ranges.chosen(ranges.nests & is_in(ranges.text, [*calls]))
    columns = (found.start_ns, found.end_ns, found.thread, found.text)
    return [
        CallRange(start, end, thread, calls[text].operation, calls[text].fields)
        for start, end, thread, text in zip(*(of.tolist() for of in columns), strict=True)
    ]


def nested_calls(ranges: Sequence[CallRange]) -> CommunicationCalls:
    """Calls of one process, each a launch range of its own.

    A call without a size stands for the calls inside it. `ranges`: ordered by thread, then start,
    longer ones first.
    """
    parents: list[int] = []
    inside: list[list[int]] = [[] for _ in ranges]
    open_: list[int] = []
    for number, call in enumerate(ranges):
        while open_ and (ranges[open_[-1]].thread, ranges[open_[-1]].end) < (
            call.thread,
            max(call.end, call.start + 1),
        ):
            open_.pop()
        parents.append(open_[-1] if open_ else UNKNOWN)
        if open_:
            inside[open_[-1]].append(number)
        open_.append(number)
    members = [
        calls if calls and call.fields.bytes < 0 else [number]
        for number, (call, calls) in enumerate(zip(ranges, inside, strict=True))
    ]
    fields = [call.fields for call in ranges]
    # NCCL's barrier is an all-reduce.
    kinds = ["AllReduce" if call.operation == BARRIER else call.operation for call in ranges]
    names = [*dict.fromkeys(of.communicator for of in fields if of.communicator)]

    def column(values: Iterable[int]) -> Int64:
        return np.array([*values], np.int64)

    start, end, thread = (
        column(getattr(call, name) for call in ranges) for name in ("start", "end", "thread")
    )
    return CommunicationCalls(
        start_ns=start,
        end_ns=end,
        thread=thread,
        operation=column(map(OPERATIONS.index, kinds)),
        bytes=column(of.bytes for of in fields),
        communicator=column(
            names.index(of.communicator) if of.communicator else UNKNOWN for of in fields
        ),
        peer=column(of.peer for of in fields),
        world_size=column(of.world_size for of in fields),
        sequence=column(of.sequence for of in fields),
        launch_start_ns=start,
        launch_end_ns=end,
        launch_thread=thread,
        launch_parent=column(parents),
        first_member=np.append(0, np.cumsum(column(map(len, members)))),
        members=column(chain.from_iterable(members)),
        communicators=tuple(names),
        descriptions={
            of.communicator: of.description for of in fields if of.communicator and of.description
        },
    )
