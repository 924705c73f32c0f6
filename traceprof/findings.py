"""Findings: claims with their evidence, and findings that could not be judged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from math import ceil
from types import NoneType
from typing import Annotated, Any, Literal, get_args

from msgspec import NODEFAULT, UNSET, Meta, Struct, UnsetType
from msgspec.structs import FieldInfo, asdict, fields

from traceprof.structs import Record, by_key

MetricValue = int | float | str | bool | None
TimePart = Literal["exposed communication", "exposed copies", "idle"]

# Kinds of numbers and texts: of metrics, and of the fields of JSON documents.
Ns = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
Number = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Text = Annotated[str, Meta(min_length=1)]


def one_of(*values: str | int) -> Meta:
    """Return the constraint that a field has one of these values, for the schema."""
    return Meta(extra_json_schema={"enum": list(values)})


class Metric(Record, frozen=True):
    """The declaration of a metric, for the JSON schema and `traceprof explain`."""

    kind: object  # its type without null, annotated with its limits
    meaning: str  # its description, to be written behind its name
    is_nullable: bool  # whether it is null if unknown
    is_optional: bool  # whether it is left out if it does not apply


class Metrics(Struct):
    """The numbers of a finding; a subclass declares those of one kind of finding.

    Each field is `Annotated[type, …, meaning]`: a kind such as `Ns`, `Count` or `Fraction`, with
    `| None` if it may be unknown, perhaps `one_of(…)`, and a text that explains it. A field
    with a default is left out of the finding if it is None.
    """

    @classmethod
    def declared(cls) -> dict[str, Metric]:
        """Return the declarations by the metrics' names."""
        return {field.name: _declared(field) for field in fields(cls)}

    def by_name(self) -> dict[str, MetricValue]:
        """Return the numbers by name, as a finding has them."""
        values = asdict(self)
        from_last = zip(self.__struct_fields__[::-1], self.__struct_defaults__[::-1], strict=False)
        optional = {name for name, default in from_last if default is not NODEFAULT}
        return {
            name: value
            for name, value in values.items()
            if value is not None or name not in optional
        }


def _declared(field: FieldInfo) -> Metric:
    value, *limits, meaning = get_args(field.type)
    kinds = get_args(value) if NoneType in get_args(value) else (value,)
    kind = next(kind for kind in kinds if kind is not NoneType)
    for limit in limits:
        kind = Annotated[kind, limit]
    return Metric(kind, meaning, field.required and len(kinds) > 1, not field.required)


class Severity(str, Enum):
    """Severity of a finding, by what it costs; text in JSON, ordered from `INFO` to `HIGH`."""

    INFO = "info"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"

    @property
    def level(self) -> int:
        """The place in the order, from 0."""
        return _LEVELS[self]

    def __str__(self) -> str:
        """Return the name as users write it."""
        return self.value

    def __lt__(self, other: str) -> bool:
        return self.level < Severity(other).level

    def __le__(self, other: str) -> bool:
        return self.level <= Severity(other).level

    def __gt__(self, other: str) -> bool:
        return self.level > Severity(other).level

    def __ge__(self, other: str) -> bool:
        return self.level >= Severity(other).level


_LEVELS = {severity: level for level, severity in enumerate(Severity)}

# Shares of the training or chosen window. A change below 1 % disappears in the noise
# between two runs; a finding worth an afternoon costs some per cent; a quarter of the GPU's time is
# worth a project.
_THRESHOLDS = (
    (0.25, Severity.HIGH),
    (0.10, Severity.MEDIUM),
    (0.03, Severity.LOW),
    (0.01, Severity.INFO),
)


def severities_text() -> str:
    """Return the severities with the share of the training from which each applies, as text."""
    limits = reversed(_THRESHOLDS)
    return ", ".join(f"{severity} from {least * 100:.0f} %" for least, severity in limits)


def severity_of_cost(fraction: float) -> Severity | None:
    """Return the severity of losing this share of the training; None if it is negligible."""
    return next((severity for least, severity in _THRESHOLDS if fraction >= least), None)


MAX_EVIDENCE = 5
"""Intervals kept as evidence: as many as a reader checks."""


def share(part: int, whole: int) -> float:
    """Return a part divided by the whole; 0 if the whole is 0."""
    return part / whole if whole else 0.0


def bullets(lines: Iterable[str]) -> str:
    """Write advice as a list in Markdown."""
    return "\n".join(f"* {line}" for line in lines)


class Evidence(Struct, frozen=True, forbid_unknown_fields=True):
    """Interval in which a finding can be seen."""

    start_ns: Annotated[int, "Start, on the report's own clock."]
    end_ns: int
    label: Annotated[str, "What happened there."]


class Basis(str, Enum):
    """Source of a saving."""

    REPLAY = "replay"
    BOUND = "bound"

    def __str__(self) -> str:
        """Return the name as it is written."""
        return self.value


class Saving(Struct, frozen=True, forbid_unknown_fields=True):
    """Gain of a step without a finding, on all ranks that have it."""

    step_ns: Annotated[Count | None, "Most likely gain; null for a bound."]
    low_ns: Annotated[Count | None, "Least gain; null for a bound."]
    high_ns: Annotated[Count | None, "Largest gain; null if nothing is known."]
    basis: Annotated[
        Basis | None,
        one_of(*map(str, Basis), None),
        "`replay`: the steps were replayed without the finding, and the replay agrees with the"
        " measurement. `bound`: an upper limit, from a replay of an ideal that no program"
        " reaches, or from all time that the finding involves. Null if nothing is known.",
    ]
    assume: Annotated[
        str | None,
        "What was assumed in the replay, as `traceprof whatif --assume` takes it; null if the"
        " bound is all time that the finding involves in a step.",
    ]
    why: Annotated[Text | None, "Why the saving does not come from a replay; null if it does."] = (
        None
    )
    share: Annotated[
        Fraction | None,
        "The share of the cost that the assumption removes; null if it removes all of it.",
    ] = None
    sets_pace: Annotated[
        bool,
        "Whether the wait may set the pace of the run: if so, making anything else faster only"
        " makes this wait longer.",
    ] = False

    limited_by: Annotated[
        Text | None,
        "What limits a bound that is not all time that the finding involves and comes from no"
        " replay; else null.",
    ] = None
    faster_host_ns: Annotated[
        Count | None,
        "Largest gain if the host also launched faster than it did when it was recorded; null if"
        " it is no larger than `high_ns`.",
    ] = None

    @property
    def is_limit(self) -> bool:
        """Whether nothing is promised: a bound, or an estimate whose interval begins at zero."""
        return bool(self.high_ns) and not self.low_ns

    @classmethod
    def at_most(
        cls,
        high_ns: int,
        assume: str | None = None,
        why: str | None = None,
        limited_by: str | None = None,
    ) -> Saving:
        """Return a bound.

        `assume`: the assumption that was replayed; without it the bound is all time involved, or
        limited by something else. `why`: the reason why nothing was replayed.
        """
        return cls(None, None, high_ns, Basis.BOUND, assume, why, limited_by=limited_by)

    @classmethod
    def of_step(cls, impact_ns: int, share_per_step: float | None) -> Saving | None:
        """Return the bound from a finding's cost in a step; None if that is unknown.

        `share_per_step`: the share of the cost in all that is judged that the mean steady step has.
        """
        return None if share_per_step is None else cls.at_most(ceil(impact_ns * share_per_step))

    @classmethod
    def unknown(cls, why: str) -> Saving:
        """Return a saving that is unknown, with the reason."""
        return cls(None, None, None, None, None, why)


class InPhase(Struct, frozen=True, forbid_unknown_fields=True):
    """A finding in the phase of the program in which more than half of its cost lies."""

    phase: Annotated[Count, "Its index, as in `headline.phases`."]
    impact_ns: Annotated[Count, "Cost of the finding in that phase."]
    impact_fraction: Annotated[Fraction, "The same as a share of that phase."]
    step_ns: Annotated[Count, "The mean step of that phase, on the rank where it is longest."]
    saving: Annotated[Saving | None, "Gain of such a step without the finding."]
    most_ns: Annotated[
        Count | None,
        "Largest gain of all these steps together, divided by the number of steps of the headline;"
        " null if nothing is known.",
    ]
    expected_ns: Annotated[Count, "The same of what such changes usually bring."]


class Finding(Struct, frozen=True, forbid_unknown_fields=True):
    """A claim about one rank."""

    id: Annotated[str, "Kind of finding, such as `gpu-idle`."]
    severity: Annotated[
        Severity,
        one_of(*map(str, Severity)),
        "Severity, by the finding's share of the training; `info` for a rank whose time is under"
        " 1 % of the longest rank's.",
    ]
    rank: Annotated[Count, "The rank concerned, as in `ranks`."]
    title: Annotated[Text, "The claim in one sentence."]
    impact_ns: Annotated[Count, "Cost of the finding, at most the time that is judged."]
    impact_fraction: Annotated[Fraction, "The same as a share of the time that is judged."]
    metrics: Annotated[Mapping[str, MetricValue], "Numbers by name, with units in the name."]
    evidence: Annotated[tuple[Evidence, ...], "The worst intervals, worst first."] = ()
    advice: Annotated[tuple[Text, ...], "What can be done, most promising first."] = ()
    saving: Annotated[
        Saving | None,
        "Gain of a step without the finding; always present for `medium` and `high`, null if"
        " savings were not requested.",
    ] = None
    part_of: Annotated[
        str | None, "The finding on the same rank that includes all of this one's time."
    ] = None
    place: Annotated[
        str | None,
        "The range of the program or its framework around most of it, on the host: around the"
        " launches of copies, the waits, or the idle time of the largest cause. Null without one.",
    ] = None
    in_phase: Annotated[
        InPhase | UnsetType,
        "The finding in the phase of the program in which more than half of its cost lies, if"
        " `saving` is of the steps of another phase; else left out.",
    ] = UNSET

    @property
    def elsewhere(self) -> InPhase | None:
        """Where most of it lies, if its saving is of the steps of another phase."""
        return None if isinstance(self.in_phase, UnsetType) else self.in_phase

    @property
    def most_ns(self) -> int | None:
        """Largest gain per step of the headline; None if nothing is known."""
        if self.elsewhere is not None:
            return self.elsewhere.most_ns
        return None if self.saving is None else self.saving.high_ns


class NotApplicable(Struct, frozen=True, forbid_unknown_fields=True):
    """A finding that could be neither made nor ruled out, or a part of the analysis that failed."""

    id: Annotated[str, "The finding's id, or the name of the part."]
    reason: Annotated[Text, "What is missing."]
    how_to_collect: Annotated[Text, "The flag or step that would supply it."]
    rank: Annotated[Count | None, "Rank; null for the whole run."] = None


def costly(
    id_: str,
    rank: int,
    window_ns: int,
    title: str,
    impact_ns: int,
    metrics: Metrics,
    evidence: tuple[Evidence, ...],
    advice: tuple[str, ...],
    saving: Saving | None = None,
    place: str | None = None,
    severity: Severity | None = None,
) -> list[Finding | NotApplicable]:
    """Return a finding, judged by its cost as a share of the window; none if that is negligible.

    `severity`: the judgement, where something else than the cost makes it.
    """
    fraction = share(impact_ns, window_ns)
    severity = severity or severity_of_cost(fraction)
    if severity is None:
        return []
    return [
        Finding(
            id_,
            severity,
            rank,
            title,
            impact_ns,
            fraction,
            metrics.by_name(),
            evidence,
            advice,
            saving,
            place=place,
        )
    ]


class Sight(Enum):
    """Parts of a rank's recording without which a finding cannot be ruled out."""

    OPERATIONS = auto()
    """Every operation by itself."""
    COMMUNICATION = auto()
    """Every operation by itself, and whether it communicates."""
    NAMES = auto()
    """Every operation by itself, and by its name what it does."""


class FindingKind(Record, frozen=True):
    """The declaration of a kind of finding."""

    metrics: type[Metrics]  # the class of its numbers
    # the part of a rank's time that is attributed to it, None for most
    part: TimePart | None = None
    # the names of the assumptions of a replay that remove it, or a function that returns them for
    # the same finding on all ranks and their results; empty if none fits
    removed_by: tuple[str, ...] | Callable[[Sequence[Finding], Sequence[Any]], tuple[str, ...]] = ()
    # returns the share of the cost that these are about, for the same finding on all ranks; None
    # if they remove all of it
    removed_share: Callable[[Sequence[Finding]], float] | None = None
    # the id of the finding whose time includes the time of this one, else None
    part_of: str | None = None
    changes_kernels: bool = False  # whether compute takes less time without it
    # whether nothing else does: without it a step gains at most what it gains if no kernel of
    # compute takes any time
    only_compute: bool = False
    # what a report must show of a rank so that it can be ruled out; None if nothing hides it.
    # Where that is hidden and it is not found, it is not applicable
    needs: Sight | None = None
    # whether it says what did not run, such as nothing or no compute: where operations may be lost
    # it is not applicable, found or not
    counts_gaps: bool = True

    def assumed(self, group: Sequence[Finding], results: Sequence[Any]) -> tuple[str, ...]:
        """Return the names of the assumptions that remove a finding; empty if there is none.

        `group`: the finding on each rank that has it. `results`: of its analysis on these ranks.
        """
        return self.removed_by(group, results) if callable(self.removed_by) else self.removed_by

    def share_of(self, group: Sequence[Finding]) -> float | None:
        """Return the share of a finding's cost that these are about; None for all of it."""
        return None if self.removed_share is None else self.removed_share(group)


def by_id(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Group findings by id, in the order in which the ids first appear."""
    return list(by_key(findings, lambda finding: finding.id).values())


def worst_of(group: Sequence[Finding]) -> Finding:
    """Return the most severe finding; of equals, the one that costs the largest share."""
    return max(group, key=lambda finding: (finding.severity, finding.impact_fraction))


def costliest_like(finding: Finding, among: Iterable[Finding]) -> Finding | None:
    """Return the costliest finding with the id and the rank of another one; None without any."""
    alike = [one for one in among if (one.id, one.rank) == (finding.id, finding.rank)]
    return max(alike, key=lambda one: one.impact_ns, default=None)


_NUMBER = re.compile(r"\d[\d.]*(?: (?:ns|µs|ms|s|%|kB|MB|GB))?")


def by_reason(missing: Iterable[NotApplicable]) -> list[list[NotApplicable]]:
    """Join the reasons that several findings or ranks share.

    Reasons of ranks that differ only in their numbers are the same.
    """

    def said(gap: NotApplicable) -> tuple[str, str]:
        reason = gap.reason if gap.rank is None else _NUMBER.sub("#", gap.reason)
        return reason, gap.how_to_collect

    return list(by_key(missing, said).values())
