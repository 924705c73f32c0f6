"""The output of `record --dry-run`: commands to put into a job script."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from traceprof.recording.flags import NO_COST
from traceprof.recording.plan import NSYS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceprof.recording.plan import Plan

_VARIABLES = {
    "TRACEPROF_INSTRUMENT": "instruments the processes that the script starts",
    "TRACEPROF_RECORD_STEPS": "the steps that these processes record",
    "TRACEPROF_RECORD_WITH": "the tool that they record with",
    "TRACEPROF_RECORD_TO": "the folder of their traces",
}


def script(plan: Plan) -> str:
    """Return the commands of a plan as lines of a shell, each flag with its purpose and cost."""
    folder = shlex.quote(str(plan.folder))
    lines = [
        f"mkdir -p {folder}",
        f"traceprof doctor --json > {folder}/doctor-$(hostname).json  # for analyze",
        *(_with_nsys(plan) if plan.tool == NSYS else _with_torch(plan)),
    ]
    return "\n".join(lines) + "\n"


def _with_torch(plan: Plan) -> Iterator[str]:
    for name in plan.variables:
        yield f"# {name}: {_VARIABLES[name]}"
    assigned = [f"{name}={shlex.quote(value)}" for name, value in plan.variables.items()]
    yield " ".join([*assigned, shlex.join(plan.words)])
    yield f"traceprof analyze {shlex.quote(str(plan.folder))}"


def _with_nsys(plan: Plan) -> Iterator[str]:
    # The job may run on another machine: nsys puts in the name of the one it runs on.
    name = "%h" if plan.job.rank is None else plan.job.name
    output = f"--output={plan.folder}/{name}"
    for flag in plan.flags.flags:
        text = output if flag.text.startswith("--output=") else flag.text
        cost = "" if flag.cost == NO_COST else f"; cost: {flag.cost}"
        yield f"# {text}: {flag.purpose}{cost}"
    for left in plan.flags.left_out:
        yield f"# not recorded: {left.what}: {left.why}"
    yield shlex.join(output if word.startswith("--output=") else word for word in plan.words)
    yield f"traceprof analyze {shlex.quote(str(plan.folder))}  # exports each report first"
