"""A trace's JSON document as a stream: its events list by list, and its other members.

The events are the one long list of the document. It is cut between events, and the text between
two cuts is decoded at once: if it is a list of objects, the cuts were right, since only the text
before decides the meaning of a bracket. Otherwise, because a cut was wrong or the text is no strict
JSON (NaN, control characters), events are decoded one by one.

Versions of PyTorch before 2.1 write backslashes in names and call stacks as they are, and most
versions write quotes in names as they are. Such an event is repaired, but only after it was found
to be no JSON, only in its texts, and only where there is one way to read it: numbers never change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from traceprof.errors import TraceFormatError
from traceprof.trace.kineto.events import EventDecoder, Events, Kind
from traceprof.trace.kineto.file import COPY_AGAIN, TraceFile

EVENTS = "traceEvents"
_SPACE = r"[ \t\r\n]*"
_BLANK = re.compile(_SPACE)
_NEXT = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*\{")
_LIST_BYTES = 1 << 18  # of events that are decoded at once: fits a core's cache
_MAX_TRIES = 8  # of places for a cut
# Even with a long call stack an event, or a fact of the document, is a thousandth of this.
_MAX_VALUE_BYTES = 1 << 25
# The decoder's message for a text that ends inside a string; else it stops where the last word or
# number begins.
_UNFINISHED = "Unterminated string"
_ESCAPE = "Invalid \\"  # its messages for a backslash that escapes nothing
_MAX_ESCAPED = 64  # texts outside of events
_WORD_LENGTH = len("-Infinity")
_LENIENT = json.JSONDecoder(strict=False)


class KinetoDocument:
    """A document without its events.

    Attributes:
        facts: the other members at the top, by name.
        is_cut: whether the document ends in the middle.
        num_repaired: the number of events with texts that were no JSON.
    """

    def __init__(
        self,
        file: TraceFile,
        pieces: Iterator[bytes],
        decoder: EventDecoder,
        add: Callable[[Mapping[Kind, Events]], None],
    ) -> None:
        """Read a document, `add` its events.

        Raises TraceFormatError: no JSON, or no object or list of objects.
        """
        self.facts: dict[str, Any] = {}
        self.is_cut = False
        self.num_repaired = 0
        self._num_escaped = 0  # texts of other members with escaped backslashes
        self._file, self._pieces, self._decoder, self._add = file, pieces, decoder, add
        self._buffer = b""
        self._offset = 0  # of the buffer in the content
        self._is_read = False  # whether all pieces are in the buffer
        try:
            begin = self._next_char()
            if begin not in {"[", "{"}:
                raise self._damaged("no JSON object or list begins here")
            self._drop(1)
            if begin == "[":
                self._read_events()
            else:
                self._read_members()
        except _CutError:
            self.is_cut = True
        for _ in self._pieces:  # to its end, at which the file is checked
            pass

    # -- the top ---------------------------------------------------------------------------------

    def _read_members(self) -> None:
        has_events = False
        char = self._next_char()
        while char != "}":
            name = self._value()
            if not isinstance(name, str):
                raise self._damaged("the name of a member is not text")
            if self._next_char() != ":":
                raise self._damaged("no colon follows the name of a member")
            self._drop(1)
            if name == EVENTS and self._next_char() == "[":
                if has_events:
                    raise self._damaged(f"a second list of {EVENTS}")
                has_events = True
                self._drop(1)
                self._read_events()
            else:
                self.facts[name] = self._value()
            char = self._next_char()
            if char == ",":
                self._drop(1)
                char = self._next_char()
                if char == "}":
                    raise self._damaged("a comma with nothing after it")
            elif char != "}":
                raise self._damaged("no comma follows a member")
        self._drop(1)

    # -- events ----------------------------------------------------------------------------------

    def _read_events(self) -> None:
        if self._next_char() == "]":
            self._drop(1)
            return
        while True:
            self._fill(_LIST_BYTES)
            if not self._take_list() and self._take_objects():
                return

    def _take_list(self) -> bool:
        """Take events up to a cut; return whether there were any."""
        stop = len(self._buffer)
        for _ in range(_MAX_TRIES):
            stop = self._buffer.rfind(b"}", 0, stop)
            if stop < 0:
                return False
            follows = _NEXT.match(self._buffer, stop + 1)
            if follows is None:
                continue
            try:
                events = self._decoder.text(b"[%b]" % self._buffer[: stop + 1])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return False
            self._add(events)
            self._drop(follows.end() - 1)
            return True
        return False

    def _take_objects(self) -> bool:
        """Take the complete events one by one; return whether the list is over."""
        text = self._buffer.decode("latin-1")  # one character per byte
        events, place, is_over = list[bytes](), 0, False
        while not is_over:
            start = _blank(text, place)
            try:
                event, end = self._event(text, start)
            except (json.JSONDecodeError, RecursionError) as error:
                if not events and not self._may_be_repaired(text, start, error):
                    self._need_more(text, error)
                break
            follows = _blank(text, end)
            if follows == len(text):
                if events or not self._is_read:
                    if not events:
                        self._need_more(text)
                    break
            elif text[follows] not in {",", "]"}:
                raise self._damaged("no comma follows an event")
            events.append(event)
            is_over = text[follows : follows + 1] == "]"
            place = follows + 1
        self._add(self._decoder.sources(events))
        self._drop(min(place, len(text)))
        return is_over

    def _event(self, text: str, start: int) -> tuple[bytes, int]:
        """Return an event, repaired if it is no JSON, and its end in the text."""
        try:
            _, end = _LENIENT.raw_decode(text, start)
        except json.JSONDecodeError as error:
            mended = None if _is_unfinished(text, error) else repaired(text, start)
            if mended is None:
                raise
            self.num_repaired += 1
            return mended[0].encode("latin-1"), mended[1]
        return self._buffer[start:end], end

    def _may_be_repaired(self, text: str, start: int, error: Exception) -> bool:
        """Read more of an event that is no JSON; return whether that may help to repair it.

        Raises _CutError: the document ends before the event does.
        """
        if _is_unfinished(text, error) or isinstance(error, RecursionError):
            return False
        if self._is_read and not has_end(text, start):
            raise _CutError
        if self._is_read or len(text) >= MAX_REPAIR_BYTES:
            return False
        self._fill(MAX_REPAIR_BYTES)
        return True

    # -- the buffer ------------------------------------------------------------------------------

    def _value(self) -> Any:  # noqa: ANN401
        self._next_char()
        while True:
            text = self._buffer.decode("latin-1")  # one character per byte
            try:
                _, end = _LENIENT.raw_decode(text)
            except (json.JSONDecodeError, RecursionError) as error:
                if not self._escape_at(text, error):
                    self._need_more(text, error)
                continue
            if end == len(text) and not self._is_read:  # a number may go on
                self._need_more(text)
                continue
            value = _LENIENT.decode(self._buffer[:end].decode("utf-8", "replace"))
            self._drop(end)
            return value

    def _escape_at(self, text: str, error: Exception) -> bool:
        """Escape the backslashes of the string with the error; return whether that was it."""
        if not isinstance(error, json.JSONDecodeError) or not error.msg.startswith(_ESCAPE):
            return False
        escaped = escaped_at(text, error.pos)
        if escaped is None or self._num_escaped == _MAX_ESCAPED:
            return False
        self._buffer = escaped.encode("latin-1")
        self._num_escaped += 1
        return True

    def _need_more(self, text: str, error: Exception | None = None) -> None:
        """Read more, since a value is not complete.

        Raises:
            _CutError: there is no more.
            TraceFormatError: more would not help.
        """
        if error is not None and not _is_unfinished(text, error):
            raise self._damaged(str(error))
        if self._is_read:
            raise _CutError
        if len(text) > _MAX_VALUE_BYTES:
            too_long = f"a value of more than {_MAX_VALUE_BYTES >> 20} MiB"
            raise _of_another_tool(self._file) or self._damaged(too_long)
        self._fill(2 * len(self._buffer))

    def _next_char(self) -> str:
        while True:
            self._fill(1)
            rest = self._buffer.lstrip(b" \t\r\n\xef\xbb\xbf" if not self._offset else b" \t\r\n")
            self._drop(len(self._buffer) - len(rest))
            if rest:
                return chr(rest[0])
            if self._is_read:
                raise _CutError

    def _fill(self, length: int) -> None:
        pieces, have = [self._buffer], len(self._buffer)
        while have < length and not self._is_read:
            piece = next(self._pieces, None)
            if piece is None:
                self._is_read = True
            else:
                pieces.append(piece)
                have += len(piece)
        if len(pieces) > 1:
            self._buffer = b"".join(pieces)

    def _drop(self, length: int) -> None:
        self._offset += length
        self._buffer = self._buffer[length:]

    def _damaged(self, why: str) -> TraceFormatError:
        is_overwritten = b"\0" in self._buffer[:MAX_REPAIR_BYTES]
        remedy = COPY_AGAIN if is_overwritten else RECORD_ESCAPED
        return self._file.damaged(f"no JSON at byte {self._offset} of its text ({why})", remedy)


class _CutError(Exception):
    """The document ends in the middle."""


def _is_unfinished(text: str, error: Exception) -> bool:
    """Whether a value may be no JSON only because the text ends in the middle of it."""
    return isinstance(error, json.JSONDecodeError) and (
        error.msg.startswith(_UNFINISHED) or error.pos >= len(text) - _WORD_LENGTH
    )


def _blank(text: str, place: int) -> int:
    match = _BLANK.match(text, place)
    assert match is not None  # noqa: S101  (it matches nothing, too)
    return match.end()


RECORD_AGAIN = "record again with torch.profiler"
RECORD_ESCAPED = (
    "record again with with_stack=False, or with a newer PyTorch: 2.1 and later escape backslashes"
)
MAX_REPAIR_BYTES = 1 << 20
"""The longest event that is repaired."""

_MAX_ENDS = 32  # places at which a damaged event may end
_SAMPLE_BYTES = 1 << 20
_END = re.compile(rf"\}}(?={_SPACE}(?:,{_SPACE}\{{|\]))")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')
# The members that writers put before the name and the one after it, all of simple values.
_UP_TO_NAME = re.compile(
    rf'\{{{_SPACE}(?:"\w+"{_SPACE}:{_SPACE}(?:"[^"\\]*"|[\d.]+){_SPACE},{_SPACE})*'
    rf'"name"{_SPACE}:{_SPACE}(?=")'
)
_NAME = re.compile(rf'"name"{_SPACE}:{_SPACE}"')
_AFTER_NAME = re.compile(rf'"(?={_SPACE},{_SPACE}"(?:ph|pid)"{_SPACE}:)')
_PROFILE_AGAIN = "record the program with `traceprof record`, or with torch.profiler"
_PROFILE_AMD = "record a PyTorch program with torch.profiler: of AMD GPUs only its traces are read"
_COUNTERS = "cuda_profiler_range"
_COUNTERS_ONLY = (
    "it holds the counters of CUPTI's range profiler, which runs kernels one by one: no timeline",
    "record again without profiler_metrics",
)
# Texts that only one tool writes into its traces.
_TOOLS = {
    "the profiler of TensorFlow or JAX": rb'"/(?:device:|host:|job:)',
    "VizTracer": rb'"viztracer_metadata"|"cat": ?"(?:fee|FEE)"',
    "speedscope": rb"speedscope\.app/file-format-schema",
    "Chrome's DevTools": rb"devtools\.timeline",
    "the Ascend profiler": rb"Ascend Hardware",
    "rocprofv3": rb'rocprofiler-sdk|"cat": ?"(?:kernel_dispatch|h(?:ip|sa)_api)"',
    "rocprof-sys": rb'"cat": ?"(?:rocm|device)_h(?:ip|sa)|rocprof-sys|[oO]mnitrace',
    "rocprof": rb'"BeginNs" ?:',
    "Horovod": rb'"NEGOTIATE_',
    "PyTorch's profiler before 1.8.1": rb'"pid": ?"(?:CPU|CUDA) functions"',
    "`nsys export --type=json`": rb'"(?:TraceProcessEvent|CudaEvent|NvtxEvent)"',
}


def has_end(text: str, start: int) -> bool:
    """Return whether an event may end anywhere after a place of the text."""
    return _END.search(text, start) is not None


def repaired(text: str, start: int) -> tuple[str, int] | None:
    """Repair the texts of an event that is no JSON; return it as JSON and its end in the text.

    None if it cannot be repaired. `text`: of the document, a character for each byte, in which the
    event begins at `start`.
    """
    ends = _END.finditer(text, start, start + MAX_REPAIR_BYTES)
    for _, found in zip(range(_MAX_ENDS), ends, strict=False):
        event = _STRING.sub(_escaped, _with_escaped_name(text[start : found.end()]))
        try:
            value = json.loads(event, strict=False, object_pairs_hook=_unique)
        except (ValueError, RecursionError):
            continue
        return (event, found.end()) if isinstance(value, dict) else None
    return None


def escaped_at(text: str, place: int) -> str | None:
    """Return the text with escaped backslashes in the string around a place; None without one."""
    for found in _STRING.finditer(text):
        if place < found.end():
            escaped = _escaped(found)
            is_new = found.start() < place and escaped != found[0]
            return text[: found.start()] + escaped + text[found.end() :] if is_new else None
    return None


def _unique(members: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object's members; a name that holds quotes would show as members twice.

    Raises ValueError: two members of one name.
    """
    unique = dict(members)
    if len(unique) < len(members):
        raise ValueError(members)
    return unique


def _escaped(string: re.Match[str]) -> str:
    """Escape backslashes of a string in which one escapes nothing; those before quotes stay."""
    written = string[0]
    if "\\" not in written or all(found[1] for found in _ESCAPED.finditer(written)):
        return written
    return '"' + re.sub(r'\\(?!")', r"\\\\", written[1:-1]) + '"'


def _with_escaped_name(event: str) -> str:
    """Escape the name of an event where it is no JSON and can end at one place only."""
    begin = _UP_TO_NAME.match(event)
    if begin is None:
        return event
    ends = [found.start() for found in _AFTER_NAME.finditer(event, begin.end() + 1)]
    if len(ends) != 1:
        return event
    name = event[begin.end() + 1 : ends[0]]
    if has_end(name, 0) or _NAME.search(name):  # the name of another event, whose begin is lost
        return event
    try:
        json.loads(f'"{name}"', strict=False)
    except json.JSONDecodeError:
        return event[: begin.end()] + json.dumps(name, ensure_ascii=False) + event[ends[0] + 1 :]
    return event


def without_events(file: TraceFile, *, is_cut: bool, unread: frozenset[str]) -> TraceFormatError:
    """Return the error of a trace without one complete event that is read.

    `is_cut`: its document ends in the middle. `unread`: categories of events that are not read.
    """
    if is_cut:
        return file.damaged("it is cut short before its first event is complete", COPY_AGAIN)
    if _COUNTERS in unread:
        return file.damaged(*_COUNTERS_ONLY)
    return _of_another_tool(file) or file.damaged(
        "JSON that holds no complete event of torch.profiler's", RECORD_AGAIN
    )


def _of_another_tool(file: TraceFile) -> TraceFormatError | None:
    """Return the error of a file that another tool wrote; None if nothing shows that."""
    sample = b""
    for piece in file.pieces():
        sample += piece
        if len(sample) >= _SAMPLE_BYTES:
            break
    for tool, mark in _TOOLS.items():
        if re.search(mark, sample):
            again = _PROFILE_AMD if tool.startswith("rocprof") else _PROFILE_AGAIN
            return file.damaged(f"it was written by {tool}, not by torch.profiler", again)
    return None
