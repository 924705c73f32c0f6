"""Decoded events of a trace, with only the needed fields."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import Decimal
from enum import IntEnum
from itertools import compress, repeat
from operator import attrgetter, methodcaller
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from traceprof.intervals import Int64, Mask
from traceprof.trace.model.special_values import NULL

MAX_FLOAT_US = float(1 << 43)
"""Below this, a float holds a time in microseconds exactly to the nanosecond."""
_MAX_US = float(1 << 52)
_NS_PER_US, _DIGITS = 1000, 3  # behind the point
_ZERO, _POINT, _END = ord("0"), ord("."), 0
_MISSING = b"null"
_MAX_LENGTH = 17  # of a text whose digits fit in 64 bits, in ns too
_MAX_TEXT = 64  # of a time, whatever its digits
_LIMITS = np.iinfo(np.int64)


def integers(values: Sequence[int | str | None]) -> Int64:
    """Return a column, int64[n], NULL for missing values, non-numbers and beyond 64 bits."""
    if values.count(None) == len(values):
        return np.full(len(values), NULL)
    try:
        return np.array(values, np.int64)
    except (TypeError, ValueError, OverflowError):
        known = (
            value if isinstance(value, int) and _LIMITS.min <= value <= _LIMITS.max else NULL
            for value in values
        )
        return np.fromiter(known, np.int64, len(values))


def has_exact_floats(times_us: npt.NDArray[np.generic]) -> bool:
    """Whether times hold the nanoseconds of the text, or are whole numbers."""
    if times_us.dtype != np.float64:
        return True
    return not (np.abs(times_us) >= MAX_FLOAT_US).any()


def nanoseconds(times_us: npt.NDArray[np.generic]) -> Int64:
    """Times in nanoseconds, int64[n]; NULL for values that are no times."""
    if times_us.dtype == np.int64:
        whole = times_us.astype(np.int64, copy=False)
        return np.where(np.abs(whole) <= _MAX_US, whole * _NS_PER_US, NULL)
    floats = times_us.astype(np.float64, copy=False)
    is_time = np.abs(floats) <= _MAX_US
    floats = np.where(is_time, floats, 0.0)
    below = np.floor(floats)
    behind = np.rint((floats - below) * _NS_PER_US).astype(np.int64)
    return np.where(is_time, below.astype(np.int64) * _NS_PER_US + behind, NULL)


def nanoseconds_of_texts(texts: Sequence[bytes]) -> Int64:
    """Nanoseconds, int64[n], from texts in microseconds; NULL for other texts."""
    if not texts:
        return np.empty(0, np.int64)
    texts = [text if len(text) <= _MAX_TEXT else _MISSING for text in texts]
    whole = np.array(texts, np.bytes_)
    digits = whole.view(np.uint8).reshape(len(texts), whole.dtype.itemsize)
    behind = np.full(len(texts), -1)  # digits behind the point, -1 before it
    value = np.zeros(len(texts), np.int64)
    is_plain = np.ones(len(texts), np.bool_)
    for column in digits.T:
        is_digit = (column >= _ZERO) & (column < _ZERO + 10)
        is_point = (column == _POINT) & (behind < 0)
        is_plain &= is_digit | is_point | (column == _END)
        behind += (is_digit & (behind >= 0)) | is_point
        value = np.where(is_digit, value * 10 + (column - np.int64(_ZERO)), value)
    behind = np.maximum(behind, 0)
    is_plain &= (behind <= _DIGITS) & (np.char.str_len(whole) <= _MAX_LENGTH)
    value *= 10 ** np.maximum(_DIGITS - behind, 0)
    is_missing = whole == _MISSING
    value[is_missing | (value > _MAX_US * _NS_PER_US)] = NULL
    for index in np.flatnonzero(~is_plain & ~is_missing).tolist():
        value[index] = _nanoseconds(texts[index])
    return value


def _nanoseconds(text: bytes) -> int:
    """Time from a text with a sign, an exponent, or more digits."""
    try:
        time_us = Decimal(text.decode("ascii"))
        if not abs(time_us) <= _MAX_US:
            return NULL
    except (ArithmeticError, UnicodeDecodeError):
        return NULL
    return int((time_us * _NS_PER_US).to_integral_value())


_NOTHING = msgspec.Raw(b"null")


class Arguments(msgspec.Struct, gc=False, frozen=True):
    """Arguments of an event; None if missing."""

    # First those of most events, in the order of the document: they are found at once.
    external: int | None = msgspec.field(name="External id", default=None)
    device: int | None = None
    stream: int | str | None = None  # of ROCm's calls, an address: "0x0"
    correlation: int | None = None
    bytes: int | None = None
    # Of copies between devices, instead of `device`.
    copying_device: int | None = msgspec.field(name="inDevice", default=None)
    source_device: int | None = msgspec.field(name="fromDevice", default=None)
    destination_device: int | None = msgspec.field(name="toDevice", default=None)
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    name: str | None = None
    finished: bool | None = None
    awaited_stream: int | None = msgspec.field(name="wait_on_stream", default=None)
    awaited_event: int | None = msgspec.field(name="wait_on_cuda_event_id", default=None)
    awaited_record: int | None = msgspec.field(
        name="wait_on_cuda_event_record_corr_id", default=None
    )
    collective: str | None = msgspec.field(name="Collective name", default=None)
    num_in: int | None = msgspec.field(name="In msg nelems", default=None)
    num_out: int | None = msgspec.field(name="Out msg nelems", default=None)
    data_type: str | None = msgspec.field(name="dtype", default=None)
    group_size: int | None = msgspec.field(name="Group size", default=None)
    group: str | int | None = msgspec.field(name="Process Group Name", default=None)
    group_id: str | int | None = msgspec.field(name="Process Group ID", default=None)
    group_description: str | None = msgspec.field(name="Process Group Description", default=None)
    group_ranks: str | None = msgspec.field(name="Process Group Ranks", default=None)
    source: int | None = msgspec.field(name="Src Rank", default=None)
    destination: int | None = msgspec.field(name="Dst Rank", default=None)
    sequence: int | None = msgspec.field(name="Seq", default=None)
    autograd_sequence: int | None = msgspec.field(name="Sequence number", default=None)
    input_sizes: msgspec.Raw = msgspec.field(name="Input Dims", default=_NOTHING)
    input_values: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=_NOTHING)
    input_types: msgspec.Raw = msgspec.field(name="Input type", default=_NOTHING)
    input_strides: msgspec.Raw = msgspec.field(name="Input Strides", default=_NOTHING)


_NO_ARGUMENTS = Arguments()


class AnyEvent(msgspec.Struct, gc=False, frozen=True):
    """An event as the document has it, without its times."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    args: Arguments = _NO_ARGUMENTS


class Event(AnyEvent, gc=False, frozen=True):
    """An event with times in microseconds."""

    ts: int | float | None = None
    dur: int | float | None = None


class ExactEvent(AnyEvent, gc=False, frozen=True):
    """An event with times as they are written: floats would round them."""

    ts: msgspec.Raw = _NOTHING
    dur: msgspec.Raw = _NOTHING


class Kind(IntEnum):
    """The kind of an event."""

    NOT_NEEDED = 0
    KERNEL = 1
    COPY = 2
    MEMORY_SET = 3
    API_CALL = 4
    SYNCHRONIZATION = 5
    ANNOTATION = 6
    OPERATOR = 7  # around calls of communication
    OVERHEAD = 8
    SPAN = 9
    OTHER = 10  # without a category: names of processes, marks
    MARK = 11
    HOST_OPERATOR = 12  # all operators: those of other kinds, too
    PYTHON = 13
    UNREAD = 14  # work of accelerators that no part of the analysis knows


_KINDS = {
    Kind.KERNEL: ("kernel", "Kernel"),
    Kind.COPY: ("gpu_memcpy", "Memcpy"),
    Kind.MEMORY_SET: ("gpu_memset", "Memset"),
    Kind.API_CALL: ("cuda_runtime", "cuda_driver", "Runtime", "Driver"),
    Kind.SYNCHRONIZATION: ("cuda_sync",),
    Kind.ANNOTATION: ("user_annotation",),
    Kind.OPERATOR: ("cpu_op", "Operator"),
    Kind.OVERHEAD: ("overhead",),
    Kind.SPAN: ("Trace",),
    Kind.MARK: ("cpu_instant_event",),
    Kind.PYTHON: ("python_function",),
    Kind.UNREAD: (
        "mtia_ccp_events",
        "mtia_workloadd",
        "mtia_insight",
        "hpu_op",
        "glow_runtime",
        "cuda_profiler_range",
    ),
    Kind.OTHER: (None,),
}


# As plain integers, which are quicker to put into a column.
_KIND_OF = {name: int(kind) for kind, names in _KINDS.items() for name in names}
AROUND_CALLS = "record_param_comms"
"""The operator around each call of a back end of communication that has streams."""
# PyTorch's own ranges, which it wrote as operators until 1.10.
_RANGES = (
    "ProfilerStep#",
    "enumerate(DataLoader)#",
    "Optimizer.step#",
    "Optimizer.zero_grad#",
    "DistributedDataParallel.forward",
    "DataParallel.forward",
)
_MEMORY = "[memory]"  # one of very many allocations: no mark of the program
# Not strict: ROCm writes sizes as texts.
_DECODER = msgspec.json.Decoder(list[Event], strict=False)
_EXACT_DECODER = msgspec.json.Decoder(list[ExactEvent], strict=False)
_TIMES = attrgetter("ts"), attrgetter("dur")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_MAX_DIGITS = 19  # of an integer of 64 bits
_ENCODER = msgspec.json.Encoder(decimal_format="number")


class Events:
    """Some events of one kind.

    Attributes:
        rows: the events.
        start_ns: int64[n], NULL without a time.
        length_ns: int64[n], NULL without a duration.
    """

    def __init__(self, rows: Sequence[AnyEvent], start_ns: Int64, length_ns: Int64) -> None:
        self.rows, self.start_ns, self.length_ns = rows, start_ns, length_ns

    def __len__(self) -> int:
        return len(self.rows)

    def values(self, name: str) -> list[Any]:
        """Return an attribute of each, such as `name` or `args.grid`."""
        return [*map(attrgetter(name), self.rows)]

    def integers(self, name: str) -> Int64:
        """Return an attribute of each, int64[n], NULL if it is not an integer of 64 bits."""
        return _integers(name, self.rows)

    def have(self, name: str, value: str) -> Mask:
        """Return which events have this value as an attribute, bool[n]."""
        values = self.values(name)
        if values.count(value) == len(values):
            return np.ones(len(values), np.bool_)
        return np.fromiter(map(value.__eq__, values), np.bool_, len(values))

    def chosen(self, chosen: Mask) -> Events:
        """Return some of the events, bool[n]."""
        if chosen.all():
            return self
        rows = [*compress(self.rows, chosen.tolist())]
        return Events(rows, self.start_ns[chosen], self.length_ns[chosen])


class EventDecoder:
    """Decodes lists of events, and sorts them by kind.

    Attributes:
        num_unusable: the number of objects that were no events.
    """

    def __init__(self) -> None:
        self.num_unusable = 0
        self._is_exact = False

    def text(self, events: bytes) -> dict[Kind, Events]:
        """Decode a JSON list of events; return those that are needed.

        Raises:
            msgspec.DecodeError: no such list, or one of its items is no event.
            UnicodeDecodeError: not UTF-8.
            RecursionError: nested too deeply.
        """
        if not self._is_exact:
            by_kind = {
                kind: (rows, *(_times(of, rows) for of in _TIMES))
                for kind, rows in _sorted_by_kind(_DECODER.decode(events)).items()
            }
            times = [column for _, *columns in by_kind.values() for column in columns]
            if all(map(has_exact_floats, times)):
                return {
                    kind: Events(rows, nanoseconds(start), nanoseconds(length))
                    for kind, (rows, start, length) in by_kind.items()
                }
            self._is_exact = True
        exact = _sorted_by_kind(_EXACT_DECODER.decode(events))
        return {
            kind: Events(
                rows, *(nanoseconds_of_texts([*map(bytes, map(of, rows))]) for of in _TIMES)
            )
            for kind, rows in exact.items()
        }

    def sources(self, events: Sequence[bytes]) -> dict[Kind, Events]:
        """Decode events that may be no strict JSON; other objects are counted and left out."""
        objects = [*map(_strict, events)]
        try:
            return self.text(b"[%b]" % b",".join(objects))
        except msgspec.DecodeError:
            usable = [*filter(_is_event, objects)]
            self.num_unusable += len(objects) - len(usable)
            return self.text(b"[%b]" % b",".join(usable))


def _sorted_by_kind(rows: Sequence[AnyEvent]) -> dict[Kind, Sequence[AnyEvent]]:
    kinds = map(_KIND_OF.get, map(attrgetter("cat"), rows), repeat(int(Kind.NOT_NEEDED)))
    number = np.fromiter(kinds, np.int8, len(rows))
    by_kind: dict[Kind, Sequence[AnyEvent]] = {}
    for kind in np.flatnonzero(np.bincount(number)).tolist():
        if kind != Kind.NOT_NEEDED:
            indices = np.flatnonzero(number == kind).tolist()
            by_kind[Kind(kind)] = [*map(rows.__getitem__, indices)]
    operators = by_kind.pop(Kind.OPERATOR, [])
    # Most are PyTorch's own: they are checked only once.
    names = map(attrgetter("name"), operators)
    few = [*compress(operators, map(methodcaller("startswith", (AROUND_CALLS, *_RANGES)), names))]
    ranges = [event for event in few if event.name.startswith(_RANGES)]
    if ranges:
        operators = [event for event in operators if not event.name.startswith(_RANGES)]
        by_kind[Kind.ANNOTATION] = [*by_kind.get(Kind.ANNOTATION, ()), *ranges]
    if operators:
        by_kind[Kind.HOST_OPERATOR] = operators
    around = [event for event in few if event.name == AROUND_CALLS]
    if around:
        by_kind[Kind.OPERATOR] = around
    marks = [event for event in by_kind.pop(Kind.MARK, []) if event.name != _MEMORY]
    if marks:
        by_kind[Kind.MARK] = marks
    return by_kind


def _integers(name: str, rows: Sequence[Any]) -> Int64:
    try:
        return np.fromiter(map(attrgetter(name), rows), np.int64, len(rows))
    except (TypeError, ValueError, OverflowError):
        return integers([*map(attrgetter(name), rows)])


def _times(of: attrgetter[Any], rows: Sequence[Any]) -> Any:  # noqa: ANN401
    if isinstance(of(rows[0]), float):
        try:
            return np.fromiter(map(of, rows), np.float64, len(rows))
        except (TypeError, OverflowError):  # some are missing, or beyond any float
            pass
    values = [*map(of, rows)]
    times = np.array(values)
    if times.dtype in (np.int64, np.float64):
        return times
    is_time = (value is not None and abs(value) < MAX_FLOAT_US for value in values)
    return np.array([v if ok else np.nan for v, ok in zip(values, is_time, strict=True)])


def _strict(source: bytes) -> bytes:
    """Return an event as strict JSON, without values that it cannot express."""
    text = source.decode("utf-8", "replace")
    try:
        return _encoded(text)
    except UnicodeEncodeError:  # a lone surrogate
        return _encoded(_SURROGATE.sub(r"\\ufffd", text))


def _encoded(text: str) -> bytes:
    return _ENCODER.encode(
        json.loads(
            text,
            strict=False,
            parse_float=Decimal,
            parse_int=lambda digits: int(digits) if len(digits) < _MAX_DIGITS else Decimal(digits),
            parse_constant=lambda _: None,
        )
    )


def _is_event(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=Event, strict=False)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
