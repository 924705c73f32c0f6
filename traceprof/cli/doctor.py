"""`traceprof doctor`: what this machine can record, and its GPUs and links."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.option(
    "-o",
    "--output",
    "folder",
    metavar="DIR",
    default="recording",
    show_default=True,
    help="The folder of a recording, whose free space is checked.",
)
def command(as_json: bool, folder: str) -> int:
    """Say what this machine can record, what is missing for the rest, and what links its GPUs.

    Run it where the training runs, with the same Python: it records a small program with the
    installed nsys, and names the command that mends each thing in the way. `traceprof record`
    leaves the same, but for that try, as doctor-HOST.json beside its reports, from which `analyze`
    takes what links can carry.
    """
    from traceprof.recording.doctor import as_bytes, diagnose, render

    diagnosis = diagnose(Path(folder), tries_nsys=True)
    click.echo(as_bytes(diagnosis) if as_json else render(diagnosis), nl=False)
    return 0
