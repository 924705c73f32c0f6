"""`traceprof record`: from the training command to the report."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traceprof.cli.main import EXIT_ERROR
from traceprof.cli.output import check_files
from traceprof.errors import TraceprofError, UsageError, one_line

if TYPE_CHECKING:
    from traceprof.recording.plan import Plan


@click.command(
    "record", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False}
)
@click.option(
    "-o",
    "--output",
    "folder",
    metavar="DIR",
    default="recording",
    show_default=True,
    help="The folder for all files; with several machines, one that all of them can access.",
)
@click.option(
    "--steps",
    metavar="A:B",
    help="Record steps A up to but not including B, counted from 0, on all ranks alike; by default"
    " the whole run. Steps are those that instrument.step marks, else they go from one optimizer"
    " step to the next.",
)
@click.option(
    "--with",
    "tool",
    type=click.Choice(("nsys", "torch")),
    help="Record with Nsight Systems or with torch.profiler; by default with Nsight Systems, and"
    " where that is not installed with torch.profiler.",
)
@click.option(
    "--no-baseline",
    is_flag=True,
    help="Do not time the steps before --steps, up to 20, to say what recording cost.",
)
@click.option(
    "--watch",
    type=click.IntRange(min=2),
    metavar="N",
    help="Compare the ranks after every N steps of the whole run, too, and log which one becomes"
    " slow; each comparison is a line in DIR/watch.jsonl.",
)
@click.option(
    "--graphs",
    type=click.Choice(("node", "whole")),
    default="node",
    show_default=True,
    help="Record each kernel of CUDA graphs, which takes nsys some 0.8 µs each in the gaps after"
    " them, or each graph as a whole, without the kernels inside.",
)
@click.option(
    "--dry-run",
    "is_dry",
    is_flag=True,
    help="Only print the commands, for a job script, with what each flag is for and costs.",
)
@click.argument("words", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    folder: str,
    steps: str | None,
    tool: str | None,
    no_baseline: bool,
    watch: int | None,
    graphs: str,
    is_dry: bool,
    words: tuple[str, ...],
) -> int:
    """Run a training command, record it, and say where its time went.

    \b
    traceprof record --steps 10:20 -- torchrun --nproc-per-node 8 train.py --lr 0.1
    srun --ntasks-per-node 1 traceprof record -o DIR -- torchrun … train.py

    Ranges of `instrument` are on in all processes. Each machine gets a report in DIR, or each rank
    where a launcher starts this command once for each; the first one analyses them when all are
    there. A signal goes to the training, and leaves a report as well.

    Exit status: that of the command where it is not 0; else 2 if nothing was recorded, or not all
    of it could be written.
    """  # noqa: D301  (click wants the character, not what a raw text has)
    import os

    from traceprof.recording.plan import make_plan
    from traceprof.recording.training import NO_PROGRAM

    check_files(folder)
    plan = make_plan(
        words,
        Path(folder),
        os.environ,
        steps=steps,
        tool=tool,
        asks=True,
        baseline=not no_baseline,
        watch=watch,
        whole_graphs=graphs == "whole",
    )
    if not is_dry and shutil.which(words[0]) is None:
        raise UsageError(f"cannot run {words[0]}", NO_PROGRAM, "check the command")
    for note in plan.notes:
        _say(note)
    if is_dry:
        from traceprof.recording.plan import script

        click.echo(script(plan), nl=False)
        return 0
    from traceprof.recording.record import record

    asked = "" if plan.training is None else f", the training's Python is {plan.training}"
    _say(f"recording with {plan.tool} into {folder}{asked}")
    status, reports, is_whole = record(plan, _say)
    if reports and not _analyze(plan, reports):
        is_whole = False
    return status or (0 if is_whole else EXIT_ERROR)


def _analyze(plan: Plan, reports: list[Path]) -> bool:
    """Show the analysis, save it as a page, and list the files; return whether it holds a rank."""
    from traceprof.analysis import analyze_reports
    from traceprof.cli.options import print_failures
    from traceprof.execution.options import Options
    from traceprof.reports import html, text
    from traceprof.run.opening import ONE_BY_ONE
    from traceprof.run.recording_cost import longest

    again = f"traceprof analyze {plan.folder}"
    page = plan.folder / "report.html"
    is_whole = False
    try:
        analysis = analyze_reports(reports, Options())
        print_failures(analysis.failed)
        sys.stdout.write(text.render(analysis))
        is_whole = bool(analysis.run.ranks)
        timed = longest([one for report in analysis.run.reports for one in report.timed])
        if timed is not None:
            _say(timed.sentence())
        for note in dict.fromkeys(note for _, note in analysis.notes if ONE_BY_ONE in note):
            _say(note)
        if not is_whole:
            _say("nothing was recorded: no report holds ranges of a training or work of a GPU")
        page.write_text(html.render(analysis), "utf-8", "replace")
    except TraceprofError as error:
        _say(f"recorded, but not analysed: {error}")
    except OSError as error:
        page.unlink(missing_ok=True)
        _say(f"{page} was not written: {(error.strerror or str(error)).lower()}")
        is_whole = False
    except KeyboardInterrupt:
        _say(f"recorded, but not analysed: {again}")
        raise
    files = sorted(path.name for path in plan.folder.iterdir() if not path.name.startswith("."))
    _say(f"in {plan.folder}: {', '.join(files)}; again: {again}")
    return is_whole


def _say(sentence: str) -> None:
    click.echo(f"traceprof: {one_line(sentence)}", err=True)
