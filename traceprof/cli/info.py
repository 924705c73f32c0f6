"""`traceprof info`: what a report holds, what can be analysed, and the flags to add."""

from __future__ import annotations

import sys

import click

from traceprof.cli.inputs import expand, progress, reports_argument

_UNWRAPPED = 10_000  # in a pipe a fact stays on its line, for grep


@click.command("info", short_help="Say what a report holds and what can be analysed.")
@reports_argument
def command(reports: tuple[str, ...]) -> None:
    """Say what each REPORT holds: versions, GPUs, ranks, tables, and which flags would add more."""
    from rich.console import Console

    from traceprof.reports import info, text
    from traceprof.run import open_run
    from traceprof.trace.nsight import NsightTrace
    from traceprof.trace.open import open_trace

    traces = []
    try:
        with progress() as shown:
            for path in expand(reports):
                traces.append(open_trace(path, shown))  # noqa: PERF401  (those opened are closed)
            run = open_run(traces)
        for index, trace in enumerate(traces):
            if isinstance(trace, NsightTrace):
                facts = info.render(trace, run, index)
                if sys.stdout.isatty():
                    Console().print(facts)
                else:
                    click.echo(text.plain(facts, width=_UNWRAPPED))
    finally:
        for trace in traces:
            trace.close()
