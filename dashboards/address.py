"""Addresses of views: a URL says what a page shows, so that a view can be reloaded and shared.

`/timeline?rank=0,3&start=1500000000&end=1700000000&finding=gpu-idle&evidence=2`

Anybody can write a URL: `parse` takes only the parameters that are listed here, in the forms that
they have here. A page is drawn for what it took; then `assets/address.js` sets and removes
parameters of the same URL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

from traceprof.analysis import FINDING_IDS
from traceprof.errors import UsageError
from traceprof.intervals import BEYOND_NS

OVERVIEW, TIMELINE, STEPS = "/", "/timeline", "/steps"
WHAT_IF, COMPARE, QUERY = "/what-if", "/compare", "/query"
"""Pages that links lead to."""
WHOLE_PATH = "all"
"""In place of a step's number: the critical path of the whole training."""

_MAX_NUMBERS = 10_000  # ranks in one address
_MAX_LENGTH = 100_000  # characters of a whole query


@dataclass(frozen=True, slots=True)
class Address:
    """The content of one view."""

    path: str = OVERVIEW  # of a page; whether there is such a page is not known here
    rank: tuple[int, ...] = ()  # the ranks shown, by number, each once; all where empty
    report: tuple[int, ...] = ()  # the reports shown, by index; all where empty
    start_ns: int | None = None  # the first nanosecond on the run's clock; None for the page's own
    end_ns: int | None = None  # one past the last; None for the page's own
    finding: str | None = None  # id of the finding that is shown, of the first rank chosen
    evidence: int | None = None  # index into the finding's evidence
    select: str | None = None  # what is selected, in the page's own words
    search: str | None = None  # the name that is searched for
    order: str | None = None  # of the list of what is found: a column, or a minus and a column
    assume: str | None = None  # assumptions, separated by semicolons
    sql: str | None = None  # the query over the tables of the run
    pinned: str | None = None  # rows of the timeline that stay on top, by key, with commas between
    hidden: str | None = None  # rows of the timeline that are not shown, by key
    moved: str | None = None  # rows of the timeline in the order in which they were put, by key
    # the step, or steps as `2-5`, with their critical path drawn; `all`: the whole training
    step_path: str | None = None
    before: str | None = None  # the other side's compared step, as `rank.step`, or the rank alone
    after: str | None = None  # the compared step of this run, in the same form
    # The ranks, reports and time that the reader chose for all pages, where this view shows
    # something else, such as a finding's evidence; None if it shows what was chosen.
    scope: Address | None = None

    @property
    def chosen(self) -> Address:
        """The ranks, reports and time that the reader chose for all pages."""
        same = Address(OVERVIEW, self.rank, self.report, self.start_ns, self.end_ns)
        return same if self.scope is None else self.scope

    @property
    def has_range(self) -> bool:
        """True if a time range is shown."""
        return self.start_ns is not None or self.end_ns is not None

    def href(self) -> str:
        """Return the address as a URL without its host; `parse` reads it back."""
        query = _query(self, PARAMETERS)
        return f"{self.path}?{query}" if query else self.path

    def to(self, path: str, **changes: Any) -> Address:  # noqa: ANN401  (as dataclasses.replace)
        """Return the address of another page with the reader's choice and these changes."""
        return replace(self.chosen, path=path, **changes)

    def to_place(self, path: str, **place: Any) -> Address:  # noqa: ANN401  (fields of an address)
        """Return the address of another page that shows one place, with the reader's choice."""
        return Address(path, **place, scope=self.chosen)


def _query(address: Address, keys: Iterable[str]) -> str:
    values = ((key, _written(getattr(address, _FIELDS.get(key, key)))) for key in keys)
    query = urlencode({key: value for key, value in values if value is not None})
    return query.replace("%2C", ",")


def _written(value: object) -> object:
    if isinstance(value, Address):
        return _query(value, _CHOSEN)
    return (",".join(map(str, value)) or None) if isinstance(value, tuple) else value


def parse(path: object, query: object) -> Address:
    """Read a URL's path, and its query with or without the question mark.

    Raises:
        UsageError: a parameter is wrong.
    """
    if not isinstance(path, str) or not isinstance(query, str):  # a request can hold anything
        raise _unreadable("path", "it is no text")
    return _parsed(path, query.removeprefix("?"), PARAMETERS)


def _parsed(path: str, query: str, keys: Collection[str]) -> Address:
    if len(query) > _MAX_LENGTH:
        raise _unreadable("query", "too long")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=len(keys))
    except ValueError as error:
        raise _unreadable("query", str(error)) from error
    values: dict[str, Any] = {}
    for key, text in pairs:
        field = _FIELDS.get(key, key)
        if key not in keys:
            raise _unreadable(key, f"it is none of {', '.join(keys)}")
        if field in values:
            raise _unreadable(key, "it is given twice")
        form = PARAMETERS[key]
        if form.pattern is not None and re.fullmatch(form.pattern, text) is None:
            raise _unreadable(key, f"{text[:40]!r} is not {form.meaning}")
        if len(text) > form.most:
            raise _unreadable(key, "it is too long")
        try:
            values[field] = form.read(text)
        except ValueError as error:
            raise _unreadable(key, str(error)) from error
    start, end = values.get("start_ns"), values.get("end_ns")
    if start is not None and end is not None and end <= start:
        raise _unreadable("end", "it is not after the start")
    return Address(path, **values)


def _unreadable(key: str, why: str) -> UsageError:
    return UsageError(f"cannot read {key!r} in the address", why, "use the menu")


def _number(text: str) -> int:
    number = int(text)
    if abs(number) >= BEYOND_NS:
        raise ValueError(f"{text[:40]!r} is beyond what a report can hold")
    return number


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split(",") if text else []
    if len(parts) > _MAX_NUMBERS:
        raise ValueError("there are too many")
    return tuple(dict.fromkeys(map(_number, parts)))


def _finding(text: str) -> str:
    if text not in FINDING_IDS:
        raise ValueError(f"there is no finding {text[:40]!r}")
    return text


def _step(text: str) -> str:
    for number in re.split("[.-]", text):
        if number != WHOLE_PATH:
            _number(number)
    return text


class _Form(NamedTuple):
    pattern: str | None = None  # a regular expression for all of a value
    meaning: str = ""  # of the pattern
    read: Callable[[str], object] = str  # a value of that pattern; ValueError says what is wrong
    most: int = _MAX_LENGTH  # characters


_INDEX = "[0-9]{1,19}"
_TEXT = _Form(most=1_000)
_QUERY = _Form(most=4_000)
_TIME = _Form(f"-?{_INDEX}", "a whole number", _number)
_INDICES = _Form(
    f"({_INDEX}(,{_INDEX})*)?", "whole numbers from 0 on, with commas between them", _numbers
)
_ROWS = _Form(r"[0-9]+\.[0-9]+(,[0-9]+\.[0-9]+)*", "a list of rows of the timeline", most=20_000)
_RANK_STEP = _Form(rf"{_INDEX}(\.{_INDEX})?", "a rank, or a rank and a step as in 0.12", _step)
_CHOSEN = ("rank", "report", "start", "end")
PARAMETERS = {
    "rank": _INDICES,
    "report": _INDICES,
    "start": _TIME,
    "end": _TIME,
    "finding": _Form(read=_finding),
    "evidence": _Form(_INDEX, "a whole number from 0 on", _number),
    "select": _TEXT,
    "search": _QUERY,
    "list": _Form("-?[a-z]{1,20}", "a column of the list, or a minus and a column"),
    "assume": _TEXT,
    "sql": _QUERY,
    "pinned": _ROWS,
    "hidden": _ROWS,
    "moved": _ROWS,
    "path": _Form(
        f"{WHOLE_PATH}|{_INDEX}(-{_INDEX})?", f"a step, steps as 2-5, or {WHOLE_PATH!r}", _step
    ),
    "before": _RANK_STEP,
    "after": _RANK_STEP,
    "scope": _Form(read=lambda text: _parsed(OVERVIEW, text, _CHOSEN)),
}
"""What an address can say, in the order in which it is written."""

# Of other names.
_FIELDS = {"start": "start_ns", "end": "end_ns", "path": "step_path", "list": "order"}
