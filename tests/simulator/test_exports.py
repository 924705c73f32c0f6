"""Every function that writes an export: repeatable, and refusing what it cannot write."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sample_traces.simulator import simulate_ddp, simulate_gloo, simulate_scenario
from tests.support.databases import dump
from tests.support.traces import CPU_SAMPLE, SAMPLE
from traceprof.errors import UsageError

Write = Callable[..., Path]
SMALL = {
    "ddp": partial(simulate_ddp, gpus=3, steps=2, kernels_per_step=30),
    "gloo": partial(simulate_gloo, pairs=2),
    "scenario": partial(simulate_scenario, "overlap-slowdown"),
}


@pytest.mark.parametrize("write", SMALL.values(), ids=SMALL)
def test_the_same_arguments_make_the_same_export(tmp_path: Path, write: Write) -> None:
    paths = [tmp_path / f"{name}.sqlite" for name in ("first", "again", "other")]
    truths = [write(path=path, seed=seed) for path, seed in zip(paths, (5, 5, 6), strict=True)]
    first, again, other = map(dump, paths)
    assert first == again != other
    texts = [truth.read_text() for truth in truths]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("write", "sample"),
    [
        (partial(simulate_ddp, gpus=2, steps=6, kernels_per_step=40, seed=1), SAMPLE),
        (simulate_gloo, CPU_SAMPLE),
    ],
    ids=["ddp", "gloo"],
)
def test_sample_is_what_the_simulation_makes(tmp_path: Path, write: Write, sample: Path) -> None:
    path = tmp_path / sample.name
    truth = write(path=path)
    assert dump(path) == dump(sample)
    assert truth.read_text() == sample.with_suffix(".truth.json").read_text()


@pytest.mark.parametrize(
    ("write", "arguments", "said"),
    [
        (simulate_ddp, {"gpus": 0}, "the least is"),
        (simulate_ddp, {"steps": 0}, "the least is"),
        (simulate_ddp, {"kernels_per_step": 19}, "the least is"),
        (simulate_ddp, {"seed": -1}, "the least is"),
        (simulate_gloo, {"pairs": 0}, "the least is"),
        (simulate_gloo, {"operations": 24}, "the least is"),
        (simulate_gloo, {"seed": -1}, "the least is"),
        (simulate_scenario, {"name": "no-such"}, "there is no such scenario"),
        (simulate_scenario, {"name": "healthy", "seed": -1}, "the least is 0"),
        (simulate_scenario, {"name": "healthy", "schema_version": "9.9"}, "cannot write schema"),
    ],
)
def test_impossible_arguments(
    tmp_path: Path, write: Write, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        write(path=tmp_path / "x.sqlite", **arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["x.sqlite", "x.truth.json"])
@pytest.mark.parametrize("write", SMALL.values(), ids=SMALL)
def test_nothing_is_overwritten(tmp_path: Path, write: Write, name: str) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(UsageError, match=f"{name}: it exists already"):
        write(path=tmp_path / "x.sqlite")
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "precious"
