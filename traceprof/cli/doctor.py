"""`traceprof doctor`: what this machine can record, and its GPUs and links."""

from __future__ import annotations

from pathlib import Path

import click

from traceprof.cli.main import EXIT_DONE, EXIT_ERROR


@click.command(
    "doctor",
    short_help="Say what can be recorded here, and what mends the rest.",
    context_settings={"allow_interspersed_args": False},
)
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
@click.argument("words", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
def command(as_json: bool, folder: str, words: tuple[str, ...]) -> int:
    """Say what this machine can record, what is missing for the rest, and what links its GPUs.

    \b
    traceprof doctor
    traceprof doctor -- torchrun --nproc-per-node 8 train.py

    Run it where the training runs. It records a small program with the installed nsys, and names
    the command that mends each thing in the way. With the COMMAND of a training it asks the Python
    that runs it, and starts nothing else of it; without, it looks at its own. `traceprof record`
    leaves the same, but for that try, as doctor-HOST.json beside its reports, from which `analyze`
    takes what links can carry.

    Exit status: 2 if COMMAND could not be recorded.
    """  # noqa: D301  (click wants the character, not what a raw text has)
    import os

    from traceprof.errors import TraceprofError
    from traceprof.recording import nsys
    from traceprof.recording.doctor import as_bytes, diagnose, render
    from traceprof.recording.job import read_command
    from traceprof.recording.training import ask

    training, lacks, is_possible = None, [], True
    if words:
        to_run = read_command(words)
        try:
            training = ask(to_run, os.environ)
            if training is None:
                lacks.append("which Python the command runs is not known here: run doctor by it")
            else:
                has_nsys = nsys.find() is not None
                lacks += training.check(to_run, under_nsys=has_nsys)
        except TraceprofError as error:
            lacks.append(str(error))
            is_possible = False
    diagnosis = diagnose(Path(folder), tries_nsys=is_possible, training=training, lacks=lacks)
    click.echo(as_bytes(diagnosis) if as_json else render(diagnosis), nl=False)
    return EXIT_DONE if is_possible else EXIT_ERROR
