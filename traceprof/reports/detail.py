"""How much of a report its text shows: all of it, or as much as fits on a page."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceprof.analyses.verdict.run_result import RunResult

MAX_LINES = 60
"""Lines of a report that does not show all: half a minute of reading."""
MAX_RANKS = 32
"""Ranks in a table that shows all: more than that nobody reads; the JSON has them all."""


class Detail(Record, frozen=True):
    """Level of detail of the text report."""

    is_whole: bool = False  # whether everything is shown, except what `--verbose` adds
    num_evidence: int = 1  # pieces of evidence of the first findings; of others none
    num_advice: int = 2  # pieces of advice of a finding
    num_first: int = 3  # findings that are shown with evidence and advice, whatever their severity
    # how the findings after those are shown: by their claim, by their cost, as a list
    later: Literal["claim", "cost", "list"] = "claim"
    max_ranks: int = MAX_RANKS  # ranks in a table
    # whether steps of all these ranks are shown, or of the slowest one alone
    has_all_steps: bool = True
    has_steps: bool = True  # whether there is a table of steps
    has_transfers: bool = True  # whether there is a table of what matched operations took
    has_groups: bool = True  # whether there are tables of process groups and gradient buckets
    has_compute: bool = True  # whether it says what compute consists of
    has_kernels: bool = True  # whether it says which kernels take most
    has_reasons: bool = True  # whether it says of each finding why it could not be analysed
    shows_kernels: bool = False  # whether there is a table of kernels, by name
    max_notes: int = 10  # notes about the data


WHOLE = Detail(is_whole=True, num_evidence=2, max_notes=MAX_RANKS * MAX_RANKS)
"""All of a report."""


def _has_many_ranks(analysis: RunResult) -> bool:
    return len(analysis.breakdown) > _FEW_RANKS


def _has_later(analysis: RunResult) -> bool:
    return len({finding.id for finding in analysis.findings}) > Detail().num_first


def _has_steps(analysis: RunResult) -> bool:
    return any(result.steps for result in analysis.breakdown)


def _always(analysis: RunResult) -> bool:
    del analysis
    return True


_FEW_RANKS = 4
# What may be left out: what matters least to somebody who must act comes first. With each the
# words for it, and whether a report has it.
_LEFT_OUT: tuple[tuple[str, dict[str, object], Callable[[RunResult], bool]], ...] = (
    (
        "what is missing for others",
        {"has_reasons": False},
        lambda analysis: bool(analysis.not_applicable),
    ),
    ("kernels", {"has_kernels": False}, lambda analysis: bool(analysis.compute)),
    (
        "steps",
        {"has_all_steps": False},
        lambda analysis: len(analysis.breakdown) > 1 and _has_steps(analysis),
    ),
    (
        "transfers",
        {"has_transfers": False},
        lambda analysis: bool(analysis.ranks.waits) and len(analysis.run.reports) > 1,
    ),
    ("ranks", {"max_ranks": _FEW_RANKS}, _has_many_ranks),
    ("later findings", {"later": "cost"}, _has_later),
    ("notes", {"max_notes": 3}, lambda analysis: len(analysis.notes) > 3),
    ("", {"num_advice": 1}, _always),
    ("", {"later": "list"}, _has_later),
    ("steps", {"has_steps": False}, _has_steps),
    ("", {"max_ranks": 2}, lambda analysis: len(analysis.breakdown) > 2),
    (
        "process groups",
        {"has_groups": False},
        lambda analysis: bool(analysis.buckets or analysis.measured.shown_process_groups),
    ),
    ("", {"num_evidence": 0}, _always),
    ("compute", {"has_compute": False}, lambda analysis: bool(analysis.compute)),
    ("", {"num_first": 2}, _always),
)


def fitting(analysis: RunResult, num_lines: Callable[[Detail, str], int]) -> tuple[Detail, str]:
    """Return the most detail with which a report has no more than `MAX_LINES`.

    Returns:
        The detail, and in words what is left out.
    """
    details = [Detail()]
    words: list[str] = []
    if any(len(finding.advice) > 1 or len(finding.evidence) > 1 for finding in analysis.findings):
        words.append("evidence, advice")
    left_out = [tuple(words)]
    for word, change, has_it in _LEFT_OUT:
        if has_it(analysis):
            details.append(replace(details[-1], **change))
            left_out.append((*left_out[-1], *filter(None, [word])))
    missing = [", ".join(dict.fromkeys(words)) for words in left_out]
    place = bisect_left(
        range(len(details) - 1),
        True,
        key=lambda level: num_lines(details[level], missing[level]) <= MAX_LINES,
    )
    return details[place], missing[place]
