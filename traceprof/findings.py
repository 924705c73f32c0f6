"""Findings: claims with their evidence, and what could not be judged."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from types import NoneType
from typing import TYPE_CHECKING, Annotated, NamedTuple, get_args

from msgspec import Meta, Struct
from msgspec.structs import FieldInfo, asdict, fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MetricValue = int | float | str | None

# Kinds of numbers and texts: of metrics, and of the fields of JSON documents.
Ns = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
Number = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Text = Annotated[str, Meta(min_length=1)]


def one_of(*values: str | int) -> Meta:
    """Return the limit of a field to these values, for the schema."""
    return Meta(extra_json_schema={"enum": list(values)})


class Metric(NamedTuple):
    """The declaration of a metric, for the JSON schema and `traceprof explain`.

    Attributes:
        kind: its type without null, annotated with its limits.
        meaning: its description, to be written behind its name.
        is_nullable: whether it is null where it cannot be known.
        is_optional: whether it is left out where there is no such thing.
    """

    kind: object
    meaning: str
    is_nullable: bool
    is_optional: bool


class Metrics(Struct):
    """The numbers of a finding; a subclass declares those of one kind of finding.

    Each field is `Annotated[type, …, meaning]`: a kind such as `Ns`, `Count` or `Fraction`, with
    `| None` where it may be unknown, perhaps `one_of(…)`, and a text that says what it is. A field
    with a default is left out of the finding where it is None.
    """

    @classmethod
    def declared(cls) -> dict[str, Metric]:
        """Return the declarations by the metrics' names."""
        return {field.name: _declared(field) for field in fields(cls)}

    def by_name(self) -> dict[str, MetricValue]:
        """Return the numbers by name, as a finding has them."""
        values = asdict(self)
        optional = {field.name for field in fields(self) if not field.required}
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


class Severity(IntEnum):
    """How much a finding costs, in ascending order."""

    INFO = 0
    LOW = 1
    MEDIUM = 2
    HIGH = 3

    def __str__(self) -> str:
        """Return the name as users write it."""
        return self.name.lower()


# Shares of the training, or of what else is judged. Below 1 % a change cannot be told from the
# noise between two runs; a finding worth an afternoon costs some per cent; a quarter of the GPU's
# time is worth a project.
_THRESHOLDS = (
    (0.25, Severity.HIGH),
    (0.10, Severity.MEDIUM),
    (0.03, Severity.LOW),
    (0.01, Severity.INFO),
)


def severities_text() -> str:
    """Return from which share of the training on a finding has which severity."""
    limits = reversed(_THRESHOLDS)
    return ", ".join(f"{severity} from {least * 100:.0f} %" for least, severity in limits)


def severity_of_cost(fraction: float) -> Severity | None:
    """Return the severity of losing this share of the training, None if it is not worth a word."""
    return next((severity for least, severity in _THRESHOLDS if fraction >= least), None)


MAX_EVIDENCE = 5
"""Intervals shown as evidence: what a reader looks at before believing the rest."""


def share(part: int, whole: int) -> float:
    """Return part of a whole, 0 where there is none."""
    return part / whole if whole else 0.0


def bullets(lines: Iterable[str]) -> str:
    """Write advice as a list in Markdown."""
    return "\n".join(f"* {line}" for line in lines)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where in time a finding can be seen.

    Attributes:
        start_ns: in the report's own time.
        end_ns: likewise.
        label: what happened there.
    """

    start_ns: int
    end_ns: int
    label: str


class Basis(str, Enum):
    """What says how much a step would gain."""

    REPLAY = "replay"
    BOUND = "bound"

    def __str__(self) -> str:
        """Return the name as it is written."""
        return self.value


@dataclass(frozen=True, slots=True)
class Saving:
    """What a training step would gain if a finding were gone, on all ranks that have it, ns.

    Attributes:
        basis: a replay of the steps, or a bound: no more than this.
        high_ns: at most.
        step_ns: most likely; None of a bound.
        low_ns: at least; None of a bound.
        assume: the assumption that was replayed, None where it is what the finding costs.
    """

    basis: Basis
    high_ns: int
    step_ns: int | None = None
    low_ns: int | None = None
    assume: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim about one rank.

    Attributes:
        id: what is claimed, such as `gpu-idle`.
        severity: follows the cost.
        rank: the rank it is about.
        title: the claim in one sentence.
        impact_ns: what it costs: never more than what is judged.
        impact_fraction: the same as a share of what is judged, 0 to 1.
        metrics: numbers by name, units in the name.
        evidence: the worst intervals, worst first.
        advice: what can be done, most promising first.
        saving: what a step would gain without it; None where nothing can be said.
    """

    id: str
    severity: Severity
    rank: int
    title: str
    impact_ns: int
    impact_fraction: float
    metrics: Mapping[str, MetricValue]
    evidence: tuple[Evidence, ...] = ()
    advice: tuple[str, ...] = ()
    saving: Saving | None = None


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """A finding that could be neither made nor ruled out.

    Attributes:
        id: the finding's id.
        reason: what is missing.
        how_to_collect: the flag or step that would supply it.
        rank: the rank concerned, or None for the whole run.
    """

    id: str
    reason: str
    how_to_collect: str
    rank: int | None = field(default=None)


def by_id(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Put the same finding on several ranks together; the first of each keeps its place."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.id, []).append(finding)
    return list(groups.values())


def worst_of(group: Sequence[Finding]) -> Finding:
    """Return the one of the highest severity that costs the largest share of its window."""
    return max(group, key=lambda finding: (finding.severity, finding.impact_fraction))


def by_reason(missing: Iterable[NotApplicable]) -> list[list[NotApplicable]]:
    """Put together what is missing in the same way for several findings or ranks."""
    groups: dict[tuple[str, str], list[NotApplicable]] = {}
    for gap in missing:
        groups.setdefault((gap.reason, gap.how_to_collect), []).append(gap)
    return list(groups.values())
