"""Processes that are kept in fewer bytes come out as they went in."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from sample_traces.simulator import simulate_ddp
from traceprof.analysis import Options, analyze
from traceprof.replay.assumptions.assumption import Variant
from traceprof.replay.graph.process_part import Kept
from traceprof.replay.graph.run_graph import run_graph
from traceprof.structs import Record


def arrays_of(value: Any) -> list[np.ndarray]:
    """All arrays of a record, in order."""
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, Record):
        value = [getattr(value, name) for name in value.__struct_fields__]
    return [array for part in value for array in arrays_of(part)] if np.iterable(value) else []


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    simulate_ddp(tmp_path / "run.sqlite", gpus=1, steps=20, kernels_per_step=60, seed=3)
    with closing(analyze(tmp_path / "run.sqlite", options=Options(savings=False))) as analysis:
        return run_graph(analysis, [Variant()], keeps_processes=True).kept[0].unpacked


def test_what_is_packed_comes_out(kept: Kept) -> None:
    (number, rank), *_ = kept.process.ranks
    packed = replace(kept.packed(), ranks=[(number, rank)])
    again = packed.unpacked
    assert again.process.ranks == ((number, rank),)
    before, after = (
        arrays_of(replace(one, process=replace(one.process, ranks=()))) for one in (kept, again)
    )
    assert len(before) == len(after) > 100
    for one, other in zip(before, after, strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
        assert other.flags.writeable
    assert len(packed.data) < 0.5 * sum(array.nbytes for array in before)


@pytest.mark.parametrize("base", [0, -(2**63), 2**63 - 1 - 2**40])
@pytest.mark.parametrize("bits", [0, 1, 8, 9, 16, 31, 32, 33, 40, 63])
def test_any_range_fits(kept: Kept, base: int, bits: int) -> None:
    highest = min(base + 2**bits, 2**63 - 1)
    numbers = np.array([base, highest, (base + highest) // 2] * 200, np.int64)
    changed = replace(kept, operations=[numbers])
    assert np.array_equal(changed.packed().unpacked.operations[0], numbers)
    everything = np.array([-(2**63), 2**63 - 1, 0] * 200, np.int64)
    assert np.array_equal(
        replace(kept, operations=[everything]).packed().unpacked.operations[0], everything
    )
