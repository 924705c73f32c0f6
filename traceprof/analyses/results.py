"""Results of the analyses, by rank: typed by the module that measured them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from traceprof.findings import Evidence, Finding, Metrics, NotApplicable, Saving, Severity, costly
from traceprof.intervals import Intervals
from traceprof.run.rank import Rank, Window
from traceprof.run.steady_steps import OnlyStep, only_step, share_per_step
from traceprof.structs import Record
from traceprof.trace.model.parts import HowToCollect


class RankResult(Record, frozen=True):
    """The result of one analysis for one rank; the base of all such results."""

    rank: int  # the rank's number


class CostResult(RankResult, frozen=True, kw_only=True):
    """A result that is judged by its cost, as a share of a window."""

    window_ns: int  # the length of the window
    evidence: tuple[Evidence, ...] = ()  # where the cost can be seen, worst first
    # the share of the cost that the mean steady step holds; None without steps
    share_per_step: float | None = None
    only_step: OnlyStep | None = None  # the step in which it lies, if that is one of several
    is_pytorch: bool = False  # whether the program is known to use PyTorch
    how_to_collect: HowToCollect  # what the trace may lack, should it be needed

    def finding(
        self,
        id_: str,
        title: str,
        impact_ns: int,
        metrics: Metrics,
        advice: tuple[str, ...],
        *,
        evidence: tuple[Evidence, ...] | None = None,
        saving: Saving | None = None,
        place: str | None = None,
        severity: Severity | None = None,
    ) -> list[Finding | NotApplicable]:
        """Return a finding, judged by its cost; none if that is negligible.

        Its evidence is the result's, and its saving at most what the mean steady step holds of the
        cost, if no others are given. What happened in one step gets no remedy: they are for what
        recurs. `severity`: the judgement, where something else than the cost makes it.
        """
        if self.only_step is not None:
            advice = (look_at(self.only_step, "this happened"),)
        return costly(
            id_,
            self.rank,
            self.window_ns,
            title,
            impact_ns,
            metrics,
            self.evidence if evidence is None else evidence,
            advice,
            saving or Saving.of_step(impact_ns, self.share_per_step),
            place,
            severity,
        )


def facts_of(rank: Rank, window: Window, cost: Intervals | None = None) -> dict[str, Any]:
    """Return the fields of a `CostResult` by name but for evidence; `cost`: when it arose."""
    facts = {
        "rank": rank.rank,
        "window_ns": window.length_ns,
        "is_pytorch": rank.program.is_pytorch,
        "how_to_collect": rank.trace.how_to_collect,
    }
    if cost is None:
        return facts
    return facts | {
        "share_per_step": share_per_step(rank, window, cost),
        "only_step": only_step(rank, window, cost),
    }


Numbered = TypeVar("Numbered")


def numbered(value: Numbered, rank: int, report: int) -> Numbered:
    """Return what was measured of a rank, with its number and its report's index in the run."""
    result: Any = value
    if isinstance(value, Struct):
        parts = {name: getattr(value, name) for name in value.__struct_fields__}
        known = parts | {"rank": rank, "report": report}
        changed = {
            name: part
            for name in parts
            if (part := numbered(known[name], rank, report)) is not parts[name]
        }
        result = replace(value, **changed) if changed else value
    elif isinstance(value, dict):
        entries = {key: numbered(part, rank, report) for key, part in value.items()}
        result = entries if any(entries[key] is not value[key] for key in value) else value
    elif isinstance(value, tuple) and any(map(_has_rank, value[:1])):
        result = tuple(numbered(part, rank, report) for part in value)
    return cast("Numbered", result)


def _has_rank(value: object) -> bool:
    return isinstance(value, Struct) and "rank" in value.__struct_fields__


LOOK_AT = "Look at step"


def look_at(step: OnlyStep, what: str) -> str:
    """Return what to do about something that happened in one step of several."""
    return (
        f"{LOOK_AT} {step.number}, the only one of {step.num_steps} in which {what}: what ran"
        " there, and whether it recurs; the other steps need no remedy"
    )


Result = TypeVar("Result", bound=RankResult)
Judged_contra = TypeVar("Judged_contra", bound=RankResult, contravariant=True)


class Judge(Protocol[Judged_contra]):
    """A module that judges results of ranks; its `findings` fixes the type of the result."""

    @property
    def __name__(self) -> str: ...

    def findings(self, result: Judged_contra) -> list[Finding | NotApplicable]:
        """Judge the numbers."""


class Results:
    """The results of many ranks: `results.of(breakdown)` is a tuple of `BreakdownResult`."""

    def __init__(self, by_name: Mapping[str, Iterable[RankResult]] | None = None) -> None:
        """Keep results by the module's `__name__`, in order of the ranks."""
        self._by_name = {name: tuple(results) for name, results in (by_name or {}).items()}

    def of(self, module: Judge[Result]) -> tuple[Result, ...]:
        """Return what a module measured, by rank: see each result's `rank`. Empty without any."""
        return cast("tuple[Result, ...]", self.named(module.__name__))

    def named(self, name: str) -> tuple[RankResult, ...]:
        """Return the same of a module of a name; empty also for a module that measures no rank."""
        return self._by_name.get(name, ())

    def replaced(self, module: Judge[Result], results: Iterable[Result]) -> Results:
        """Return all results, those of one module replaced."""
        return Results({**self._by_name, module.__name__: results})
