"""The `traceprof` command; the one place that turns errors into exit codes and one line."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import NoReturn, TextIO

import click

from traceprof.errors import REPORT_IT, TraceprofError, closest, internal_error, one_line
from traceprof.version import __version__


class SuggestingGroup(click.Group):
    """A group that suggests the closest of its commands, including those created on demand."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name, its name, and the other arguments."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            meant = closest(name, self.list_commands(ctx))
            suggestion = "" if meant is None else f" Did you mean {meant!r}?"
            ctx.fail(f"No such command {name!r}.{suggestion}")
        return super().resolve_command(ctx, args)


EXIT_DONE = 0
EXIT_FINDINGS = 1
EXIT_ERROR = 2
EXIT_LEFT_OUT = 3
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MOMENT_S = 0.01


class _Terminated(BaseException):
    """A signal that ends the process, as an exception so that clean-up runs."""


_received: list[int] = []  # the numbers of these signals


class _Commands(SuggestingGroup):
    """Commands whose modules are imported on demand, so that `--help` is fast."""

    _MODULES = (
        *("doctor", "record", "analyze", "explain", "whatif", "compare", "dashboard"),
        *("info", "export", "runs", "completion", "help"),
    )

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


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="traceprof")
@click.pass_context
def cli(context: click.Context) -> None:
    """Where the time of a multi-GPU training run went, read from what profilers recorded."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    0: done; 1: findings at or above --fail-on, or a gate not met; 2: an error; 3: reports left
    out, with --strict.
    """
    code = _run(arguments)
    if arguments is None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to be interrupted
    if arguments is None and sys.getprofile() is None:  # which writes its result when all ends
        _leave(code)
    sys.exit(code)


def _leave(code: int) -> NoReturn:
    """End the process without taking apart all that it imported.

    Threads of the dashboard may still read results that are not needed. Python would end them where
    they are, and abort if that is in C++ code of numpy.
    """
    atexit._run_exitfuncs()  # noqa: SLF001  (there is no other way)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _run(arguments: Sequence[str] | None) -> int:
    _prepare_streams()
    # What is ignored (`nohup`) stays ignored.
    caught = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    _received.clear()
    before = {number: signal.signal(number, _end) for number in caught}
    hook, sys.unraisablehook = sys.unraisablehook, _raise_again
    # Read when numpy is imported. Its threads are for large matrices; there are none.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        code = cli.main(arguments, prog_name="traceprof", standalone_mode=False)
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt, _Terminated):
        return 128 + (_received or [signal.SIGINT])[-1]
    except (BrokenPipeError, SystemExit):
        # The reader of stdout has gone (`traceprof … | head`); the analysis is fine.
        # click and rich turn this into a SystemExit.
        _discard(sys.stdout)
        return EXIT_DONE
    except Exception as error:  # noqa: BLE001  (the last resort: one line, never a traceback)
        if _received:  # the import of a C module makes another error of it
            return 128 + _received[-1]
        line = _line(error)
        try:
            click.echo(f"traceprof: {line}", err=True)
        except OSError:
            _discard(sys.stderr)
        return EXIT_ERROR
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if isinstance(code, int) else EXIT_DONE


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    _received.append(number)
    raise KeyboardInterrupt if number == signal.SIGINT else _Terminated


def _raise_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Raise once more, a moment later, what ends the process and came where Python ignores errors.

    Such are the callbacks of weak references, as every import has some.
    """
    if not issubclass(unraisable.exc_type, (KeyboardInterrupt, _Terminated)):
        sys.__unraisablehook__(unraisable)
        return
    signal.signal(signal.SIGALRM, lambda *_: _end(_received[-1], None))
    signal.setitimer(signal.ITIMER_REAL, _MOMENT_S)


def _prepare_streams() -> None:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a kernel name must not break an ASCII terminal


def _discard(stream: TextIO) -> None:
    """Discard what a stream still buffers: otherwise Python tries to write it again on exit."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _line(error: Exception) -> str:
    if isinstance(error, TraceprofError):
        return str(error)
    if isinstance(error, click.ClickException):
        command = getattr(getattr(error, "ctx", None), "command_path", "traceprof")
        return f"{one_line(error.format_message())} (see {command} --help)"
    if isinstance(error, OSError):
        _discard(sys.stdout)
        what = f"cannot use {error.filename}" if error.filename else "cannot write the result"
        why = error.strerror or str(error)
        return str(TraceprofError(what, why, "check the disk and the permissions"))
    if os.environ.get("TRACEPROF_TRACEBACK"):
        raise error
    what, _, why = internal_error(error).partition(": ")
    return str(TraceprofError(what, why, REPORT_IT))
