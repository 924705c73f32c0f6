"""Sets of weights, kept as what differs, are the same as kept in full."""

import numpy as np
import pytest

from traceprof.replay.graph.longest_path import UNCONSTRAINED, WeightSets


def some_columns(rng: np.random.Generator, num_edges: int, num_sets: int) -> np.ndarray:
    """Columns of which most are like the first one, some as a whole."""
    columns = np.repeat(rng.normal(size=(num_edges, 1)), num_sets, axis=1)
    for number in range(1, num_sets, 2):
        changed = rng.random(num_edges) < 0.3
        columns[changed, number] = rng.choice([UNCONSTRAINED, 1.0, 2.0], int(changed.sum()))
    return columns


@pytest.mark.parametrize("seed", range(5))
def test_what_goes_in_comes_out(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = [some_columns(rng, num_edges, 6) for num_edges in (7, 1, 0, 12)]
    whole = np.concatenate(parts)
    sets = WeightSets.joined([WeightSets.of_columns(part.T) for part in parts])
    assert np.array_equal(sets.columns(), whole)
    order = rng.permutation(len(whole))
    assert np.array_equal(sets.chosen((4, 1)).columns(order), whole[order][:, [4, 1]])
    numbers, place = sets.distinct()
    assert len(numbers) < sets.num
    assert np.array_equal(sets.chosen(numbers).columns()[:, place], whole)
