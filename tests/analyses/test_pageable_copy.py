"""Copies from and to pageable memory: what they carried, and what they cost."""

from functools import partial
from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder
from tests.support.claims import only_finding, only_gap, results_of
from traceprof.analyses import pageable_copy
from traceprof.analyses.pageable_copy import PageableCopyResult
from traceprof.findings import Finding, Severity
from traceprof.run.opening import Window

MIB = 1 << 20


judged = partial(results_of, pageable_copy.run)


def one(result: PageableCopyResult) -> Finding:
    return only_finding(pageable_copy.findings(result))


def test_a_batch_from_pageable_memory(tmp_path: Path) -> None:
    # GPU   |= kernel =|    |== copy ==|             0-100, 150-250
    #                           |= kernel =======|   200-400
    # host       [ copy call 120-240 ]
    builder = TraceBuilder().kernel(0, 100)
    builder.memcpy(150, 250, "HtoD", bytes=MIB, pageable=True, launch=(120, 240))
    builder.kernel(200, 400, stream=8, launch=(0, 1))
    (result,) = judged(builder.write(tmp_path))
    metrics = result.metrics
    assert (metrics.num_copies, metrics.bytes, metrics.host_blocked_ns) == (1, MIB, 120)
    assert result.cost_ns == 50 + 30  # the copy alone, and the idle time inside its call
    finding = one(result)
    assert (finding.severity, finding.impact_ns) == (Severity.MEDIUM, 80)
    assert finding.metrics["gb_per_s"] == pytest.approx(MIB / 100)
    assert finding.metrics["pinned_gb_per_s"] is None
    assert finding.evidence[0].label == "Host-to-Device copy, 1.0 MB, pageable"
    assert finding.title.startswith("1 copy from pageable host memory (0.00 GB")


def test_both_rates_where_there_are_both(tmp_path: Path) -> None:
    builder = TraceBuilder().memcpy(0, 100, "DtoH", bytes=MIB, pageable=True)
    builder.memcpy(100, 150, "DtoH", bytes=2 * MIB).memcpy(150, 151, "HtoD", bytes=MIB)
    finding = one(judged(builder.write(tmp_path))[0])
    assert finding.metrics["direction"] == "d2h"
    assert finding.metrics["gb_per_s"] == pytest.approx(MIB / 100)
    assert finding.metrics["pinned_gb_per_s"] == pytest.approx(2 * MIB / 50)
    assert "to pageable host memory" in finding.title


@pytest.mark.parametrize("size", [4, 65_536])
def test_small_copies_do_not_count(tmp_path: Path, size: int) -> None:
    builder = TraceBuilder().memcpy(0, 100, "DtoH", bytes=size, pageable=True)
    (result,) = judged(builder.write(tmp_path))
    assert (result.metrics.num_copies, pageable_copy.findings(result)) == (0, [])


def test_hidden_copies_are_silent(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 1000).memcpy(100, 800, "HtoD", pageable=True, stream=8)
    (result,) = judged(builder.write(tmp_path))
    assert (result.metrics.num_copies, result.cost_ns, pageable_copy.findings(result)) == (1, 0, [])


def test_copies_that_start_outside_the_window_do_not_count(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for start in (0, 100, 200):
        builder.memcpy(start, start + 50, "HtoD", pageable=True)
    (result,) = judged(builder.write(tmp_path), Window(10, 130))
    assert (result.metrics.num_copies, result.cost_ns) == (1, 30)


def test_copies_without_a_launch_tell_no_host_time(tmp_path: Path) -> None:
    builder = TraceBuilder().memcpy(0, 100, "HtoD", pageable=True, launch=False).kernel(100, 101)
    assert one(judged(builder.write(tmp_path))[0]).metrics["host_blocked_ns"] is None


def test_unknown_kinds_of_memory_are_said(tmp_path: Path) -> None:
    builder = TraceBuilder().memcpy(0, 100).without("CUPTI_ACTIVITY_KIND_MEMCPY", "srcKind")
    (result,) = judged(builder.write(tmp_path))
    missing = only_gap(pageable_copy.findings(result))
    assert missing.id == "pageable-copy"


def test_an_export_without_copies_is_silent(tmp_path: Path) -> None:
    (result,) = judged(TraceBuilder().kernel(0, 9).write(tmp_path))
    assert pageable_copy.findings(result) == []
