"""What tests keep as text beside them: claims, and what commands print."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from textwrap import shorten, wrap

from msgspec import Struct, structs

from traceprof.findings import Finding, NotApplicable

Claims = Iterable[Struct | str]
Kept = Callable[[Claims], None]
KeptText = Callable[[str], None]
_WIDTH = 96
_MAX_EVIDENCE = 3


def claim_text(claim: Struct | str) -> str:
    """Return a claim as text: of its metrics what is not 0, of each advice the begin.

    Of other records what is known is shown; of lines, what they are.
    """
    if isinstance(claim, str):
        return claim
    if isinstance(claim, NotApplicable):
        return f"{claim.id} is not judged: {claim.reason}\n  {claim.how_to_collect}"
    if not isinstance(claim, Finding):
        return ", ".join(_numbers(structs.asdict(claim)))
    numbers = _numbers({name: value for name, value in claim.metrics.items() if value != 0})
    unknown = [name for name, value in claim.metrics.items() if value is None]
    shown, num = claim.evidence[:_MAX_EVIDENCE], len(claim.evidence)
    limit = "" if claim.saving is None else f", a step gains at most {claim.saving.high_ns}"
    reason = claim.saving and claim.saving.limited_by
    lines = [
        f"{claim.id} of rank {claim.rank}, {claim.severity}: {claim.title}",
        f"  costs {claim.impact_ns} ns, {claim.impact_fraction:.4g}{limit}",
        *([f"  limited by {reason}"] if reason else []),
        *([f"  in {claim.place}"] if claim.place else []),
        *wrap(", ".join(numbers), _WIDTH, initial_indent="  ", subsequent_indent="  "),
        *([f"  unknown: {', '.join(unknown)}"] if unknown else []),
        *(f"  {seen.start_ns} to {seen.end_ns}: {seen.label}" for seen in shown),
        *([f"  {num} in all"] if num > len(shown) else []),
        *(f"  * {shorten(line, 200, placeholder=' …')}" for line in claim.advice),
    ]
    return "\n".join(lines)


def _numbers(values: Mapping[str, object]) -> list[str]:
    return [
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
        if value is not None
    ]


def kept_texts(path: Path) -> dict[str, str]:
    """Return what is kept of the tests of a file, by their names."""
    sections = re.findall(r"(?m)^(\S.*)\n\n((?:    .*\n)+)", path.read_text(encoding="utf-8"))
    return {name: re.sub("(?m)^    ", "", text).rstrip("\n") for name, text in sections}
