"""Results of the analyses, by rank: typed by the module that measured them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from traceprof.findings import Evidence, Finding, NotApplicable
from traceprof.run.steady_steps import OnlyStep
from traceprof.structs import Record


class _Occurrence(Record, frozen=True, kw_only=True):
    # the step in which all of its findings happened, where it is only one of several
    only_step: OnlyStep | None = None


class RankResult(_Occurrence, frozen=True):
    """The result of one analysis for one rank; the base of all such results."""

    rank: int  # the rank's number


class CostResult(RankResult, frozen=True, kw_only=True):
    """A result that is judged by its cost, as a share of a window."""

    window_ns: int  # the length of the window
    evidence: tuple[Evidence, ...] = ()  # where the cost can be seen, worst first
    # the share of the cost that the mean steady step holds; None without steps
    share_per_step: float | None = None
    is_pytorch: bool = False  # whether the program is known to use PyTorch


Numbered = TypeVar("Numbered", bound=Struct)


def numbered(value: Numbered, rank: int, report: int) -> Numbered:
    """Return what was measured of a rank, with its number and its report's index in the run."""
    fields: dict[str, object] = {"rank": rank, "report": report}
    changed = {name: fields[name] for name in fields if name in value.__struct_fields__}
    for name in value.__struct_fields__:
        part = getattr(value, name)
        if isinstance(part, Struct) and (other := numbered(part, rank, report)) is not part:
            changed[name] = other
    return replace(value, **changed) if changed else value


Claim = TypeVar("Claim", bound=Finding | NotApplicable)


def advised(claim: Claim, step: OnlyStep | None) -> Claim:
    """Return a claim without remedies if it happened in one step: they are for what recurs."""
    if step is None or isinstance(claim, NotApplicable):
        return claim
    return replace(claim, advice=(look_at(step, "this happened"),))


def look_at(step: OnlyStep, what: str) -> str:
    """Return what to do about something that happened in one step of several."""
    return (
        f"Look at step {step.number}, the only one of {step.num_steps} in which {what}: what ran"
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
