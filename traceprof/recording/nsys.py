"""The installed Nsight Systems: path, version, options and permission to sample."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from traceprof.errors import MissingToolError
from traceprof.trace.programs import captured, conversion_limit_s

# `-c, --capture-range=`, `(Experimental) --ib-switch-metrics-device=<…>`, alone on its line.
_OPTION = re.compile(r"^\s*(?:\([^)]*\)\s*)?(?:-\w,\s*)?--([a-z][\w-]*)")
_LIBRARIES = (".", "lib/nsight-systems", "usr/lib/nsight-systems")
_MAX_PARENTS = 3  # from bin/nsys or target-linux-x64/nsys to the folder of the installation
_VERSION = re.compile(r"\b(\d{4})\.(\d+)(?:\.(\d+))?")
_EXEC = re.compile(r"""^[^#\n]*\bexec\s[^#\n]*?(?<=[\s"'])(/[^\s"'$]*/nsys)["'\s]""", re.MULTILINE)
_MAX_SCRIPTS, _MAX_SCRIPT_BYTES = 4, 1 << 12
_CUPTI = re.compile(r"libcupti\.so\.(\d{1,2})\.(\d+)")
UNKNOWN_CALL = (
    "this nsys does not know a function of the training's CUDA: recording again does not help, a"
    " newer Nsight Systems or --with torch does"
)
"""The reason why its importer fails, or drops GPU work, where it prints an unknown index."""

_UNKNOWN_INDEX = re.compile(r"Unknown (?:runtime|driver) API function index")
_CHECK = re.compile(
    r"^CPU Profiling Environment \((process-tree|system-wide)\):\s*(\S+)", re.MULTILINE
)


@dataclass(frozen=True)
class Nsys:
    """An installed Nsight Systems."""

    path: str  # of the program

    @cached_property
    def version_text(self) -> str:
        """The version in the output of `nsys --version`; empty if there is none."""
        match = _VERSION.search(self.run("--version"))
        return match.group() if match else ""

    @property
    def version(self) -> tuple[int, ...]:
        """The version, such as `(2023, 4, 4)`; empty if unknown."""
        return tuple(int(part) for part in self.version_text.split(".") if part)

    @cached_property
    def newest_cuda(self) -> str:
        """The newest CUDA whose calls it knows, by its libraries CUPTI, `12.4`; empty if unknown.

        They lie beside the real program, or in a folder `target-linux-*` beside its folder.
        """
        folders = [_program(self.path).parent, *_installed(self.path, "target-linux-*")]
        files = [file.name for folder in folders for file in folder.glob("libcupti.so.*")]
        versions = [match.groups() for match in map(_CUPTI.fullmatch, files) if match is not None]
        newest = max(((int(major), int(minor)) for major, minor in versions), default=())
        return ".".join(map(str, newest))

    @cached_property
    def options(self) -> dict[str, str]:
        """The options of `nsys profile`, without dashes, each with its help text."""
        return parse_options(self.run("profile", "--help"))

    @cached_property
    def may_sample(self) -> bool | None:
        """The permission to sample threads and context switches; None if unknown."""
        return parse_may_sample(self.run("status", "--environment"))

    def run(self, *arguments: str) -> str:
        """Run nsys and return its output.

        Raises MissingToolError: it does not start, or does not answer.
        """
        try:
            done = captured(self.path, *arguments)
        except OSError as error:
            raise MissingToolError(
                f"cannot use {self.path}",
                str(error.strerror),
                "install Nsight Systems again, or record with --with torch",
            ) from error
        return done.stdout + done.stderr


def find_importer(nsys: str) -> Path | None:
    """Return the program that imports recordings of nsys into reports; None if there is none.

    `nsys` may be a link or a script that starts it; `host-linux-x64` lies beside its folder.
    """
    for program in _installed(nsys, "host-linux-*/QdstrmImporter"):
        if os.access(program, os.X_OK):
            return program.resolve()
    return None


def _program(nsys: str) -> Path:
    """Return the program behind links, and behind scripts that `exec` it by a whole path."""
    path = Path(nsys).resolve()
    for _ in range(_MAX_SCRIPTS):
        try:
            with path.open("rb") as file:
                text = file.read(_MAX_SCRIPT_BYTES)
        except OSError:
            break
        match = _EXEC.search(text.decode(errors="replace")) if text.startswith(b"#!") else None
        if match is None or not Path(match.group(1)).is_file():
            break
        path = Path(match.group(1)).resolve()
    return path


def _installed(nsys: str, pattern: str) -> Iterator[Path]:
    """Yield what is so named in the installation of an nsys, the nearest first."""
    for path in dict.fromkeys((_program(nsys), Path(nsys).resolve())):
        for folder in path.parents[:_MAX_PARENTS]:
            for library in _LIBRARIES:
                yield from sorted((folder / library).glob(pattern))


def import_recorded(importer: Path, recorded: Path, report: Path) -> str | None:
    """Import a recording (`.qdstrm`) into a report and remove it, as nsys does; else it stays.

    Returns the reason of a failure, `UNKNOWN_CALL` where it lost GPU work; None on success.
    """
    try:
        arguments = ("--input-file", recorded, "--output-file", report, "--force-overwrite")
        done = captured(importer, *arguments, max_s=conversion_limit_s(recorded))
    except OSError as error:
        failure: str | None = str(error.strerror)
    else:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        failure = lines[-1] if lines else f"its exit status is {done.returncode}"
        if _UNKNOWN_INDEX.search(done.stdout + done.stderr):
            failure = UNKNOWN_CALL
        elif done.returncode == 0 and report.exists() and report.stat().st_size:
            failure = None
    (recorded if failure is None else report).unlink(missing_ok=True)
    return failure


def find() -> Nsys | None:
    """Return the `nsys` on PATH; None if there is none."""
    path = shutil.which("nsys")
    return None if path is None else Nsys(path)


def parse_options(manual: str) -> dict[str, str]:
    """Read `nsys profile --help`: the text of each option, by its long name without dashes."""
    options: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in manual.splitlines():
        match = _OPTION.match(line)
        if match:
            lines = options.setdefault(match.group(1), [])
        lines.append(line.strip())
    return {name: "\n".join(lines) for name, lines in options.items()}


def parse_may_sample(text: str) -> bool | None:
    """Read the permission to sample from `nsys status --environment`; None if unknown."""
    checks = dict(_CHECK.findall(text))
    return None if "process-tree" not in checks else checks["process-tree"] == "OK"
