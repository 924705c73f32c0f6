"""`traceprof explain`: what a finding means, how it is measured, what to do about it."""

from __future__ import annotations

import sys

import click

from traceprof.cli.completion import finding_ids


@click.command("explain", short_help="Say what a finding means and how it is measured.")
@click.argument("finding", metavar="ID", shell_complete=finding_ids)
def command(finding: str) -> None:
    """Say what the finding ID means, how it is measured, and what to do about it."""
    from rich.console import Console
    from rich.markdown import Markdown

    from traceprof.analyses.explanations.page import explanation
    from traceprof.analyses.registry import FINDING_IDS
    from traceprof.execution.options import no_such_finding
    from traceprof.reports.terminal import PLAIN_WIDTH

    if finding not in FINDING_IDS:
        raise no_such_finding(finding)
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    console.print(Markdown(explanation(finding)))
