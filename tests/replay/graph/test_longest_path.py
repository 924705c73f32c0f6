"""Times in a graph, against a plain search of its nodes in order."""

import numpy as np
import pytest

from traceprof.replay.graph.longest_path import (
    ROOT,
    CircularError,
    WeightSets,
    binding_edges,
    schedule,
    solve,
)


def plain(num: int, edges: list[tuple[int, int, float]]) -> list[float]:
    """Each node is as late as the latest edge that leads to it; sources have smaller numbers."""
    times = [0.0] * num
    for node in range(1, num):
        times[node] = max(times[low] + weight for low, high, weight in edges if high == node)
    return times


def some_edges(rng: np.random.Generator, num: int) -> list[tuple[int, int, float]]:
    edges = [(int(rng.integers(node)), node, float(rng.integers(-5, 20))) for node in range(1, num)]
    for _ in range(2 * num):
        low, high = sorted(rng.integers(0, num, 2).tolist())
        if low < high:
            edges.append((low, high, float(rng.integers(-5, 20))))
    return [edges[index] for index in rng.permutation(len(edges))]


@pytest.mark.parametrize("seed", range(40))
def test_times_are_those_of_a_plain_search(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num = int(rng.integers(2, 60))
    edges = some_edges(rng, num)
    source, target = (np.array(ends) for ends in zip(*[edge[:2] for edge in edges], strict=True))
    weights = np.array([[edge[2], 2 * edge[2]] for edge in edges])
    plan = schedule(num, source, target)
    times = solve(plan, WeightSets.of_columns(weights.T))
    assert times[:, 0].tolist() == plain(num, edges)
    assert times[:, 1].tolist() == plain(num, [(low, high, 2 * w) for low, high, w in edges])
    node = num - 1
    way = binding_edges(plan, weights[:, 0], times[:, 0], node)
    assert sum(edges[edge][2] for edge in way) == times[node, 0]
    assert edges[way[0]][0] == ROOT
    assert [edges[edge][1] for edge in way[:-1]] == [edges[edge][0] for edge in way[1:]]


def test_a_circle_is_an_error() -> None:
    with pytest.raises(CircularError, match="wait for each other"):
        schedule(3, np.array([0, 1, 2]), np.array([1, 2, 1]))
