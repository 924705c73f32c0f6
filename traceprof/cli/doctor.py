"""`traceprof doctor`: what this machine can record, and its GPUs and links."""

from __future__ import annotations

import click


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def command(as_json: bool) -> int:
    """Say what this machine can record, what is missing for the rest, and what links its GPUs.

    Run it where the training runs, with the same Python. `traceprof record` leaves the same as
    doctor-HOST.json beside its reports, from which `analyze` takes what links can carry.
    """
    from traceprof.recording.doctor import as_bytes, diagnose
    from traceprof.recording.doctor_text import render

    diagnosis = diagnose()
    click.echo(as_bytes(diagnosis) if as_json else render(diagnosis), nl=False)
    return 0
