"""Arguments and options that several commands share: reports, and what affects findings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from traceprof.errors import UsageError, one_line

if TYPE_CHECKING:
    from traceprof.cli.progress import CountBar
    from traceprof.findings import NotApplicable
    from traceprof.run.summary import FailedReport


Command = TypeVar("Command", bound=Callable[..., Any])
Result = TypeVar("Result")


class ReportPath(click.Path):
    """A path as it is: opening it finds every fault; the shell completes it."""

    def convert(
        self,
        value: Any,  # noqa: ANN401
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str:
        """Return the path."""
        del param, ctx
        return str(value)


reports_argument = click.argument(
    "reports", nargs=-1, required=True, metavar="REPORT...", type=ReportPath()
)


def expand(reports: Sequence[str]) -> list[Path]:
    """Return the named reports, each once, with folders and unexpanded patterns resolved.

    Raises TraceFileError: a pattern matches no file, or a folder contains no report.
    """
    from traceprof.trace.open import report_paths

    return report_paths(reports)


def print_failures(reports: Iterable[FailedReport]) -> None:
    """Name on stderr the reports that were left out, and why."""
    for report in reports:
        click.echo(f"traceprof: left out: {report.error}", err=True)


def print_internal_errors(missing: Iterable[NotApplicable]) -> None:
    """Name on stderr what could not be analysed since a part of traceprof failed."""
    from traceprof.errors import REPORT_IT
    from traceprof.findings import by_reason
    from traceprof.units import ranks_text

    for group in by_reason(gap for gap in missing if gap.how_to_collect == REPORT_IT):
        ranks = {gap.rank for gap in group if gap.rank is not None}
        where = f" on {ranks_text(ranks)}" if ranks else ""
        names = ", ".join(dict.fromkeys(gap.id for gap in group))
        reason = one_line(group[0].reason)
        line = f"could not be analysed: {names}{where}: {reason}; {REPORT_IT}"
        click.echo(f"traceprof: {line}", err=True)


@contextmanager
def progress(unit: str = "rows") -> Iterator[CountBar | None]:
    """Show a bar on stderr that counts units while reports are read, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from traceprof.cli.progress import CountBar

    with CountBar(unit) as bar:
        yield bar


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


class _SharedOption(click.Option):
    """An option of many commands, which `traceprof help reports` explains."""

    def get_help_record(self, ctx: click.Context) -> None:
        """Return nothing: commands list its name only, below their own options."""
        del ctx


def _shared(*declarations: str, **attributes: Any) -> Callable[[Command], Command]:  # noqa: ANN401
    return click.option(*declarations, cls=_SharedOption, **attributes)


class ReportsCommand(click.Command):
    """A command that takes `judging_options`, whose help names them and no more."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, and below them the names of the shared ones."""
        super().format_options(ctx, formatter)
        with formatter.section("Shared options (see: traceprof help reports)"):
            formatter.write_text("  ".join(name for name, _ in shared_options(self, ctx)))


def shared_options(command: click.Command, context: click.Context) -> list[tuple[str, str]]:
    """Return the shared options of a command, with their values, and what they do."""
    shared = (option for option in command.get_params(context) if isinstance(option, _SharedOption))
    records = (click.Option.get_help_record(option, context) for option in shared)
    return [record for record in records if record is not None]


_OPTIONS = (
    _shared(
        "--only",
        metavar="ID,..",
        shell_complete=lists_of_ids,
        help="Judge only these findings"
        " (`traceprof explain` lists them; the begin of an id will do).",
    ),
    _shared(
        "--skip", metavar="ID,..", shell_complete=lists_of_ids, help="Do not list these findings."
    ),
    _shared(
        "--step-pattern",
        metavar="REGEX",
        help="Matches the name of the NVTX range around a training step; its first group is the"
        " number.",
    ),
    _shared(
        "--no-period",
        is_flag=True,
        help="If no range marks steps, use none; by default a step is then one"
        " period of the kernels.",
    ),
    _shared(
        "--communication-kernel",
        "communication_kernels",
        metavar="REGEX[=OPERATION]",
        multiple=True,
        help="Count kernels whose function name matches this as communication. Repeatable.",
    ),
    _shared(
        "--link-peak",
        "link_peaks",
        metavar="LINK=GB_PER_S",
        multiple=True,
        help="Peak rate of nvlink, pcie or network in one direction, if it differs"
        " from what the GPU's name suggests. Repeatable.",
    ),
)

flops_option = click.option(
    "--flops-per-step",
    type=float,
    metavar="N",
    help="Multiplications and additions that a training step takes on one rank, such as 4.2e14: the"
    " report says what share of the GPU's peak they reach (MFU). Without it they are counted where"
    " torch.profiler recorded shapes.",
)
"""Of commands that show or write what compute reaches of the peak."""


def judging_options(command: Callable[..., Result]) -> Callable[..., Result]:
    """Add these options to a command, which gets them as one keyword argument, `options`."""

    @wraps(command)
    def with_options(
        *,
        only: str | None,
        skip: str | None,
        step_pattern: str | None,
        no_period: bool,
        communication_kernels: tuple[str, ...],
        link_peaks: tuple[str, ...],
        **others: object,  # all other parameters of the command
    ) -> Result:
        from traceprof.execution.options import Options

        options = Options(
            only=_ids("--only", only),
            skip=_ids("--skip", skip),
            step_pattern=step_pattern,
            period=not no_period,
            communication_kernels=communication_kernels,
            link_peaks=link_peaks,
            measures_all=True,
        )
        options.check()  # before anything is read
        return command(options=options, **others)

    taking: Callable[..., Result] = with_options
    for option in reversed(_OPTIONS):
        taking = option(taking)
    return taking


def read_labels(texts: Sequence[str]) -> dict[str, str]:
    """Read `KEY=VALUE` as the labels of saved runs are written.

    Raises UsageError: one has no key or no value.
    """
    labels = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key.strip() or not equals:
            remedy = "write KEY=VALUE, such as batch=64"
            raise UsageError(f"cannot read --label {text!r}", "it has no key or no value", remedy)
        labels[key.strip()] = value.strip()
    return labels


def _ids(option: str, text: str | None) -> list[str]:
    if text is None:
        return []
    from traceprof.execution.options import named_finding

    ids = [named_finding(id_.strip()) for id_ in text.split(",") if id_.strip()]
    if not ids:
        remedy = "write ids of findings with commas between them, such as gpu-idle,host-sync"
        raise UsageError(f"cannot use {option} {text!r}", "it names no finding", remedy)
    return ids
