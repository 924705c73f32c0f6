"""Weights of edges: what a switch does not concern is not weighed again."""

from collections.abc import Sequence
from contextlib import closing

import numpy as np
import pytest

from tests.support.traces import SAMPLE_FOLDER
from traceprof.analysis import Options, analyze
from traceprof.intervals import Float64
from traceprof.replay.assumptions.assumption import Variant, defaults, variants_of
from traceprof.replay.graph.longest_path import Edges
from traceprof.replay.graph.run_graph import run_graph
from traceprof.replay.graph.weights import Durations, Weigher


def _weighed_anew(
    weigher: Weigher, durations: Durations, edges: Sequence[Edges], weights: Sequence[Float64]
) -> list[Float64]:
    del weights
    other = Weigher(weigher._process, durations)
    return [other.of(part) for part in edges]


@pytest.mark.parametrize("sample", ["host-sync", "nccl-serialization", "data-loading"])
def test_every_edge_weighed_anew_gives_the_same(
    sample: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(
        analyze(SAMPLE_FOLDER / f"{sample}.sqlite", options=Options(savings=False))
    ) as analysis:
        asked = [one for one in defaults() if one.refusal(analysis) is None]
        assumptions = [None, *(one.prepared(analysis) for one in asked)]
        variants = [way for one in assumptions for way in variants_of(one, 0.3)]
        variants += [Variant(is_held_out=True), Variant(has_gpu_time=False)]
        known = run_graph(analysis, variants).weights
        monkeypatch.setattr(Weigher, "switched", _weighed_anew)
        anew = run_graph(analysis, variants).weights
    assert known.num == anew.num > 50
    for number in range(known.num):
        assert np.array_equal(known.of(number), anew.of(number)), number
