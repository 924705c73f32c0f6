"""The order of findings, and the headline: the length of a step, and what to act on first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import field
from msgspec.structs import replace

from traceprof.analyses.breakdown import BreakdownResult
from traceprof.analyses.registry import FINDINGS
from traceprof.analyses.steps import StepLengths, slowest_rank, step_lengths, step_ns
from traceprof.analyses.verdict.savings import Savings
from traceprof.analyses.verdict.yields import expected_ns
from traceprof.findings import Finding, Severity, by_id, worst_of
from traceprof.structs import Record

MIN_SHARE = 0.01
"""The share of a step from which on a gain is above the noise between two runs."""
_EXPLAINED = 0.4
# Causes on other ranks, or of several symptoms: beside `FindingKind.part_of`, which is of one rank.
_SYMPTOMS = {
    "uneven-kernels": ("straggler", "exposed-communication", "gpu-idle"),
    "straggler": ("exposed-communication", "gpu-idle"),
    "pipeline-bubble": ("exposed-communication", "gpu-idle"),
}


def in_order(findings: Iterable[Finding], step_ns: int) -> tuple[Finding, ...]:
    """Return findings in the order in which to act on them, the ranks of each id together.

    By severity, which is the cost, then by the gain that is expected. A cause that explains at
    least two fifths of what another finding costs stands before it, at the better of their two
    places: they are one action. Where a rank is late, what a step gains by others beyond their
    cost is, up to what that rank costs, that it is late no more.
    """
    findings = [*findings]
    late = [one.impact_fraction for one in findings if one.id == "straggler"]
    late_ns = max(late, default=0.0) * step_ns

    def key(finding: Finding) -> tuple[object, ...]:
        expected: float = expected_ns(finding, step_ns)
        if finding.id != "straggler":
            beyond_ns = max(expected - finding.impact_fraction * step_ns, 0)
            expected -= min(beyond_ns, late_ns)
        return -finding.severity.level, -expected, -finding.impact_ns, finding.id, finding.rank

    def by_cost(finding: Finding) -> tuple[object, ...]:
        return -finding.severity.level, -finding.impact_ns, key(finding)

    groups = {group[0].id: sorted(group, key=by_cost) for group in by_id(findings)}
    symptom_of = symptoms(groups, step_ns)

    def action(id_: str) -> list[str]:
        chain = [id_]
        while chain[-1] in symptom_of:
            chain.append(symptom_of[chain[-1]])
        return chain

    chains = {id_: action(id_) for id_ in groups}
    keys = {id_: min(map(key, group)) for id_, group in groups.items()}
    first = {
        root: min(keys[id_] for id_, chain in chains.items() if chain[-1] == root)
        for root in {chain[-1] for chain in chains.values()}
    }
    order = sorted(
        groups,
        key=lambda id_: (first[chains[id_][-1]], chains[id_][-1], -len(chains[id_]), keys[id_]),
    )
    return tuple(finding for id_ in order for finding in groups[id_])


def symptoms(groups: Mapping[str, Sequence[Finding]], step_ns: int) -> dict[str, str]:
    """Return of each cause the first symptom, a large one if any, that it explains mostly.

    A cause on another rank explains what it costs, and what a step gains without it: its cost is
    that beyond the mean of all ranks, others wait for what lies beyond their own time. What is
    `info` in spite of its cost (it may be in order) explains nothing that is more.
    """
    matters = {
        id_: any(one.severity is not Severity.INFO for one in group)
        for id_, group in groups.items()
    }
    cost = {id_: max(one.impact_ns for one in group) for id_, group in groups.items()}
    symptoms = {}
    for id_, group in groups.items():
        whole = FINDINGS[id_].part_of
        explains: float = cost[id_]
        if id_ in _SYMPTOMS and step_ns:
            explains = max(one.impact_ns * max(1, _gain_to_cost(one, step_ns)) for one in group)
        explained = [
            symptom
            for symptom in _SYMPTOMS.get(id_, () if whole is None else (whole,))
            if symptom in groups
            and explains
            and explains >= _EXPLAINED * cost[symptom]
            and (matters[id_] or not matters[symptom])
        ]
        large = [symptom for symptom in explained if cost[symptom] >= _EXPLAINED * explains]
        if explained:
            symptoms[id_] = (large or explained)[0]
    return symptoms


def _gain_to_cost(finding: Finding, step_ns: int) -> float:
    gain_ns = finding.most_ns or 0
    return gain_ns / step_ns / finding.impact_fraction if finding.impact_fraction else 0


def as_parts(findings: Iterable[Finding], wholes: Iterable[Finding]) -> list[Finding]:
    """Return findings, each marked with the finding on its rank that includes all of its time."""
    costs = {(whole.id, whole.rank): whole.impact_ns for whole in wholes}
    marked = []
    for finding in findings:
        whole = finding.part_of or FINDINGS[finding.id].part_of
        is_inside = finding.impact_ns <= costs.get((whole or "", finding.rank), -1)
        marked.append(replace(finding, part_of=whole if is_inside else None))
    return marked


MAX_CAUSES = 3


class Headline(Record, frozen=True):
    """The run in one line."""

    breakdown: BreakdownResult  # of the rank whose step takes longest
    # what its step takes, the mean of the steady ones; without steps all that is judged is one
    # step
    step_ns: int
    lengths: StepLengths | None  # how long its steps take, None without steps
    # share of the time in which the GPUs worked that lies in what is judged: in the training, of
    # all that was recorded; None without a GPU
    judged_fraction: float | None = None
    # of each finding's id the costliest, of whatever rank, in the order of findings
    worst: tuple[Finding, ...] = ()
    savings: Savings = field(default_factory=Savings)  # what a step could take

    @property
    def unit(self) -> str:
        """What is one step in words; without steps, what is judged."""
        if self.lengths is None:
            return str(self.breakdown.judged_kind)
        return self.breakdown.unit.unit.word

    @property
    def causes(self) -> tuple[Finding, ...]:
        """What to act on first: at most three findings, each worth 1 % of a step or more.

        A finding that a named one explains is the same action.
        """
        symptom_of = symptoms({finding.id: [finding] for finding in self.worst}, self.step_ns)
        named: list[Finding] = []
        taken_in: set[str] = set()
        for finding in self.worst:
            if finding.id in taken_in or not self._matters(finding):
                continue
            named.append(finding)
            symptom = symptom_of.get(finding.id)
            while symptom is not None:
                taken_in.add(symptom)
                symptom = symptom_of.get(symptom)
        return tuple(named[:MAX_CAUSES])

    def _matters(self, finding: Finding) -> bool:
        most_ns = finding.most_ns
        is_costly = finding.impact_fraction >= MIN_SHARE
        return is_costly and (most_ns is None or most_ns >= MIN_SHARE * self.step_ns)

    def updated(self, findings: Sequence[Finding]) -> Headline:
        """Return the headline with findings instead of those of the same ids."""
        ids = {finding.id for finding in findings}
        others = [finding for finding in self.worst if finding.id not in ids]
        ordered = in_order([*findings, *others], self.step_ns)
        return replace(self, worst=tuple(map(worst_of, by_id(ordered))))


def headline(results: Sequence[BreakdownResult]) -> Headline | None:
    """Return the headline of a run, without findings; None if nothing was measured."""
    if not results:
        return None
    breakdown = slowest_rank(results)
    of_gpus = [result for result in results if result.has_gpu]
    recorded_ns = sum(result.whole.busy_ns for result in of_gpus)
    judged_ns = sum(result.judged.busy_ns for result in of_gpus)
    return Headline(
        breakdown,
        step_ns(breakdown),
        step_lengths(breakdown),
        judged_ns / recorded_ns if recorded_ns else None,
    )
