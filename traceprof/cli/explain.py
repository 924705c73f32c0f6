"""`traceprof explain`: what a finding means, how it is measured, what to do about it."""

from __future__ import annotations

import sys

import click

from traceprof.cli.options import finding_ids


@click.command(
    "explain",
    short_help="Say what a finding means and how it is measured.",
    epilog="Example: traceprof explain gpu-idle",
)
@click.argument("finding", metavar="[ID]", required=False, shell_complete=finding_ids)
def command(finding: str | None) -> None:
    """Say what the finding ID means, how it is measured, and what to do about it.

    The begin of an id will do. Without one, list all of them.
    """
    from traceprof.analyses.explanations import explanation
    from traceprof.analyses.registry import FINDING_IDS
    from traceprof.execution.options import named_finding

    if finding is None:
        width = max(map(len, FINDING_IDS))
        for id_ in FINDING_IDS:
            first = explanation(id_).split("\n\n")[1].replace("\n", " ").split(". ")[0]
            click.echo(f"{id_.ljust(width)}  {first.rstrip('.')}")
        return
    from rich.console import Console
    from rich.markdown import Markdown

    from traceprof.reports.text import PLAIN_WIDTH

    page = explanation(named_finding(finding))
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    console.print(Markdown(page))
