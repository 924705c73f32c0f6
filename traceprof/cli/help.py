"""`traceprof help`: what a command does, and what commands that read reports have in common."""

from __future__ import annotations

import click

from traceprof.cli.options import shared_options
from traceprof.errors import closest

_REPORTS = "reports"
_ABOUT_REPORTS = """\
A REPORT is one of these, of one run:

\b
* an export of Nsight Systems: nsys export --type=sqlite
* a recording of Nsight Systems, .nsys-rep, where nsys is installed
* a trace of torch.profiler, .json, also compressed
* a folder of them, or a pattern such as 'recording/*.sqlite'

Reports of several ranks are read together. `traceprof info REPORT` says what one holds.

These options are taken by analyze, whatif, compare, dashboard and export:
"""


@click.command(
    "help",
    short_help="Explain a command, or the options that commands share.",
    epilog="Example: traceprof help reports",
)
@click.argument("topic", required=False)
@click.pass_context
def command(context: click.Context, topic: str | None) -> None:
    """Explain a command, or with `reports` what can be read and the options that commands share."""
    root = context.find_root()
    if topic is None:
        click.echo(root.get_help())
    elif topic == _REPORTS:
        click.echo(about_reports(root))
    else:
        found = _commands(root).get_command(root, topic)
        if found is None:
            names = [_REPORTS, *_commands(root).list_commands(root)]
            meant = closest(topic, names)
            suggestion = "" if meant is None else f" Did you mean {meant!r}?"
            raise click.UsageError(f"No such command or topic {topic!r}.{suggestion}")
        click.echo(found.get_help(click.Context(found, root, topic)))


def about_reports(root: click.Context) -> str:
    """Return the text of `traceprof help reports`."""
    analyze = _commands(root).get_command(root, "analyze")
    formatter = root.make_formatter()
    with formatter.indentation():
        formatter.write_text(_ABOUT_REPORTS)
        formatter.write_paragraph()
        if analyze is not None:  # it has them all
            formatter.write_dl(shared_options(analyze, root))
    return formatter.getvalue().rstrip()


def _commands(root: click.Context) -> click.Group:
    if not isinstance(root.command, click.Group):
        raise TypeError(root.command)
    return root.command
