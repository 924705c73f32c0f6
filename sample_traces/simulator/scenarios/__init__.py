"""The registry of scenarios, and writing one as an export with its truth."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np

from sample_traces.simulator.event_model import answers
from sample_traces.simulator.event_model.records import Records
from sample_traces.simulator.machine import Machine
from sample_traces.simulator.nsight_writer import PRODUCTS, NsightWriter
from sample_traces.simulator.scenarios import copies, counters, idle, pipelines, ranks, training
from sample_traces.simulator.scenarios.setup import Scenario
from sample_traces.simulator.truth import write_truth

SCHEMA_VERSIONS = tuple(PRODUCTS)
"""Versions of exports that can be written, oldest first."""

SCENARIOS: dict[str, Scenario] = {
    name: scenario
    for module in (training, pipelines, idle, copies, counters, ranks)
    for name, scenario in module.SCENARIOS.items()
}
"""All scenarios; each module of this folder ends with its own."""

_WITHOUT_OVERHEAD = ("2.9.1", "3.7.2")


def simulate_scenario(
    name: str, path: Path, *, seed: int = 0, schema_version: str = "3.25.0"
) -> Path:
    """Write the export of a scenario, and the truth about it.

    Args:
        name: a key of `SCENARIOS`.
        path: the export to write, such as `healthy.sqlite`; the truth goes to
            `healthy.truth.json`.
        seed: of the jitter. The same arguments make the same export.
        schema_version: of the export, one of `SCHEMA_VERSIONS`. Exports of 3.7.2 have neither
            Command Buffer Full records nor NCCL's payloads.

    Returns:
        The path of the truth: the arguments; `breakdown` and `steps` as `traceprof analyze
        --format json` must find them, exactly; `links`, the copied bytes; `findings` with the
        metrics that the model knows; `silent`, the findings that must not be reported above info,
        or `only`, the only ones that may be; and `marks`, if there are any.
    """
    scenario = SCENARIOS[name]
    setup = scenario.build(np.random.default_rng(seed))
    arguments = {"seed": seed, "schema_version": schema_version}
    machine = Machine(
        f"python -m sample_traces.simulator {name} --seed {seed} --schema-version {schema_version}",
        setup.board,
        setup.devices_of_processes,
        has_overhead_rows=scenario.has_overhead_rows,
        has_json_payloads=scenario.has_json_payloads,
        host_tables=scenario.host_tables,
        thread_names=setup.thread_names,
        mpi_size=len(setup.hosts) if setup.mpi_program else 0,
    )
    ranks = answers.Ranks(setup.run())
    findings = setup.findings(ranks)
    has_overhead_rows = scenario.has_overhead_rows and schema_version not in _WITHOUT_OVERHEAD
    for finding in findings:
        if finding["id"] == "launch-queue-stall":
            finding["metrics"]["source"] = "overhead-records" if has_overhead_rows else "inferred"
    with NsightWriter(path, schema_version) as writer:
        Records(writer, machine).write(ranks.result)
        if setup.write_more is not None:
            setup.write_more(writer, ranks)
    _shrink(path)
    facts = {
        **ranks.breakdown(),
        "links": [*answers.links(ranks), *(setup.more_links(ranks) if setup.more_links else ())],
        "findings": findings,
        **({"silent": scenario.silent} if scenario.only is None else {"only": scenario.only}),
    }
    if ranks.result.marks:
        facts["marks"] = answers.marks(ranks)
    return write_truth(path.with_suffix(".truth.json"), name, arguments, facts)


def _shrink(path: Path) -> None:
    """Rewrite the file with small pages: most of its tables have a few rows each."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA synchronous = OFF")  # as when it was written
        database.execute("PRAGMA page_size = 1024")
        database.execute("VACUUM")
