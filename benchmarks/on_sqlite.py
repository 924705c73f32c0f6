"""`traceprof analyze` through SQLite alone, without its own reader of pages, to compare both.

    python -m benchmarks.on_sqlite EXPORT [RUNS]

Prints for both, run in turn, wall and CPU seconds and peak memory of the whole process: medians.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import NoReturn

from benchmarks.analyze import in_turn
from traceprof.cli.main import main
from traceprof.trace.sqlite import read_columns as reader
from traceprof.trace.sqlite.pages import Unsupported

_ANALYZE = "--analyze"  # what this program is told when it is to analyse


def refuse(*_: object, **__: object) -> NoReturn:
    """Have every table read by SQLite, as it is where the reader of pages does not know its way."""
    raise Unsupported("nothing is read from pages")


def compare(export: Path, runs: int) -> None:
    """Print what both cost."""
    command = [sys.executable, "-m", "traceprof", "analyze", "--format", "json", str(export)]
    through_sqlite = [sys.executable, "-m", "benchmarks.on_sqlite", str(export), _ANALYZE]
    costs = in_turn({"own reader of pages": command, "SQLite alone": through_sqlite}, runs)
    for name, runs_of_command in costs.items():
        walls = [cost.wall_s for cost in runs_of_command]
        cpu = statistics.median(cost.cpu_s for cost in runs_of_command)
        peak = statistics.median(cost.peak_mb for cost in runs_of_command)
        print(
            f"{name}: {statistics.median(walls):.2f} s ({min(walls):.2f}-{max(walls):.2f}),"
            f" {cpu:.2f} s of CPU time, {peak:.0f} MB"
        )


if __name__ == "__main__":
    path, *rest = sys.argv[1:]
    if rest == [_ANALYZE]:
        reader.__dict__["decode_columns"] = refuse
        sys.argv = ["traceprof", "analyze", "--format", "json", path]
        sys.exit(main())
    compare(Path(path), int(rest[0]) if rest else 3)
