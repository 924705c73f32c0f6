"""The `traceprof` command; the one place that turns errors into exit codes and one line."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

import click

import traceprof
from traceprof.errors import TraceprofError, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_DONE = 0
EXIT_FINDINGS = 1
EXIT_ERROR = 2
_EXIT_INTERRUPTED = 130


class _Commands(click.Group):
    """Imports a command's module when it is called for, so that `--help` is immediate."""

    _MODULES = ("analyze", "info", "dashboard", "simulate", "explain")

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self._MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in self._MODULES:
            return None
        from importlib import import_module

        command: click.Command = import_module(f"traceprof.cli.{cmd_name}").command
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(traceprof.__version__, prog_name="traceprof")
def cli() -> None:
    """Where the time of a multi-GPU training run went, read from Nsight Systems exports."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 1 findings at or above --fail-on, 2 an error."""
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a kernel name must not break an ASCII terminal
    try:
        code = cli.main(arguments, prog_name="traceprof", standalone_mode=False)
        sys.stdout.flush()
    except TraceprofError as error:
        return _fail(str(error))
    except click.ClickException as error:
        command = getattr(getattr(error, "ctx", None), "command_path", "traceprof")
        return _fail(f"{one_line(error.format_message())} (see {command} --help)")
    except click.exceptions.Exit as request:
        return request.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout has gone (`traceprof … | head`); nothing is wrong with the analysis.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    return code if isinstance(code, int) else EXIT_DONE


def _fail(message: str) -> int:
    click.echo(f"traceprof: {message}", err=True)
    return EXIT_ERROR
