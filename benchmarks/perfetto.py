"""What `traceprof export perfetto` costs over the analysis, and that all comes back.

    python -m benchmarks.perfetto [--runs 3] [--medium M.sqlite]...

Without exports it simulates M: 2 million kernels. The commands take turns. What is written is read
by Perfetto's own classes: calls, ranges, operations and launches are as many, and take as long, as
in the export. The figures are printed for each export; the worse ones are those to be quoted.
"""

from __future__ import annotations

import sqlite3
import statistics
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

import click
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
from rich.console import Console
from rich.table import Table

from benchmarks.analyze import in_turn, simulated
from traceprof.trace.nsight import schema

ANALYZE, EXPORT = "analyze", "export perfetto"
OPERATIONS = ("compute", "communication", "copy")
_TABLES = {
    "operations": (schema.KERNEL.name, schema.MEMCPY.name, schema.MEMSET.name),
    "calls": (schema.API_CALL.name,),
}


def read_back(path: Path) -> dict[str, tuple[int, int]]:
    """Return how many operations and calls a trace holds, and the sum of their lengths, in ns."""
    trace = Trace.FromString(path.read_bytes())
    if trace.SerializeToString() != path.read_bytes():
        raise click.ClickException("Perfetto's classes write something else")
    categories: dict[int, str] = {}
    paths: set[int] = set()
    begun: dict[int, list[tuple[str, int]]] = {}
    number, length = Counter[str](), Counter[str]()
    for packet in trace.packet:
        for category in packet.interned_data.event_categories:
            categories[category.iid] = category.name
        if packet.track_descriptor.name.startswith("critical path"):
            paths.add(packet.track_descriptor.uuid)
        event = packet.track_event
        if event.track_uuid in paths:
            continue
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            of_event = categories[event.category_iids[0]]
            begun.setdefault(event.track_uuid, []).append((of_event, packet.timestamp))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            of_event, start_ns = begun[event.track_uuid].pop()
            kind = "operations" if of_event in OPERATIONS else f"{of_event}s"
            number[kind] += 1
            length[kind] += packet.timestamp - start_ns
    return {kind: (number[kind], length[kind]) for kind in _TABLES}


def in_export(path: Path) -> dict[str, tuple[int, int]]:
    """Return the same of an export, by SQLite."""
    found = {}
    with closing(sqlite3.connect(path)) as file:
        for kind, tables in _TABLES.items():
            rows = [
                file.execute(f'SELECT count(*), sum("end" - start) FROM {table}').fetchone()  # noqa: S608
                for table in tables
            ]
            found[kind] = sum(row[0] for row in rows), sum(row[1] or 0 for row in rows)
    return found


@click.command()
@click.option("--runs", default=3, show_default=True, help="Counted runs of each command.")
@click.option(
    "--medium", multiple=True, type=click.Path(exists=True, path_type=Path), help="M, as it is."
)
def main(runs: int, medium: tuple[Path, ...]) -> None:
    """Print what each command costs on each export."""
    table = Table("export", "command", "CPU s", "peak MB", "CPU of analyze's")
    with ExitStack() as stack:
        target = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run.pftrace"
        for export in medium or [simulated("M", stack)]:
            program = [sys.executable, "-m", "traceprof"]
            costs = in_turn(
                {
                    ANALYZE: [*program, "analyze", "--format", "json", str(export)],
                    EXPORT: [*program, "export", "perfetto", str(export), "-o", str(target)],
                },
                runs,
            )
            for name, of_command in costs.items():
                ratio = statistics.median(
                    one.cpu_s / other.cpu_s
                    for one, other in zip(of_command, costs[ANALYZE], strict=True)
                )
                cpu_s = statistics.median(one.cpu_s for one in of_command)
                peak_mb = max(one.peak_mb for one in of_command)
                table.add_row(export.name, name, f"{cpu_s:.2f}", f"{peak_mb:.0f}", f"{ratio:.2f}")
            if (shown := read_back(target)) != (expected := in_export(export)):
                raise click.ClickException(f"read back: {shown}, in the export: {expected}")
    Console().print(table)


if __name__ == "__main__":
    main()
