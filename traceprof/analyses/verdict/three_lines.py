"""The verdict in three lines: what is wrong, what to do, what it brings; then how far to trust it.

At most `MAX_WORDS` words in all. One action, one rank, one number: the rest of the report says
more. Shares are of the mean counted step where there are steps, else of the training.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

from msgspec import Struct

from traceprof.analyses.breakdown import BreakdownResult
from traceprof.analyses.compute_parts import GRAPH
from traceprof.analyses.host_stall import FEW_CORES
from traceprof.analyses.registry import FINDINGS
from traceprof.analyses.remedies import COLLECT, EVALUATE_ELSEWHERE, SAVE_BESIDE
from traceprof.analyses.results import LOOK_AT
from traceprof.analyses.steps import (
    RAN,
    SPOKEN,
    SlowStep,
    cause_text,
    counted_steps,
    judged_steps,
    mean_ns,
    slow_for_themselves,
    step_ns,
    step_trend,
)
from traceprof.analyses.unfused_kernels import ATTENTION, LAYOUT, OPTIMIZER
from traceprof.analyses.verdict.attribution import MEASURES
from traceprof.analyses.verdict.headline import MIN_SHARE, Headline
from traceprof.analyses.verdict.phases import name_of_phase
from traceprof.analyses.verdict.run_result import RunResult
from traceprof.analyses.verdict.yields import MIN_CHANGES, cause_of, expected_ns, usual_yield
from traceprof.errors import one_line
from traceprof.findings import Finding, Severity, Text, share
from traceprof.host.places import PlaceKind, kind_of
from traceprof.host.rank_stalls import GARBAGE
from traceprof.kernel_names import function_name, readable
from traceprof.kernel_names.categories import Category
from traceprof.run.completeness import Losses
from traceprof.run.steady_steps import StepUse
from traceprof.trace.model.parts import Part
from traceprof.trace.model.trace import KINETO_FORMAT, UNREAD
from traceprof.units import between, counted, duration, percent, ranks_text

MAX_WORDS = 60
_MIN_ACTION, _MAX_ACTION = 12, 22  # words
_MAX_TRUST = 15
_MAX_PLACE = 60  # characters
_MAX_PLACE_WORDS = 5
_FEW_STEPS = 3
_DOMINATES = 0.9  # of a step: what else can be gained is less than a tenth
_NEARLY_ALL = 0.95  # of the recorded GPU time

_IDLE = {
    "data_loading": "the host waits for data to be loaded",
    "launch_bound": "the host cannot launch its kernels fast enough",
    "sync": "the host waits for the GPU and launches too late afterwards",
    "mpi": "the host is in MPI calls",
    "setup": "the host sets something up for the first time",
    "allocation": "the host allocates and frees memory",
    "host_code": "the host runs code of its own",
    "waiting": "the launching thread sleeps",
    "stalled": "calls of the host are held up",
    "queued": "work in its queue waits for other work",
    "turnaround": "it takes time between operations, even those launched in time",
    "unknown": "the report does not show why",
    "pages": "the host works on pages of unified memory that move one by one",
}
_IN_PLACE = {
    PlaceKind.CHECKPOINT: "the host saves a checkpoint",
    PlaceKind.EVALUATION: "the host evaluates the model",
    PlaceKind.COLLECTION: "Python collects garbage",
    PlaceKind.COMPILE: "the host compiles",
}
_EXPOSED = {
    "waiting": "it waits for other ranks",
    "late_launch": "the host launches it late",
    "queued": "it queues behind other communication",
    "same_stream": "it shares a stream with compute",
    "needed_at_once": "compute needs it at once",
    "late_input": "its input comes late",
    "transfer": "it takes longer than the compute beside it",
}
_WITH_WAITS = "it, waits included, outlasts the compute beside it"
_CLAIMS = {
    "exposed-copy": "copies that nothing hides",
    "pageable-copy": "waiting for copies from or to pageable host memory",
    "full-precision-matmul": "matrix multiplications in FP32 beyond what half precision would take",
    "unfused-kernels": "chains of small kernels that one fused kernel could replace",
    "few-blocks": "kernels too small to fill the GPU",
    "unified-memory": "kernels that wait for pages of unified memory",
    "overlap-slowdown": "kernels that run slower beside communication",
    "nccl-serialization": "communication that waits behind other communication on its stream",
    "late-allreduce": "gradients that are reduced when no compute is left to hide it",
    "small-collectives": "collectives so small that latency dominates",
    "process-group-scaling": "communication that slows down with the number of process groups",
    "pipeline-bubble": "stages of the pipeline that wait for each other",
    "launch-queue-stall": "launches blocked by a full queue",
    "host-stall": "calls of the host that were held up",
    "peer-copy-through-host": "copies between GPUs that go through host memory",
    "nccl-p2p-slower-than-copy": "sends between GPUs that are slower than copies",
    "link-saturated": "transfers over a link at its limit",
    "link-underused": "transfers far below the link's speed",
}

_UNFUSED = {  # by the advice that comes first
    ATTENTION: "Attention that is not one kernel",
    LAYOUT: "Changes of layout around convolutions",
    OPTIMIZER: "An optimizer that is not fused",
}
_GAINS_BESIDE = {
    "communication=0": "kernels beside communication become faster, too",
    "copies-hidden": "the calls that make the copies go, too",
    "half-precision": "kernels that only move numbers become faster, too",
    "launch=0": "what the host runs between launches goes, too",
    "no-sync": "the host then launches ahead, too",
    "no-data-loading": "copies of batches go, too",
    "equal-kernels": "other ranks wait for them",
    "alone": "that is only what lies beyond the mean of all ranks",
    "straggler": "other ranks wait for it",
    "exposed-communication": "kernels beside communication become faster, too",
    "host-sync": "waits while the GPU works go, too",
    "unified-memory": "all time of these kernels counts",
    "few-blocks": "all time of these kernels counts",
    "unfused-kernels": "single kernels and launching count, too",
}
_MIN_RARE = 0.03  # of what is judged, from which on steps that the mean leaves out are named
_MIN_IDLE = 0.03  # where `gpu-idle` begins on a GPU
_MUCH_MORE = 1.05  # a step of another rank may be as much longer


class ThreeLines(Struct, frozen=True, forbid_unknown_fields=True):
    """What is wrong, what to do, and what it brings, in at most 60 words."""

    problem: Annotated[
        Text,
        "What is wrong, in one sentence with one number; one of the compute before it where that"
        " takes 90 % or more.",
    ]
    action: Annotated[Text | None, "What to do first; null if there is nothing to do."]
    gain: Annotated[Text | None, "What a step gains by it; null if that is unknown."]
    trust: Annotated[Text | None, "What weakens the verdict; null if nothing does."]

    @property
    def lines(self) -> tuple[str, ...]:
        """The verdict as lines of a report."""
        last = (self.gain and f"Gain: {self.gain}.", self.trust and f"Trust: {self.trust}.")
        action = self.action and f"Do: {self.action.rstrip('.')}."
        return tuple(filter(None, (self.problem, action, *last)))


def three_lines(analysis: RunResult) -> ThreeLines | None:
    """Return the verdict on a run; None if nothing was judged, or only some findings were."""
    headline = analysis.headline
    if analysis.measured.wanted is not None:
        return None
    unjudged = _unjudged(analysis)
    if headline is None or unjudged is not None:
        return unjudged
    kind = headline.unit
    causes = headline.causes
    if (of_steps := _rare(headline, analysis) or _longer(headline, analysis)) is not None:
        return of_steps
    if not causes or causes[0].severity is Severity.INFO:
        trust = _trust(_doubts(analysis, headline, causes[0] if causes else None), _MAX_TRUST)
        idle = _share_of_mean(headline.breakdown, "idle_ns")
        if not headline.breakdown.has_gpu and idle >= _MIN_IDLE:
            record = analysis.run.how_to_collect(Part.GPU_OPERATIONS)
            share_of = f"{percent(idle)} of the {kind}"
            problem = f"No GPU operation was recorded, and {share_of} lie in no range of"
            return ThreeLines(
                f"{problem} compute or communication.", f"Record them, too: {record}", None, trust
            )
        return ThreeLines(_healthy(analysis, headline, kind), None, None, trust)
    inside = analysis.in_phase(causes[0])
    if inside is None:
        problem = f"{_dominating(analysis, headline)}{_problem(causes[0], analysis, kind)}"
        gain, more = _gain(causes[0], analysis, headline)
    else:
        problem, gain, more = _of_phase(*inside, name_of_phase(causes[0]))
    action = _first_action(causes[0] if inside is None else inside[1])
    return _fitted(problem, action, gain, _doubts(analysis, headline, causes[0]), more)


def _fitted(
    problem: str,
    action: str | None,
    gain: str | None,
    doubts: Iterable[str],
    more: str | None = None,
) -> ThreeLines:
    """Return a verdict of at most `MAX_WORDS` words: problem and gain are said as they are.

    `more`: what to add to the gain if there is room.
    """
    left = MAX_WORDS - len(f"{problem} Do: Gain: {gain or ''}".split())
    trust = _trust(doubts, left - _MIN_ACTION - 1)
    left -= len(f"Trust: {trust}".split()) if trust else 0
    if action is None:
        return ThreeLines(problem, None, None, trust)
    if more and left >= len(more.split()) + _MIN_ACTION:
        gain, left = f"{gain}; {more}", left - len(more.split())
    return ThreeLines(problem, _within(action, min(left, _MAX_ACTION)), gain, trust)


def _rare(headline: Headline, analysis: RunResult) -> ThreeLines | None:
    """Return the verdict on slow steps; None where something in the other ones costs more.

    These are steps that the mean leaves out, those with a cause that has a remedy, and where the
    costliest finding has no known cause, those in which something ran that ran nowhere else. Where
    the costliest finding lies in one step all are, also those at the beginning: these come once,
    however long the training is.
    """
    causes = headline.causes
    is_once = any(advice.startswith(LOOK_AT) for cause in causes[:1] for advice in cause.advice[:1])
    uses = (StepUse.RARE, StepUse.OPENING, StepUse.STEADY) if is_once else (StepUse.RARE,)
    is_known = bool(causes) and cause_of(causes[0]) != "unknown"
    named = _RARE_ACTIONS.keys() if is_known else RAN
    groups: dict[tuple[int, str, str | None], list[SlowStep]] = defaultdict(list)
    results = {result.rank: result for result in analysis.breakdown}
    for rank, step in slow_for_themselves(analysis.measured.slow_steps, analysis.breakdown):
        use = results[rank].steps[step.index].use
        if use in uses or (step.cause in named and use is not StepUse.OPENING):
            groups[rank, step.cause, step.label].append(step)
    if headline.lengths is None or not groups:
        return None
    cost = {key: sum(step.extra_ns for step in steps) for key, steps in groups.items()}
    key = max(cost, key=lambda key: (cost[key], -key[0]))
    (rank, cause, label), extra_ns = key, cost[key]
    judged_ns, steps = results[rank].judged.window_ns, groups[key]
    first_ns = (
        expected_ns(causes[0], headline.step_ns) * headline.lengths.num_steps if causes else 0
    )
    if extra_ns < max(first_ns, _MIN_RARE * judged_ns):
        return None
    unit, training = results[rank].unit.unit, results[rank].judged_kind
    one, part = len(steps) == 1, percent(share(extra_ns, judged_ns))
    took = f"{'takes' if one else 'take'} {duration(extra_ns // len(steps))} more"
    use = results[rank].steps[steps[0].index].use
    more = "where more ran than in usual ones"
    why = more if use is StepUse.RARE or cause in RAN else "and at what came before"
    number = steps[0].number if steps[0].host_number is None else steps[0].host_number
    look = f"Look at {unit.word} {number}, {why}"
    problem = (
        f"{len(steps)} of {len(judged_steps(results[rank]))} {unit.several}"
        f"{f' of rank {rank}' if len(results) > 1 else ''} {took}{'' if one else ' each'}, {part}"
        f" of the {training}: {cause_text(cause, label)}."
    )
    gain = f"at most {duration(extra_ns)} of {duration(judged_ns)} ({part})"
    action = _RARE_ACTIONS.get(cause, look)
    return _fitted(problem, action, gain, _doubts(analysis, headline, None))


def _longer(headline: Headline, analysis: RunResult) -> ThreeLines | None:
    """Return the verdict on steps that become longer; None where something else costs more."""
    causes, step_ns = headline.causes, headline.step_ns
    result = _rank_that_grows(headline.breakdown, analysis.breakdown)
    found = step_trend(result)
    if found is None:
        return None
    beyond_ns = step_ns - found.first_ns
    first_ns = expected_ns(causes[0], step_ns) if causes else 0
    if beyond_ns < max(first_ns, _MIN_RARE * step_ns):
        return None
    unit = result.unit.unit
    numbers = [step.number for step in counted_steps(result)]
    is_slower = found.part == "compute_ns" and found.runs_as_many
    of_rank = f" of rank {result.rank}" if len(analysis.breakdown) > 1 else ""
    grows = "as many kernels run longer" if is_slower else f"more {SPOKEN[found.part]}"
    problem = (
        f"{unit.several.capitalize()}{of_rank} become {percent(found.share)} longer:"
        f" {duration(found.first_ns)} in the first half of the recording,"
        f" {duration(found.second_ns)} in the second; {grows}."
    )
    look = f"{unit.several} {numbers[0]} and {numbers[-1]} on the timeline"
    clock = "See whether its clock fell (nvidia-smi -q -d PERFORMANCE,CLOCK) or its work grew"
    action = f"{clock}: compare {look}" if is_slower else f"Compare {look}"
    gain = f"at most {duration(beyond_ns)} of {duration(step_ns)} {unit.one}"
    gain += f" ({percent(beyond_ns / step_ns)})"
    return _fitted(problem, action, gain, _doubts(analysis, headline, None))


def _rank_that_grows(
    longest: BreakdownResult, results: Sequence[BreakdownResult]
) -> BreakdownResult:
    """Return the rank whose steps become longer by more than communication, in which others wait.

    That is the one with the longest steps, if none does.
    """

    def growth(result: BreakdownResult) -> float:
        found = step_trend(result)
        if found is None or found.part == "exposed_communication_ns":
            return 0.0
        return max(found.share, 0.0)

    return max(results, key=lambda one: (growth(one), one.rank == longest.rank, -one.rank))


_RARE_ACTIONS = {"checkpoint": SAVE_BESIDE, "evaluation": EVALUATE_ELSEWHERE, "collection": COLLECT}


def _of_phase(phase: RunResult, finding: Finding, name: str) -> tuple[str, str | None, str | None]:
    """Return problem and gain of a finding in a phase of the program, and what to add to these."""
    headline = phase.headline
    assert headline is not None  # noqa: S101  (it has steps)
    problem = _problem(finding, phase, headline.unit)
    is_word = problem[1:2].islower() or problem[1:2] == " "
    problem = f"In the {name} {problem[0].lower() if is_word else problem[0]}{problem[1:]}"
    return problem, *_gain(finding, phase, headline, f" of the {name}")


def _unjudged(analysis: RunResult) -> ThreeLines | None:
    """Return the verdict on a recording from which nothing can be judged; None for others."""
    headline = analysis.headline
    if headline is None:
        contents = (content for report in analysis.run.reports for content in report.contents)
        unread = ", ".join({content.name: None for content in contents if content.what == UNREAD})
        if unread:
            return ThreeLines(_NOT_READ.format(unread), None, None, None)
        record = analysis.run.how_to_collect(Part.GPU_OPERATIONS).partition(" (")[0]
        return ThreeLines(_NO_OPERATION, f"Record them: {record}", None, None)
    lost = lost_lines(analysis.completeness)
    if lost:
        return ThreeLines(lost[0], "Record fewer steps at a time, and again", None, None)
    wholes = [result.whole for result in analysis.breakdown if result.has_gpu]
    num = sum(part.num_kernels + part.num_communication + part.num_copies for part in wholes)
    categories = {part.category for of_rank in analysis.measured.compute for part in of_rank.parts}
    if num == 1 and GRAPH not in categories:
        return ThreeLines(_ONE_OPERATION, _RECORD_STEPS, None, None)
    judged = headline.judged_fraction
    num_steps = headline.lengths.num_steps if headline.lengths else 0
    if judged is not None and judged < _MIN_JUDGED and num_steps <= 1:
        return ThreeLines(_LITTLE.format(part_judged(headline)), _RECORD_STEPS, None, None)
    return None


_MIN_JUDGED = 0.1  # of the recorded GPU time: less says little of the rest
_RECORD_STEPS = "Record some steps of the work"
_LITTLE = "Only {} can be judged, too little for a verdict."
_NOT_READ = "Nothing can be judged: the events of this accelerator ({}) are not read."
_ONE_OPERATION = "Nothing can be judged from a single GPU operation."
_NO_OPERATION = "Nothing can be judged: no report holds a GPU operation."


def lost_lines(completeness: Sequence[tuple[int, Losses]]) -> list[str]:
    """Return what recordings lack, if it is so much that it changes what can be said.

    `completeness`: by rank.
    """
    doubtful = [(rank, losses) for rank, losses in completeness if losses.is_doubtful]
    if not doubtful:
        return []
    rank, worst = max(doubtful, key=lambda pair: pair[1].share)
    more = f" ({counted(len(doubtful), 'rank')} of {len(completeness)} lack some)"
    of_rank = f"on rank {rank} " if len(completeness) > 1 else ""
    effect = (
        "nothing is judged: no steps, no findings"
        if worst.is_unusable
        else "nothing is judged that takes gaps between operations for idle time"
    )
    lacks = f"{of_rank}{worst.sentence}{more if len(doubtful) > 1 else ''}"
    lost = f"{duration(worst.lost_ns)} in which nothing is recorded are lost, not idle; {effect}"
    return [f"The recording is incomplete: {lacks}. {lost}."]


def _healthy(analysis: RunResult, headline: Headline, kind: str) -> str:
    causes = headline.causes
    computes = _computes(analysis, headline)
    costs = [(share_of_step(one, analysis.breakdown), one) for one in headline.worst]
    cost, worst = max(costs, key=lambda pair: pair[0], default=(0.0, None))
    if not causes and worst is not None and worst.severity > Severity.INFO and cost >= MIN_SHARE:
        longest, nothing = headline.breakdown.rank, f"Nothing can be gained from {worst.id}"
        if worst.rank == longest:
            return f"{nothing}, {percent(cost)} of the {kind}: {computes}."
        compute = percent(_share_of_mean(headline.breakdown, "compute_ns"))
        nothing += f" of rank {worst.rank}, {percent(cost)} of its {kind}"
        return f"{nothing}, while rank {longest} computes {compute} of its own."
    if not causes:
        return f"Nothing costs 1 % of the {kind}: {computes}."
    name = name_of_phase(causes[0])
    where = f" in the {name}" if name else ""
    return f"Nothing costs 3 % of the {kind}: {computes}; {causes[0].id} comes first{where}."


def _computes(analysis: RunResult, headline: Headline) -> str:
    compute = percent(_share_of_mean(headline.breakdown, "compute_ns"))
    return f"compute takes {compute} of the {headline.unit}{_mostly(analysis, headline.breakdown)}"


def _dominating(analysis: RunResult, headline: Headline) -> str:
    """Say what computes, before a cause of another kind, if nothing else can gain much."""
    compute = _share_of_mean(headline.breakdown, "compute_ns")
    if compute < _DOMINATES or FINDINGS[headline.causes[0].id].part is None:
        return ""
    return f"C{_computes(analysis, headline)[1:]}. "


def _mostly(analysis: RunResult, breakdown: BreakdownResult) -> str:
    """Name what takes most of a rank's compute: a kernel, else a category, else two kernels."""
    compute = analysis.measured.compute
    parts = next((parts for parts in compute if parts.rank == breakdown.rank), None)
    if parts is None:
        return ""
    kernels, categories = Counter[str](), Counter[str]()
    for use in parts.largest:
        kernels[one_line(readable(function_name(use.name)), _MAX_PLACE)] += use.total_ns
    for part in parts.parts:
        if part.category not in {Category.OTHER, GRAPH}:
            categories[part.category] += part.total_ns
    for named in (kernels.most_common(1), categories.most_common(1), kernels.most_common(2)):
        if 2 * sum(ns for _, ns in named) > parts.total_ns:
            return f", mostly {' and '.join(name for name, _ in named)}"
    return ""


def _share_of_mean(result: BreakdownResult, measure: str) -> float:
    return share(round(mean_ns(result, measure)), step_ns(result))


def share_of_step(finding: Finding, breakdowns: Sequence[BreakdownResult]) -> float:
    """Return what a finding costs as a share of the mean counted step of its rank."""
    result = next((one for one in breakdowns if one.rank == finding.rank), None)
    if result is None or not counted_steps(result):
        return finding.impact_fraction
    part = FINDINGS[finding.id].part
    if part is not None:
        return _share_of_mean(result, MEASURES[part])
    per_step = finding.metrics.get("per_step_ns")
    if isinstance(per_step, int):
        return min(share(per_step, step_ns(result)), 1.0)
    return finding.impact_fraction


def why_more(finding: Finding, per_step_ns: int) -> str | None:
    """Return why a step gains more without a finding than that costs; None if it does not."""
    saving = finding.saving
    if saving is None:
        return None
    gained = saving.high_ns if saving.step_ns is None else saving.step_ns
    is_more = (gained or 0) > _MUCH_MORE * per_step_ns
    why = saving.assume or finding.id
    if why == "equal-kernels" and finding.metrics.get("others_wait_ns") is None:
        why = "alone"
    return _GAINS_BESIDE.get(why) if is_more else None


_SENTENCES = {
    "gpu-idle": "The GPU{of_rank} idles {cost}: {idle}{place}.",
    "exposed-communication": (
        "Communication{of_rank} that no compute hides takes {cost}{exposed}."
    ),
    "host-sync": "The host waits for the GPU{api}, and the GPU{of_rank} then idles {cost}.",
    "straggler": "Every rank waits for rank {rank}, which arrives last: {cost}.",
    "uneven-kernels": "Rank {rank} computes longer than its peers: {cost}.",
    "slower": "Rank {rank} computes {slower} times as long as its {peers}.",
    "slower-kernel": "{kernel} takes {slower} times as long on rank {rank} as on its {peers}.",
    "changing": "Ranks compute unequally long, another one longest each time: {cost}.",
    "longest-stage": "Stage {stage} of the pipeline computes longest; the others wait: {cost}.",
    "unfused": "{unfused}, and other unfused kernels, cost {cost}.",
    "few-cores": "Too few cores for the hosts of {ranks}: calls that are held up take {cost}.",
    "other": "{title}: {cost}.",
    "claim": "{cost}{on_rank} goes to {claim}.",
}


def _problem(finding: Finding, analysis: RunResult, kind: str) -> str:
    several, cause = len(analysis.breakdown) > 1, cause_of(finding) or "unknown"
    unfused = _UNFUSED.get(next(iter(finding.advice), ""))  # no other finding gives these
    other = "claim" if finding.id in _CLAIMS else "other"
    api = finding.metrics.get("api")
    form = "unfused" if unfused else finding.id if finding.id in _SENTENCES else other
    if form == "uneven-kernels" and finding.metrics.get("is_constant") is False:
        form = "changing"
    peers = _peers(finding) if form == "uneven-kernels" else None
    if peers is not None:  # the cost is only what lies beyond the mean of all ranks
        form = "slower-kernel" if finding.metrics.get("kernel") else "slower"
    if finding.id == "gpu-idle" and cause == "host_code" and "unified memory" in finding.title:
        cause = "pages"
    idle = _IDLE.get(cause, _IDLE["unknown"])
    if cause in {"host_code", "setup"}:
        idle = _IN_PLACE.get(kind_of(str(finding.metrics.get("host_in") or "")), idle)
    stage = finding.metrics.get("longest_stage")
    if finding.id == "pipeline-bubble" and stage is not None:
        form = "longest-stage"
    held_up_by = finding.metrics.get("held_up_by")
    if held_up_by == FEW_CORES:
        form = "few-cores"
    garbage = held_up_by if held_up_by == GARBAGE else None
    return _SENTENCES[form].format(
        cost=f"{percent(share_of_step(finding, analysis.breakdown))} of the {kind}",
        rank=finding.rank,
        of_rank=f" of rank {finding.rank}" if several else "",
        on_rank=f" on rank {finding.rank}" if several else "",
        stage=stage,
        ranks=counted(int(finding.metrics.get("num_ranks") or 1), "rank"),
        peers=peers,
        kernel=one_line(str(finding.metrics.get("kernel")), _MAX_PLACE),
        slower=f"{finding.metrics.get('slower') or 0:.2f}",
        idle=idle,
        exposed=_exposed(finding, cause),
        place=_place(finding),
        api=f" ({api})" if isinstance(api, str) else "",
        title=_within(one_line(finding.title), _MAX_ACTION),
        claim=garbage or _CLAIMS.get(finding.id),
        unfused=unfused,
    )


def _exposed(finding: Finding, cause: str) -> str:
    """Say why communication is exposed; what takes long may be waiting where that is not known."""
    if cause not in _EXPOSED:
        return "; the report does not show why"
    may_wait = cause == "transfer" and finding.metrics.get("waiting_ns") is None
    return f", mostly since {_WITH_WAITS if may_wait else _EXPOSED[cause]}"


def _peers(finding: Finding) -> str | None:
    own, least, most = (finding.metrics.get(f"{name}_ns") for name in ("compute", "least", "most"))
    if not (isinstance(own, int) and isinstance(least, int) and isinstance(most, int)):
        return None
    one = finding.metrics.get("num_peers") == 1
    return f"{'peer' if one else 'peers'}: {duration(own)}, against {between(least, most)}"


_SMALL = (  # findings whose advice holds such a flag only where the report proves its use
    ("exposed-copy", "gradient_as_bucket_view=True"),
    ("pageable-copy", "pin_memory=True"),
    ("unfused-kernels", "channels_last"),
    ("unfused-kernels", "fused=True"),
)


def small_fixes(findings: Sequence[Finding]) -> str | None:
    """Name the flags that cost nothing and are proven to be of use, with what proves them."""
    fixes = []
    for id_, flag in _SMALL:
        for finding in findings:
            advice = next((text for text in finding.advice if flag in text), None)
            if finding.id == id_ and advice is not None:
                proof = re.match(r"\d[^,:(]*[^,:( ]", advice)
                fixes.append(f"{flag} ({proof[0] if proof else id_})")
                break
    return f"Small and certain: {'; '.join(fixes)}." if fixes else None


def _place(finding: Finding) -> str:
    # Optimizer.step#Adam.step
    name = re.sub(r"#[A-Za-z_]\w*\.\S*\Z", "", one_line(str(finding.metrics.get("host_in") or "")))
    if len(name) > _MAX_PLACE:  # the operator without its line
        name = name.partition(" in ")[0]
    if not name or len(name) > _MAX_PLACE:
        name = (
            "" if finding.metrics.get("step_cause") else one_line(finding.place or "", _MAX_PLACE)
        )
    return f" ({_within(name, _MAX_PLACE_WORDS)})" if name else ""


def short_action(finding: Finding) -> str | None:
    """Return the first advice that is an action, in few words; None if none is due."""
    action = _first_action(finding)
    return action and _within(action, _MAX_ACTION)


def _first_action(finding: Finding) -> str | None:
    """Return the first advice that is an action, without what explains it; None if none is due."""
    for advice in map(one_line, finding.advice):
        text = _COUNTED.sub("", advice)
        if text.startswith(_NOTHING_TO_DO):
            return None
        if not text.startswith(_NO_ACTION):
            word, _, rest = text.partition(" ")
            return f"{word.capitalize()} {rest}" if word.isalpha() and word.islower() else text
    return None


# What an advice is about, and how much it is; what explains it.
_COUNTED = re.compile(
    r"^\d.*?\): ((?:they|each module's) [^;]*; )?|^(?:The|They|No|Set-up) [^:;]*[:;] "
)
_NO_ACTION = ("torch.profiler itself", "they ")
_NOTHING_TO_DO = "In the first steps this is normal"


def _within(text: str, max_words: int) -> str:
    if len(text.split()) <= max_words:
        return text.rstrip(".")
    best = ""
    for clause in re.finditer(r"[;:,.](?= )|(?= \()", text):
        before = text[: clause.start()]
        if len(before.split()) > max_words:
            break
        if before.count("(") == before.count(")"):
            best = before
    return best or " ".join(text.split()[:max_words])


def _gain(
    finding: Finding, analysis: RunResult, headline: Headline, of_phase: str = ""
) -> tuple[str | None, str | None]:
    """Return what a step gains, and what to add to it if there is room."""
    saving, step = finding.saving, headline.step_ns
    if saving is None or not saving.high_ns or not step:
        return None, None
    why = why_more(finding, round(share_of_step(finding, analysis.breakdown) * step))
    more = f"more than the cost: {why}" if why else None
    unit = f" {headline.breakdown.unit.unit.one}{of_phase}" if headline.lengths else ""
    a_step = f"of {duration(step)}{unit}"
    if saving.low_ns and saving.step_ns:
        gained = f"{duration(saving.step_ns)} {a_step} ({percent(saving.step_ns / step)})"
        return f"about {gained}, by a replay", more
    most = duration(saving.high_ns)
    faster = saving.faster_host_ns
    beyond = f", {duration(faster)} on a faster host" if faster else ""
    known = usual_yield(finding)
    if known is None or known.num_changes < MIN_CHANGES:
        num = 0 if known is None else known.num_changes
        few = f"only {counted(num, 'such change')}" if num else "no such change"
        few += " was measured" if num < 2 else " were measured"
        limit = f"at most {most} {a_step} ({percent(saving.high_ns / step)}){beyond}"
        return limit, more or few
    about = expected_ns(finding, step)
    return (
        f"about {duration(about)} {a_step} ({percent(about / step)}): half of such changes brought"
        f" {100 * known.low:.0f}-{100 * known.high:.0f} % of {most}{beyond}"
    ), None


def _trust(doubts: Iterable[str], max_words: int) -> str | None:
    said: list[str] = []
    for reason in doubts:
        if len(" ".join([*said, reason]).split()) > min(max_words, _MAX_TRUST):
            break
        said.append(reason)
    return "; ".join(said) or None


def part_judged(headline: Headline) -> str:
    """Return the share of the recorded GPU time that is judged, in words; none if nearly all."""
    share = headline.judged_fraction
    if share is None or share >= _NEARLY_ALL:
        return ""
    return f"{percent(share)} of the recorded GPU time"


def _doubts(analysis: RunResult, headline: Headline, first: Finding | None) -> Iterator[str]:
    if part := part_judged(headline):
        yield f"only {part} is judged"
    if headline.lengths is None:
        yield "no steps are known"
    elif headline.lengths.num_steps < _FEW_STEPS:
        num = headline.lengths.num_steps
        yield "one step" if num == 1 else f"only {counted(num, 'step')}"
    formats = {report.format for report in analysis.run.reports}
    if first is not None and first.metrics.get("waiting_ns", 0) is None:
        yield "waits for other ranks are not known"
    if KINETO_FORMAT in formats and first is not None and cause_of(first) == "launch_bound":
        yield "torch.profiler slows launching"
    for _, ranks in analysis.run.on_one_gpu:
        yield f"{ranks_text(ranks)} share a GPU"
    if analysis.failed:
        yield f"{counted(len(analysis.failed), 'report')} left out"
