"""What `record --dry-run` prints: the commands, for those who put them into a job script."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from traceprof.recording.plan import NSYS

if TYPE_CHECKING:
    from traceprof.recording.plan import Plan


def script(plan: Plan) -> str:
    """Return the commands of a plan as lines of a shell, each flag with its purpose and cost."""
    folder = shlex.quote(str(plan.folder))
    lines = [f"mkdir -p {folder}"]
    if plan.tool != NSYS:
        assigned = [f"{name}={shlex.quote(value)}" for name, value in plan.variables.items()]
        lines += [" ".join([*assigned, shlex.join(plan.words)]), f"traceprof analyze {folder}"]
        return "\n".join(lines) + "\n"
    for flag in plan.flags.flags:
        lines.append(f"# {flag.text}: {flag.purpose}; costs {flag.cost}")
    lines += [f"# not recorded: {left.what}: {left.why}" for left in plan.flags.left_out]
    # The job may run on another machine than this: nsys puts in the name of the one it runs on.
    name = "%h" if plan.job.rank is None else plan.job.name
    words = [
        f"--output={plan.folder}/{name}" if word.startswith("--output=") else word
        for word in plan.words
    ]
    lines.append(shlex.join(words))
    lines.append(f"traceprof analyze {folder}  # exports each report first")
    return "\n".join(lines) + "\n"
