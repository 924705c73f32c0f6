"""Pipelines whose stages have a report each, and bubbles as an analysis finds them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from sample_traces.simulator.event_model.engine import Result
from sample_traces.simulator.event_model.fleet import Capture, Node, seen
from sample_traces.simulator.event_model.records import Records
from sample_traces.simulator.machine import HOST_TABLES, SESSION_START_NS, Machine
from sample_traces.simulator.nsight_writer import NsightWriter
from sample_traces.simulator.scenarios.setup import Setup
from sample_traces.simulator.schema_layouts import PRODUCTS
from traceprof.analyses import pipeline_bubble
from traceprof.analysis import Analysis


def recorded_apart(
    setup: Setup, result: Result, folder: Path, nodes: Iterable[Node], rng: np.random.Generator
) -> list[Path]:
    """Write the export of each stage on a machine of its own, and return where."""
    paths = []
    for stage, node in enumerate(nodes):
        capture = Capture(node, (stage,), 200_000_000, 0, 1 << 60)
        start = SESSION_START_NS + node.shown(capture.session_ns)
        machine = Machine(
            "traceprof test", setup.board, setup.devices_of_processes, host_tables=HOST_TABLES,
            processes=(stage,), hostname=node.name, session_start_ns=start,
        )  # fmt: skip
        paths.append(folder / f"rank{stage}.sqlite")
        with NsightWriter(paths[-1], list(PRODUCTS)[-1]) as writer:
            Records(writer, machine).write(seen(result, capture, rng))
    return paths


def bubbles(analysis: Analysis) -> list[dict[str, Any]]:
    """Return the metrics of the stages of the first pipeline, in order; none without one."""
    stages = pipeline_bubble.run(analysis.result.measured)
    return [metrics.by_name() for metrics in stages.metrics[0]] if stages.metrics else []
