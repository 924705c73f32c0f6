"""Shell completion: ids of findings, one or several separated by commas, and assumptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click


def finding_ids(_context: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    """Return the ids that begin like this."""
    from traceprof.analyses.registry import FINDING_IDS

    return sorted(id_ for id_ in FINDING_IDS if id_.startswith(start))


def lists_of_ids(context: click.Context, parameter: click.Parameter, start: str) -> list[str]:
    """Return lists of ids that begin like this; the last one is completed."""
    before, comma, last = start.rpartition(",")
    known = before.split(",")
    return [
        f"{before}{comma}{id_}" for id_ in finding_ids(context, parameter, last) if id_ not in known
    ]


def assumptions(_context: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    """Return the assumptions that begin like this."""
    from traceprof.replay.assumptions.table import ASSUMPTIONS

    return sorted(entry.form for entry in ASSUMPTIONS if entry.form.startswith(start))
