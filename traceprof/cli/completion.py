"""`traceprof completion`, and what it completes: ids of findings, lists of them, assumptions."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion", epilog='Example: eval "$(traceprof completion bash)" in ~/.bashrc')
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script by which a shell completes commands, options and ids of findings."""
    complete = get_completion_class(shell)
    if complete is not None:  # click knows all three
        group = context.find_root().command
        click.echo(complete(group, {}, "traceprof", "_TRACEPROF_COMPLETE").source(), nl=False)


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
