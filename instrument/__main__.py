"""`python -m instrument train.py --lr 0.1`: run a script or a module with `enable()` called.

The script runs as `python train.py --lr 0.1` runs it: the same `__main__`, arguments, paths, exit
status and traceback. PyTorch is not imported here: ranges are on once the script imports it.
"""

from __future__ import annotations

import argparse
import builtins
import functools
import importlib
import importlib.machinery
import importlib.util
import io
import os
import pkgutil
import runpy
import sys
from types import ModuleType
from typing import NamedTuple

if not __package__:  # `python FOLDER/instrument train.py`, for a Python without this package

    def _load(name: str, folder: str) -> None:
        """Import one package of ours, and nothing else that lies beside it."""
        file = os.path.join(folder, "__init__.py")  # noqa: PTH118
        spec = importlib.util.spec_from_file_location(
            name, file, submodule_search_locations=[folder]
        )
        assert spec is not None  # noqa: S101
        assert spec.loader is not None  # noqa: S101
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])

    _folder = sys.path.pop(0)
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        sys.path.insert(0, os.getcwd())  # noqa: PTH109  (as with `-m instrument`)
    _load("instrument", _folder)
    _load("traceprof", os.path.join(os.path.dirname(_folder), "traceprof"))  # noqa: PTH118, PTH120

from collections.abc import Callable, Sequence
from types import TracebackType

from instrument.children import VARIABLE
from instrument.core.nvtx_ranges import GARBAGE_COLLECTION, MODULES
from instrument.core.patching import after_import
from instrument.core.steps import FOLDER, SHAPES, STEPS, TOOL
from traceprof.labels import parse_steps

HELP = """Run a script, or with -m a module, with NVTX ranges around its steps and operations.

Arguments after its name are passed on: python -m instrument train.py --lr 0.1

In several processes: torchrun --nproc-per-node 8 -m instrument train.py --lr 0.1

Record some steps with torch.profiler: -m instrument --with torch -o DIR --steps 10:20 train.py
"""


_LOCAL_RANK = "--local-rank"


class Target(NamedTuple):
    """A module's name or a script's path to run, and its arguments."""

    name: str
    is_module: bool
    arguments: tuple[str, ...]


def _parser() -> argparse.ArgumentParser:
    """Return the parser, of the standard library: the training's Python may have nothing else."""
    parser = argparse.ArgumentParser(
        "python -m instrument",
        "python -m instrument [OPTIONS] SCRIPT|MODULE [ARGUMENTS]",
        HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-m", action="store_true", dest="is_module", help="Run a module, as `python -m` does.")
    add(
        "--with",
        dest="tool",
        choices=("nsys", "torch"),
        help="The recorder: Nsight Systems, if `nsys profile` runs this (the default), or"
        " torch.profiler.",
    )
    add(
        "-o",
        "--output",
        metavar="DIR",
        help="Folder of the traces of torch.profiler; by default the current folder.",
    )
    add(
        "--steps",
        metavar="A:B",
        help="Record steps A up to but not including B, counted from 0: the steps marked with"
        " instrument.step, else from one optimizer step to the next.",
    )
    add(
        "--shapes",
        action="store_true",
        help="Let torch.profiler record the shapes of operators' inputs, too, from which FLOPs, MFU"
        " and bytes follow. It takes time on the host for each operator.",
    )
    add(
        "--modules",
        type=int,
        metavar="DEPTH",
        help="Ranges around the forward passes of modules, too: of the outermost one (1), of those"
        " that it calls (2), and so on. They take time on the host for each call of a module.",
    )
    add(
        "--gc",
        action="store_true",
        help="Ranges around garbage collections of Python, too. What a handler of a signal raises"
        " at the begin or end of one, Ctrl-C for example, is lost: Python passes it on to nobody.",
    )
    # DeepSpeed and torch.distributed.launch put it before the first argument of the script.
    add("--local_rank", "--local-rank", help=argparse.SUPPRESS)
    add("words", nargs=argparse.PARSER, metavar="SCRIPT|MODULE")  # and all that follows it
    return parser


def read_arguments(words: Sequence[str] | None = None) -> Target:
    """Return the target; put what to record into the environment, also for child processes."""
    parser = _parser()
    words = sys.argv[1:] if words is None else words
    given = parser.parse_args(words)
    if given.steps is not None:
        try:
            parse_steps(given.steps)
        except ValueError as error:
            parser.error(f"--steps: {error}")
    if given.modules is not None and given.modules < 1:
        parser.error("--modules: the depth is 1 or more")
    if given.shapes and given.tool != "torch":
        parser.error("only torch.profiler records shapes: add --with torch")
    variables = {
        TOOL: given.tool,
        FOLDER: None if given.output is None else os.path.abspath(given.output),  # noqa: PTH100
        STEPS: given.steps,
        SHAPES: "1" if given.shapes else None,
        MODULES: None if given.modules is None else str(given.modules),
        GARBAGE_COLLECTION: "1" if given.gc else None,
    }
    os.environ.update({key: value for key, value in variables.items() if value is not None})
    passed = [] if given.local_rank is None else _local_rank(words)
    name, *arguments = given.words[1:] if given.words[0] == "--" else given.words
    return Target(name, given.is_module, (*passed, *arguments))


def _local_rank(words: Sequence[str]) -> Sequence[str]:
    at = next(i for i, word in enumerate(words) if word[:12].replace("_", "-") == _LOCAL_RANK)
    return words[at : at + (1 if "=" in words[at] else 2)]


def main() -> None:
    """Run the script or module on the command line, and exit with its status."""
    target = read_arguments()
    os.environ[VARIABLE] = "1"  # for child processes
    after_import(
        "torch", lambda: importlib.import_module("instrument.recording").record_as_requested()
    )
    try:
        run(target)
    except SystemExit:
        raise
    except BaseException:
        sys.excepthook = functools.partial(_show_without_us, sys.excepthook)
        raise


def run(target: Target) -> None:
    """Run the target as `__main__`, as the interpreter would."""
    main_module = ModuleType("__main__")
    vars(main_module).update(__annotations__={}, __builtins__=builtins)
    sys.modules["__main__"] = main_module  # to the end: threads and exit functions need it
    sys.argv[:] = ["-m" if target.is_module else target.name, *target.arguments]
    run_module = runpy._run_module_as_main  # type: ignore[attr-defined]  # noqa: SLF001
    if target.is_module:
        run_module(target.name)
        return
    path = os.path.join(os.getcwd(), target.name)  # noqa: PTH109, PTH118  (as the interpreter does)
    if pkgutil.get_importer(path) is not None:  # a folder or an archive with a __main__
        _search_first(path, even_if_safe=True)
        run_module("__main__", alter_argv=False)
        return
    try:
        with io.open_code(path) as file:
            code = file.read()
    except OSError as error:
        reason = f"[Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable}: can't open file {path!r}: {reason}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    _search_first(os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    vars(main_module).update(__cached__=None, __file__=path, __loader__=loader)
    exec(compile(code, path, "exec", dont_inherit=True), vars(main_module))  # noqa: S102


def _search_first(folder: str, even_if_safe: bool = False) -> None:
    """Replace the folder of this module on the search path; in safe mode there is none."""
    is_safe = bool(sys.flags.isolated or getattr(sys.flags, "safe_path", False))  # since 3.11
    if not is_safe:
        del sys.path[0]
    if not is_safe or even_if_safe:
        sys.path.insert(0, folder)


def _show_without_us(
    show: Callable[[type[BaseException], BaseException, TracebackType | None], object],
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    rest = part = trace
    while part is not None:
        if part.tb_frame.f_code.co_filename == __file__:
            rest = part.tb_next
        part = part.tb_next
    show(kind, error.with_traceback(rest), rest)


if __name__ == "__main__":
    main()
