"""`traceprof completion`: the script by which a shell completes commands."""

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
