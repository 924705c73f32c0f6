"""Addresses of views: what a page shows is in its URL, so that it survives reload and can be sent.

`/timeline?rank=0,3&start=1500000000&end=1700000000&finding=gpu-idle&evidence=2`

A URL is written by anybody: `parse` takes nothing else than what is described here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from traceprof.analysis import FINDING_IDS
from traceprof.errors import UsageError
from traceprof.intervals import BEYOND_NS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

OVERVIEW = "/"
TIMELINE = "/timeline"  # where evidence is to be seen: all pages lead there
WHAT_IF = "/what-if"
COMPARE = "/compare"
WHOLE_PATH = "all"
"""In place of a step's number: the critical path of the whole training."""

_MAX_NUMBERS = 10_000  # ranks in one address
_MAX_TEXT = 1_000  # characters
_MAX_ROWS_TEXT = 20_000  # characters
_MAX_LENGTH = 100_000  # characters of a whole query


@dataclass(frozen=True, slots=True)
class Scope:
    """What the reader chose to look at, on whatever page.

    Attributes:
        rank: the ranks chosen, by number, each once; all where empty.
        report: the reports chosen, by index, likewise.
        start_ns: the first nanosecond, in the report's own time; None for the first of all.
        end_ns: one past the last, likewise.
    """

    rank: tuple[int, ...] = ()
    report: tuple[int, ...] = ()
    start_ns: int | None = None
    end_ns: int | None = None

    @property
    def has_range(self) -> bool:
        """Whether a time range is chosen."""
        return self.start_ns is not None or self.end_ns is not None

    def query(self) -> str:
        """Return it as parameters of an address: `rank=0,3&start=100`."""
        values = {
            "rank": ",".join(map(str, self.rank)) or None,
            "report": ",".join(map(str, self.report)) or None,
            "start": self.start_ns,
            "end": self.end_ns,
        }
        return _query(values)


@dataclass(frozen=True, slots=True)
class Address:
    """What one view shows.

    Attributes:
        path: of a page; whether there is such a page is not known here.
        rank: the ranks shown, by number, each once; all where empty.
        report: the reports shown, by index, likewise.
        start_ns: the first nanosecond shown, in the report's own time; None for the page's own.
        end_ns: one past the last, likewise.
        scope: what the reader chose for all pages, where this view shows something else, such as
            a finding's evidence; None where it shows what was chosen.
        finding: id of the finding that is shown, of the first rank chosen.
        evidence: index into the finding's evidence.
        select: what is selected, in the page's own words.
        search: what is searched for by name.
        assume: what is assumed, separated by commas.
        pinned: rows of the timeline that stay on top, by key, separated by commas.
        hidden: rows of the timeline that are not shown, likewise.
        moved: rows of the timeline in the order in which they were put, likewise.
        before: the step of the other side that is compared, as `rank.step`, or the rank alone.
        after: the step of this run that is compared, likewise.
        step_path: the step whose critical path is drawn, `all` for the whole training.
    """

    path: str = OVERVIEW
    rank: tuple[int, ...] = ()
    report: tuple[int, ...] = ()
    start_ns: int | None = None
    end_ns: int | None = None
    finding: str | None = None
    evidence: int | None = None
    select: str | None = None
    search: str | None = None
    assume: str | None = None
    pinned: str | None = None
    hidden: str | None = None
    moved: str | None = None
    step_path: str | None = None
    before: str | None = None
    after: str | None = None
    scope: Scope | None = None

    @property
    def chosen(self) -> Scope:
        """What the reader chose for all pages."""
        if self.scope is not None:
            return self.scope
        return Scope(self.rank, self.report, self.start_ns, self.end_ns)

    def href(self) -> str:
        """Return the address as a URL without its host; `parse` reads it back."""
        values = {
            "rank": ",".join(map(str, self.rank)) or None,
            "report": ",".join(map(str, self.report)) or None,
            "start": self.start_ns,
            "end": self.end_ns,
            "finding": self.finding,
            "evidence": self.evidence,
            "select": self.select,
            "search": self.search,
            "assume": self.assume,
            "pinned": self.pinned,
            "hidden": self.hidden,
            "moved": self.moved,
            "path": self.step_path,
            "before": self.before,
            "after": self.after,
            "scope": None if self.scope is None else self.scope.query(),
        }
        query = _query(values)
        return f"{self.path}?{query}" if query else self.path

    def to(self, path: str, **changes: Any) -> Address:  # noqa: ANN401  (as dataclasses.replace)
        """Return the address of another page for what the reader chose, and what is given."""
        chosen = self.chosen
        same = Address(path, chosen.rank, chosen.report, chosen.start_ns, chosen.end_ns)
        return replace(same, **changes)

    def to_place(self, path: str, **place: Any) -> Address:  # noqa: ANN401  (fields of an address)
        """Return the address of another page that shows one place; what was chosen stays so."""
        return Address(path, **place, scope=self.chosen)


def _query(values: Mapping[str, object]) -> str:
    query = urlencode({key: value for key, value in values.items() if value is not None})
    return query.replace("%2C", ",")


def parse(path: str, query: str) -> Address:
    """Read a URL.

    Args:
        path: such as `/timeline`.
        query: such as `?rank=0,3`, with or without the question mark.

    Raises:
        UsageError: a parameter is not what it should be.
    """
    address = Address(path, **_values(query.removeprefix("?"), _FIELDS))
    _check_order(address)
    return address


def _values(query: str, fields: Mapping[str, Field]) -> dict[str, Any]:
    """Return what a query says, by the names of fields."""
    if len(query) > _MAX_LENGTH:
        raise _unreadable("query", "too long")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=len(fields))
    except ValueError as error:
        raise _unreadable("query", str(error)) from error
    values: dict[str, Any] = {}
    for key, text in pairs:
        if key not in fields:
            raise _unreadable(key, f"it is none of {', '.join(fields)}")
        field, read = fields[key]
        if field in values:
            raise _unreadable(key, "it is given twice")
        values[field] = read(key, text)
    return values


def _check_order(times: Address | Scope) -> None:
    start, end = times.start_ns, times.end_ns
    if start is not None and end is not None and end <= start:
        raise _unreadable("end", "it is not after the start")


def _unreadable(key: str, why: str) -> UsageError:
    return UsageError(f"cannot read {key!r} in the address", why, "use the menu")


def _whole(key: str, text: str, most: int = BEYOND_NS) -> int:
    # `int` alone takes underscores, spaces and digits of other scripts.
    if re.fullmatch(r"-?[0-9]{1,19}", text) is None or abs(int(text)) >= most:
        raise _unreadable(key, f"{text[:40]!r} is not a whole number in range")
    return int(text)


def _index(key: str, text: str) -> int:
    number = _whole(key, text)
    if number < 0:
        raise _unreadable(key, f"{text[:40]!r} is negative")
    return number


def _numbers(key: str, text: str) -> tuple[int, ...]:
    parts = text.split(",") if text else []
    if len(parts) > _MAX_NUMBERS:
        raise _unreadable(key, "there are too many")
    return tuple(dict.fromkeys(_index(key, part) for part in parts))


def _finding(key: str, text: str) -> str:
    if text not in FINDING_IDS:
        raise _unreadable(key, f"there is no finding {text[:40]!r}")
    return text


def _text(key: str, text: str) -> str:
    if len(text) > _MAX_TEXT:
        raise _unreadable(key, "it is too long")
    return text


def _rows(key: str, text: str) -> str:
    if (
        len(text) > _MAX_ROWS_TEXT
        or re.fullmatch(r"[0-9]+\.[0-9]+(,[0-9]+\.[0-9]+)*", text) is None
    ):
        raise _unreadable(key, "these are no rows of the timeline")
    return text


def _step_path(key: str, text: str) -> str:
    if text != WHOLE_PATH:
        _index(key, text)
    return text


def _compared(key: str, text: str) -> str:
    for number in text.split(".", 1):
        _index(key, number)
    return text


def _scope(_key: str, text: str) -> Scope:
    scope = Scope(**_values(text, _CHOSEN))
    _check_order(scope)
    return scope


Field = tuple[str, "Callable[[str, str], object]"]

_CHOSEN: dict[str, Field] = {
    "rank": ("rank", _numbers),
    "report": ("report", _numbers),
    "start": ("start_ns", _whole),
    "end": ("end_ns", _whole),
}
_FIELDS: dict[str, Field] = {
    **_CHOSEN,
    "finding": ("finding", _finding),
    "evidence": ("evidence", _index),
    "select": ("select", _text),
    "search": ("search", _text),
    "assume": ("assume", _text),
    "pinned": ("pinned", _rows),
    "hidden": ("hidden", _rows),
    "moved": ("moved", _rows),
    "path": ("step_path", _step_path),
    "before": ("before", _compared),
    "after": ("after", _compared),
    "scope": ("scope", _scope),
}
"""By the name in a query: the field of `Address`, and how it is read."""
