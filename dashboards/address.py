"""Addresses of views: a URL says what a page shows, so that a view can be reloaded and shared.

`/timeline?rank=0,3&start=1500000000&end=1700000000&finding=gpu-idle&evidence=2`

Anybody can write a URL: `parse` takes only what `assets/address_table.js` lists, which the modules
that run in the browser import, too.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from traceprof.analysis import FINDING_IDS
from traceprof.errors import UsageError
from traceprof.intervals import BEYOND_NS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

_WRITTEN = (Path(__file__).parent / "assets/address_table.js").read_text(encoding="utf-8")
TABLE: dict[str, Any] = json.loads(_WRITTEN[_WRITTEN.index("{") : _WRITTEN.rindex("}") + 1])

OVERVIEW: str = TABLE["pages"]["overview"]
TIMELINE: str = TABLE["pages"]["timeline"]  # where evidence is to be seen: all pages lead there
WHAT_IF: str = TABLE["pages"]["what-if"]
COMPARE: str = TABLE["pages"]["compare"]
WHOLE_PATH = "all"
"""In place of a step's number: the critical path of the whole training."""

_MAX_NUMBERS = 10_000  # ranks in one address
_MAX_TEXT = 1_000  # characters
_MAX_ROWS_TEXT = 20_000  # characters
_MAX_LENGTH = 100_000  # characters of a whole query


@dataclass(frozen=True, slots=True)
class Scope:
    """The choice of the reader, which applies to all pages."""

    rank: tuple[int, ...] = ()  # the ranks chosen, by number, each once; all where empty
    report: tuple[int, ...] = ()  # the reports chosen, by index; all where empty
    # the first nanosecond, on the run's clock; None for the first of all
    start_ns: int | None = None
    end_ns: int | None = None  # one past the last; None for the end

    @property
    def has_range(self) -> bool:
        """True if a time range is chosen."""
        return self.start_ns is not None or self.end_ns is not None

    def query(self) -> str:
        """Return the choice as parameters of a URL: `rank=0,3&start=100`."""
        return _query(self, _CHOSEN)


@dataclass(frozen=True, slots=True)
class Address:
    """The content of one view."""

    path: str = OVERVIEW  # of a page; whether there is such a page is not known here
    rank: tuple[int, ...] = ()  # the ranks shown, by number, each once; all where empty
    report: tuple[int, ...] = ()  # the reports shown, by index; all where empty
    # the first nanosecond shown, on the run's clock; None for the page's own
    start_ns: int | None = None
    end_ns: int | None = None  # one past the last; None for the page's own
    finding: str | None = None  # id of the finding that is shown, of the first rank chosen
    evidence: int | None = None  # index into the finding's evidence
    select: str | None = None  # what is selected, in the page's own words
    search: str | None = None  # what is searched for by name
    assume: str | None = None  # what is assumed, separated by commas
    pinned: str | None = None  # rows of the timeline that stay on top, by key, separated by commas
    hidden: str | None = None  # rows of the timeline that are not shown, by key
    moved: str | None = None  # rows of the timeline in the order in which they were put, by key
    # the step whose critical path is drawn, `all` for the whole training
    step_path: str | None = None
    # the step of the other side that is compared, as `rank.step`, or the rank alone
    before: str | None = None
    after: str | None = None  # the step of this run that is compared, in the same form
    # what the reader chose for all pages, where this view shows something else, such as a
    # finding's evidence; None if it shows what was chosen
    scope: Scope | None = None

    @property
    def chosen(self) -> Scope:
        """The choice of the reader for all pages."""
        if self.scope is not None:
            return self.scope
        return Scope(self.rank, self.report, self.start_ns, self.end_ns)

    def href(self) -> str:
        """Return the address as a URL without its host; `parse` reads it back."""
        query = _query(self, _KEYS)
        return f"{self.path}?{query}" if query else self.path

    def to(self, path: str, **changes: Any) -> Address:  # noqa: ANN401  (as dataclasses.replace)
        """Return the address of another page with the reader's choice and these changes."""
        chosen = self.chosen
        same = Address(path, chosen.rank, chosen.report, chosen.start_ns, chosen.end_ns)
        return replace(same, **changes)

    def to_place(self, path: str, **place: Any) -> Address:  # noqa: ANN401  (fields of an address)
        """Return the address of another page that shows one place, with the reader's choice."""
        return Address(path, **place, scope=self.chosen)


def _query(source: Address | Scope, keys: Iterable[str]) -> str:
    values = ((key, _written(getattr(source, _field(key)))) for key in keys)
    query = urlencode({key: value for key, value in values if value is not None})
    return query.replace("%2C", ",")


def _written(value: object) -> object:
    if isinstance(value, Scope):
        return value.query()
    return (",".join(map(str, value)) or None) if isinstance(value, tuple) else value


def _field(key: str) -> str:
    return _FIELDS.get(key, key)


def parse(path: str, query: str) -> Address:
    """Read a URL's path, and its query with or without the question mark.

    Raises:
        UsageError: a parameter is wrong.
    """
    address = Address(path, **_values(query.removeprefix("?"), _KEYS))
    _check_order(address)
    return address


def _values(query: str, keys: Collection[str]) -> dict[str, Any]:
    if len(query) > _MAX_LENGTH:
        raise _unreadable("query", "too long")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=len(keys))
    except ValueError as error:
        raise _unreadable("query", str(error)) from error
    values: dict[str, Any] = {}
    for key, text in pairs:
        if key not in keys:
            raise _unreadable(key, f"it is none of {', '.join(keys)}")
        if _field(key) in values:
            raise _unreadable(key, "it is given twice")
        values[_field(key)] = _value(key, text)
    return values


def _value(key: str, text: str) -> object:
    form = _KEYS[key]["form"]
    pattern = TABLE["patterns"].get(form)
    if pattern is not None and re.fullmatch(pattern, text) is None:
        raise _unreadable(key, f"{text[:40]!r} is not {_MEANINGS[form]}")
    return _READERS[form](key, text)


def _check_order(times: Address | Scope) -> None:
    start, end = times.start_ns, times.end_ns
    if start is not None and end is not None and end <= start:
        raise _unreadable("end", "it is not after the start")


def _unreadable(key: str, why: str) -> UsageError:
    return UsageError(f"cannot read {key!r} in the address", why, "use the menu")


def _number(key: str, text: str) -> int:
    number = int(text)
    if abs(number) >= BEYOND_NS:
        raise _unreadable(key, f"{text[:40]!r} is beyond what a report can hold")
    return number


def _numbers(key: str, text: str) -> tuple[int, ...]:
    parts = text.split(",") if text else []
    if len(parts) > _MAX_NUMBERS:
        raise _unreadable(key, "there are too many")
    return tuple(dict.fromkeys(_number(key, part) for part in parts))


def _finding(key: str, text: str) -> str:
    if text not in FINDING_IDS:
        raise _unreadable(key, f"there is no finding {text[:40]!r}")
    return text


def _text(key: str, text: str) -> str:
    if len(text) > _MAX_TEXT:
        raise _unreadable(key, "it is too long")
    return text


def _rows(key: str, text: str) -> str:
    if len(text) > _MAX_ROWS_TEXT:
        raise _unreadable(key, "there are too many rows")
    return text


def _step(key: str, text: str) -> str:
    if text != WHOLE_PATH:
        _number(key, text)
    return text


def _rank_step(key: str, text: str) -> str:
    for number in text.split("."):
        _number(key, number)
    return text


def _scope(_key: str, text: str) -> Scope:
    scope = Scope(**_values(text, _CHOSEN))
    _check_order(scope)
    return scope


_KEYS: dict[str, dict[str, Any]] = TABLE["keys"]
_CHOSEN = {key: described for key, described in _KEYS.items() if described.get("chosen")}
_FIELDS = {"start": "start_ns", "end": "end_ns", "path": "step_path"}
"""Fields of `Address` that are not called as their parameters."""
_MEANINGS = {
    "number": "a whole number",
    "index": "a whole number from 0 on",
    "indices": "whole numbers from 0 on, with commas between them",
    "rows": "a list of rows of the timeline",
    "step": f"a step's number or {WHOLE_PATH!r}",
    "rank-step": "a rank, or a rank and a step as in 0.12",
}
_READERS: dict[str, Callable[[str, str], object]] = {
    "number": _number, "index": _number, "indices": _numbers, "finding": _finding, "text": _text,
    "rows": _rows, "step": _step, "rank-step": _rank_step, "scope": _scope,
}  # fmt: skip
"""By the form of a parameter: how it is read once its pattern fits."""
