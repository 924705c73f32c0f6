"""A recording for a try: which ranges the installed nsys records, with this Python's nvtx."""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from traceprof.errors import TraceprofError
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.conversion import export
from traceprof.trace.programs import captured

if TYPE_CHECKING:
    from traceprof.recording.nsys import Nsys

_OURS, _OWN = "traceprof probe", "probe of nvtx"
_PROGRAM = f"""
from instrument.core import nvtx_ranges
nvtx_ranges.push(nvtx_ranges.prepare({_OURS!r}))
nvtx_ranges.pop()
import nvtx
with nvtx.annotate({_OWN!r}, domain="probe"):
    pass
"""
_FLAGS = ("--trace=nvtx", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true")
_TRIES = 2  # nsys fails for a reason of its own once in some hundred recordings


@dataclass(frozen=True)
class ProbedRanges:
    """The ranges that a recording for a try has."""

    of_instrument: bool  # whether those of `instrument` are in it
    of_nvtx: bool  # whether those that a program opens by `nvtx.annotate` are
    failure: str = ""  # why there is no recording; empty if there is one


def probe_ranges(nsys: Nsys) -> ProbedRanges:
    """Record a program of this Python that opens two ranges; takes some seconds."""
    failure = ""
    for _ in range(_TRIES):
        try:
            with tempfile.TemporaryDirectory(prefix="traceprof-probe-") as folder:
                names, failure = _recorded_names(nsys, Path(folder))
        except (TraceprofError, OSError, sqlite3.Error) as error:
            failure = str(error)
            continue
        if not failure:
            return ProbedRanges(_OURS in names, _OWN in names)
    return ProbedRanges(of_instrument=False, of_nvtx=False, failure=failure)


def _recorded_names(nsys: Nsys, folder: Path) -> tuple[set[str], str]:
    """Return the names of recorded ranges, and why there is no recording."""
    report = folder / "probe.nsys-rep"
    flags = [flag for flag in _FLAGS if flag[2:].partition("=")[0] in nsys.options]
    command = (nsys.path, "profile", *flags, f"--output={folder / 'probe'}", sys.executable)
    done = captured(*command, "-c", _PROGRAM)
    if not report.exists():
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        return set(), lines[-1] if lines else f"the exit status of nsys is {done.returncode}"
    target = export(nsys.path, report, folder)
    with closing(sqlite3.connect(target)) as database:
        columns = {row[1] for row in database.execute(f"PRAGMA table_info({schema.NVTX.name})")}
        names = set[str]()
        if "text" in columns:
            names |= {row[0] for row in database.execute("SELECT text FROM NVTX_EVENTS")}
        if "textId" in columns:
            query = "SELECT value FROM StringIds WHERE id IN (SELECT textId FROM NVTX_EVENTS)"
            names |= {row[0] for row in database.execute(query)}
    return names, ""
