"""What-if answers as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import msgspec

from traceprof.documents.whatif import (
    SCHEMA,
    Answer,
    Baseline,
    PathPart,
    StepPath,
    StepPathPart,
    WhatIfDocument,
)
from traceprof.reports.whatif_sends import blocked_record, order_record, schedule_record
from traceprof.version import __version__

if TYPE_CHECKING:
    from traceprof.documents.whatif import Kind
    from traceprof.replay.answers.answers import Answer as Answered
    from traceprof.replay.answers.ask import Asked
    from traceprof.replay.answers.checked_replay import Baseline as Replayed
    from traceprof.replay.answers.step_path import StepPath as Path


def render(asked: Asked) -> str:
    """Return the document `traceprof.whatif/1`, with a line break at its end."""
    whatif = asked.whatif
    document = WhatIfDocument(
        schema=SCHEMA,
        version=__version__,
        reports=[str(report.path) for report in asked.run.reports],
        baseline=None if whatif.baseline is None else _baseline(whatif.baseline),
        answers=[_answer(answer) for answer in whatif.answers],
        critical_path=[
            PathPart(
                path.rank, path.compute_ns, path.communication_ns, path.copy_ns, path.host_ns,
                path.delay_ns,
            )
            for path in whatif.critical_path
        ],
        refused=whatif.refused,
        how_to_collect=whatif.how_to_collect,
        blocked_sends=[blocked_record(blocked) for blocked in whatif.blocked_sends],
        unknown_sends=whatif.unknown_sends,
        schedules=[schedule_record(one) for one in whatif.schedules],
        step_paths=[_step_path(path) for path in asked.paths],
    )  # fmt: skip
    text = msgspec.json.format(json.dumps(msgspec.to_builtins(document)), indent=1)
    return f"{text}\n"


def _step_path(path: Path) -> StepPath:
    parts = [StepPathPart(**asdict(part)) for part in path.parts]
    return StepPath(path.step, path.rank, path.length_ns, parts)


def _baseline(baseline: Replayed) -> Baseline:
    return Baseline(
        step_ns=baseline.step_ns,
        replayed_ns=baseline.replayed_ns,
        misfit=baseline.misfit,
        num_steps=baseline.num_steps,
        gates=list(baseline.gates),
    )


def _answer(answer: Answered) -> Answer:
    kind: Kind = "bound" if answer.is_bound else "estimate"
    if answer.refused is not None:
        how = answer.how_to_collect
        return Answer(answer.assume, kind, refused=answer.refused, how_to_collect=how)
    return Answer(
        assume=answer.assume, kind=kind, step_ns=answer.step_ns, low_ns=answer.low_ns,
        high_ns=answer.high_ns, change_ns=answer.change_ns, is_too_small=answer.is_too_small,
        note=answer.note or None,
        orders=[order_record(order) for order in answer.orders] or None,
    )  # fmt: skip
