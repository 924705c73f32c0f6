"""What the analyses of links say of an export, held to the reference."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.reference.links import reference_copies, reference_integral, reference_series
from tests.support.opened import ranks_of
from traceprof.analyses.links import link_counters, link_usage

A100 = "NVIDIA A100-SXM4-80GB"
MIB = 1 << 20


def judged(path: Path, module: Any = link_usage, **overrides: float) -> list[Any]:
    with ranks_of(path) as ranks:
        informed = [replace(rank, peak_overrides=overrides) for rank in ranks]
        results = [module.run(rank, rank.window) for rank in informed]
    return [finding for result in results for finding in module.findings(result)]


def assert_copies_agree(path: Path) -> None:
    expected = reference_copies(path)
    with ranks_of(path) as ranks:
        assert {(rank.process, rank.device) for rank in ranks} == expected.keys()
        for rank in ranks:
            result = link_usage.run(rank, rank.window)
            truth = expected[rank.process, rank.key.device]
            uses = {
                (use.direction, use.peer): (use.bytes, use.busy_ns, use.num_copies)
                for use in result.uses
            }
            assert uses == truth["uses"]
            for load in result.loads:
                assert load.metrics.exposed_ns == truth["exposed"][load.metrics.direction]
            for load in result.big_loads:
                numbers = (
                    load.metrics.bytes,
                    load.metrics.busy_ns,
                    load.metrics.num_copies,
                    load.metrics.exposed_ns,
                )
                assert numbers == truth["big"][load.metrics.direction]
            waited = {name for name, ns in truth["exposed"].items() if ns * 100 >= result.window_ns}
            if result.loads:
                assert {load.metrics.direction for load in result.loads} == waited


def assert_counters_agree(path: Path) -> None:
    series = reference_series(path)
    with ranks_of(path) as ranks:
        for rank in ranks:
            result = link_counters.run(rank, rank.window)
            window = rank.window.start_ns, rank.window.end_ns
            busy = list(zip(rank.busy.start_ns.tolist(), rank.busy.end_ns.tolist(), strict=True))
            for use in result.counters:
                if use.source == "gpu-metrics":
                    periods = series[rank.key.device, use.link, use.direction]
                    nvlink = use.link == "nvlink"
                    count, covered, active, integral, spikes = reference_integral(
                        periods, window, busy, nvlink
                    )
                    assert use.num_samples == count
                    assert (use.busy_ns, use.num_idle_spikes) == (active, spikes)
                    peak = use.peak_gb_per_s
                    assert use.bytes == (None if peak is None else round(integral * peak / 100))
                    assert use.utilization == pytest.approx(integral / covered / 100)
