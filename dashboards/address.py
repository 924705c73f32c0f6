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
    from collections.abc import Callable
    from typing import Any

OVERVIEW = "/"
TIMELINE = "/timeline"  # where evidence is to be seen: all pages lead there

_MAX_NUMBERS = 10_000  # ranks in one address
_MAX_TEXT = 1_000  # characters
_MAX_LENGTH = 100_000  # characters of a whole query


@dataclass(frozen=True, slots=True)
class Address:
    """What one view shows.

    Attributes:
        path: of a page; whether there is such a page is not known here.
        rank: the ranks chosen, by number, each once; all where empty.
        report: the reports chosen, by index, likewise.
        start_ns: the first nanosecond shown, in the report's own time; None for the page's own.
        end_ns: one past the last, likewise.
        finding: id of the finding that is shown, of the first rank chosen.
        evidence: index into the finding's evidence.
        select: what is selected, in the page's own words.
        search: what is searched for by name.
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
        }
        query = urlencode({key: value for key, value in values.items() if value is not None})
        query = query.replace("%2C", ",")
        return f"{self.path}?{query}" if query else self.path

    def to(self, path: str, **changes: Any) -> Address:  # noqa: ANN401  (as dataclasses.replace)
        """Return the address of another page for the same ranks and reports, and what is given."""
        return replace(Address(path, self.rank, self.report), **changes)


def parse(path: str, query: str) -> Address:
    """Read a URL.

    Args:
        path: such as `/timeline`.
        query: such as `?rank=0,3`, with or without the question mark.

    Raises:
        UsageError: a parameter is not what it should be.
    """
    if len(query) > _MAX_LENGTH:
        raise _unreadable("query", "too long")
    try:
        pairs = parse_qsl(
            query.removeprefix("?"), keep_blank_values=True, max_num_fields=len(_FIELDS)
        )
    except ValueError as error:
        raise _unreadable("query", str(error)) from error
    values: dict[str, Any] = {}
    for key, text in pairs:
        if key not in _FIELDS:
            raise _unreadable(key, f"it is none of {', '.join(_FIELDS)}")
        field, read = _FIELDS[key]
        if field in values:
            raise _unreadable(key, "it is given twice")
        values[field] = read(key, text)
    address = Address(path, **values)
    start, end = address.start_ns, address.end_ns
    if start is not None and end is not None and end <= start:
        raise _unreadable("end", "it is not after the start")
    return address


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


_FIELDS: dict[str, tuple[str, Callable[[str, str], object]]] = {
    "rank": ("rank", _numbers),
    "report": ("report", _numbers),
    "start": ("start_ns", _whole),
    "end": ("end_ns", _whole),
    "finding": ("finding", _finding),
    "evidence": ("evidence", _index),
    "select": ("select", _text),
    "search": ("search", _text),
}
"""By the name in a query: the field of `Address`, and how it is read."""
